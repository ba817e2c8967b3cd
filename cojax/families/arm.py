"""ConverseArm: a serial n-link planar arm with revolute joints (paper, Section VI-B).

    s = [θ_1, ω_1, …, θ_n, ω_n],  a = joint torques,  g(s)[2i, i] = cos θ_i
    S_p(s) = Π_i G(ω_i, ω_{i+1}; β_i) · Π_i G(θ_i, ω_i; α_i)
    α_i = α0 p tanh(κ1 θ_i ω_i) + g0 p sin θ_i,   β_i = β0 p tanh(κ2 (θ_{i+1} - θ_i))

The joint rotations act first; the couplings act from base to tip.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax import inputs
from cojax.geometry import Knob
from cojax.initial import Uniform
from cojax.linalg import rotate, rotate_chain
from cojax.noise import scatter
from cojax.quadratic import Geometry


@struct.dataclass
class ConverseArm(Geometry):
    """Geometry of the arm. Angles in radians, velocities in radians a step.

    Attributes:
        alpha0: α0, gain of the velocity coupling α_i.
        beta0: β0, gain of the coupling between neighbours.
        kappa1, kappa2: κ1 and κ2, how soon the two couplings saturate.
        g0: gravity-like bias.
        n: joints.
    """

    alpha0: Knob = 0.125
    beta0: Knob = 0.1
    kappa1: Knob = 1.0
    kappa2: Knob = 1.0
    g0: Knob = 0.8
    n: int = struct.field(pytree_node=False, default=4)

    family = "ConverseArm"
    dimensions = ("n",)
    settings = ("seed",)  # of the authors' P
    gains = ("alpha0", "beta0", "g0")  # of the rotations
    ranges: ClassVar = {
        "p": {"uniform": [0.4, 1.0]},
        "alpha0": {"uniform": [0.0, 0.25]},
        "beta0": {"uniform": [0.0, 0.2]},
        "kappa1": {"uniform": [0.5, 2.0]},
        "kappa2": {"uniform": [0.5, 2.0]},
        "g0": {"uniform": [0.0, 1.0]},
        "Q": {"uniform": [0.03, 0.1]},
        "R": {"log_uniform": [5.0, 20.0]},
        "P": {"condition": {"log_uniform": [2.0, 20.0]}},
        "Sigma": {"std": {"log_uniform": [1e-4, 1e-2]}, "correlation": 0.0},
    }
    constant_input = False
    one_row_each = True

    @property
    def state_dim(self):
        """2n."""
        return 2 * self.n

    @property
    def action_dim(self):
        """n."""
        return self.n

    def actuate(self, s, a):
        """g(s) a: cos θ_i a_i on the velocity rows."""
        return scatter(jnp.cos(s[0::2]) * a, tuple(range(1, 2 * self.n, 2)), 2 * self.n)

    def actuate_transpose(self, s, v):
        """g(s)ᵀ v: cos θ_i v_{ω_i}."""
        return jnp.cos(s[0::2]) * v[1::2]

    def rotate(self, s, x, p):
        """S_p(s) x in O(n)."""
        theta, omega = s[0::2], s[1::2]
        alpha = self.alpha0 * p * jnp.tanh(self.kappa1 * theta * omega)
        alpha = alpha + self.g0 * p * jnp.sin(theta)
        beta = self.beta0 * p * jnp.tanh(self.kappa2 * (theta[1:] - theta[:-1]))
        x_theta, x_omega = rotate(x[0::2], x[1::2], alpha)
        return jnp.stack([x_theta, rotate_chain(x_omega, beta)], axis=-1).reshape(-1)

    def input_norm(self):
        """sup |cos θ| = 1."""
        return 1.0

    def noise_order(self):
        """Velocities, then angles."""
        return (*range(1, 2 * self.n, 2), *range(0, 2 * self.n, 2))

    @classmethod
    def defaults(cls, **given):
        """As the authors have it: p = 0.8, their P of ``seed``, Q = 0.03 P, R = 10 I, and noise on
        the velocities.
        """
        P, Sigma = authors_P(given["n"], given.get("seed", 7)), np.tile([0.0, 1e-6], given["n"])
        return {"p": 0.8, "P": P, "share": 0.03, "R": 10.0, "Sigma": Sigma}

    @classmethod
    def draw_P(cls, d, rng):
        """The authors' P of a drawn seed."""
        return authors_P(d // 2, int(rng.integers(2**31)))

    def picture(self):
        """Links, each angle beside its velocity."""
        return "arm", {"n": self.n, "interleaved": True}

    def initial_law(self, dtype=None):
        """The authors' law: θ ~ U(-2.8, 2.8), ω ~ U(-1.2, 1.2)."""
        high = jnp.asarray(np.tile([2.8, 1.2], self.n), dtype)
        return Uniform(low=-high, high=high)


def authors_P(n: int, seed: int) -> np.ndarray:
    """The authors' random value matrix P = BᵀB + 1e-6 I, B banded, float64, shape (2n, 2n).

    B has diagonal 1 + 0.5 U, first off-diagonals 0.15 U and second 0.05 U (both sides alike),
    U ~ U(0, 1) drawn row by row from ``numpy.random.default_rng(seed)``.
    """
    d = 2 * inputs.whole("n", n, 1)
    rng = np.random.default_rng(inputs.whole("seed", seed, 0))
    B = np.zeros((d, d))
    for i in range(d):
        for offset, scale in ((0, 0.5), (1, 0.15), (2, 0.05)):
            if i + offset < d:
                B[i, i + offset] = B[i + offset, i] = scale * rng.uniform() + (offset == 0)
    P = B.T @ B + 1e-6 * np.eye(d)
    return 0.5 * (P + P.T)
