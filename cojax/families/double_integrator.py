"""A linear system with two states, written as a QG system: s' = A s + B a + w and its LQR.

With P of the discounted Riccati equation, A = M^{1/2} S (P - Q)^{1/2} for one constant orthogonal
S, here G(x_1, x_2; φ): a linear-quadratic problem is the QG system whose rotation does not depend
on the state. Everything known about LQR then checks the construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from flax import struct
from numpy.typing import ArrayLike, DTypeLike

from cojax import inputs, linalg, quadratic
from cojax.errors import InputError
from cojax.geometry import Knob
from cojax.initial import Normal
from cojax.linalg import rotate


@struct.dataclass
class DoubleIntegrator(quadratic.Geometry):
    """Geometry: a constant rotation by ``angle`` and the input column (b1, b2).

    States, actions and costs have no units; the angle φ is in radians.
    """

    angle: Knob = 0.0
    b1: Knob = 0.00125
    b2: Knob = 0.05

    family = "DoubleIntegrator"
    dimensions = ()
    horizon = 300
    action_limit = None
    ranges: ClassVar = {"p": {"uniform": [0.5, 1.0]}}
    constant_input = True
    one_row_each = False

    @property
    def state_dim(self):
        """2."""
        return 2

    @property
    def action_dim(self):
        """1."""
        return 1

    def actuate(self, s, a):
        """B a."""
        return jnp.concatenate([self.b1 * a, self.b2 * a])

    def actuate_transpose(self, s, v):
        """Bᵀ v."""
        return (self.b1 * v[0] + self.b2 * v[1])[None]

    def rotate(self, s, x, p):
        """G(x_1, x_2; angle) x."""
        return jnp.stack(rotate(x[0], x[1], self.angle))

    def input_norm(self):
        """|B|₂."""
        return float(np.hypot(float(self.b1), float(self.b2)))

    def noise_order(self):
        """Both states."""
        return (0, 1)

    @classmethod
    def build(
        cls,
        p: float = 1.0,
        *,
        A: Sequence[ArrayLike] = ((1.0, 0.05), (0.0, 1.10)),
        b1: float = 0.00125,
        b2: float = 0.05,
        Q: ArrayLike = (5.0, 1.0),
        R: ArrayLike = 0.05,
        gamma: float = 0.99,
        Sigma: ArrayLike = 0.0025,
        dtype: DTypeLike | None = None,
    ) -> quadratic.QuadraticGaussian:
        """Build s' = A s + p B a + w with V* of the discounted Riccati equation

            P = Q + γAᵀPA - γ²p²AᵀPB (R + γp²BᵀPB)⁻¹ BᵀPA.

        Args:
            p: control strength in (0, 1].
            A: (2, 2), with positive determinant.
            b1, b2: B.
            Q: state cost, positive definite.
            R: control cost.
            gamma: discount in (0, 1).
            Sigma: noise covariance.
            dtype: float32 or float64; by default what JAX computes in.

        Raises ValueError, one line, for anything unusable. The defaults are the paper authors'
        hard double integrator.
        """
        p = inputs.number("p", p, 0.0, 1.0, low_open=True)
        gamma = inputs.discount("gamma", gamma)
        b = np.array([inputs.number("b1", b1), inputs.number("b2", b2)])[:, None]
        rows = np.stack([inputs.vector(f"A[{i}]", row, 2) for i, row in enumerate(A)])
        if rows.shape != (2, 2) or np.linalg.det(rows) <= 0.0:
            raise InputError("A: expected two rows with positive determinant")
        Q, R = inputs.positive_definite("Q", np.asarray(Q), 2), inputs.positive_definite("R", R, 1)
        root = np.sqrt(gamma)
        try:
            P = scipy.linalg.solve_discrete_are(
                root * rows, root * p * b, linalg.to_full(Q), linalg.to_full(R)
            )
        except np.linalg.LinAlgError as error:
            raise InputError(
                f"A: the Riccati equation has no stabilising solution: {error}"
            ) from None
        P = 0.5 * (P + P.T)
        M = np.linalg.inv(P) / gamma + p**2 * b @ b.T / float(R[0])
        S = linalg.inverse_sqrt_spd(0.5 * (M + M.T)) @ rows
        S = S @ linalg.inverse_sqrt_spd(P - linalg.to_full(Q))
        return quadratic.build(
            cls(angle=float(np.arctan2(S[1, 0], S[0, 0])), b1=float(b1), b2=float(b2)),
            P=P, Q=Q, R=R, gamma=gamma, p=p, Sigma=np.asarray(Sigma), dtype=dtype,
        )  # fmt: skip

    def picture(self):
        """Position and velocity."""
        return "phase plane", {}

    def initial_law(self, dtype=None):
        """s_0 ~ N((1, 0), 0.25 I)."""
        return Normal(
            mean=jnp.asarray(np.array([1.0, 0.0]), dtype), std=jnp.asarray(np.full(2, 0.5), dtype)
        )
