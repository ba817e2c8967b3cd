"""Pendulums: n damped pendulums in a row with springs between neighbours, as physics has them.

    s = [θ_1, ω_1, …, θ_n, ω_n],  a = joint torques,  s' = f(s) + p g a + w
    ω' = ω + τ (p a - G sin θ - K θ - c ω - k Σ_j (θ - θ_j)),  θ' = θ + τ ω'

by the semi-implicit Euler method (Hairer, Lubich and Wanner, Geometric Numerical Integration, 2006,
I.1.2). The drift is given, and the cost of states pays for it (:mod:`cojax.free_drift`); it is no
family of the paper's. G < 0 stands them on their heads. Since sin θ = σ θ with σ in [-0.217…, 1],
f(s) = A(σ) s with A linear in σ: its hull has 2ⁿ corners.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from flax import struct

from cojax import linalg
from cojax.drift_share import shares
from cojax.errors import InputError
from cojax.free_drift import DriftFamily
from cojax.geometry import Knob
from cojax.initial import Uniform

SLOPES = (-0.2172336282112217, 1.0)  # of sin θ/θ: its least value, rounded down, and its largest
MIDDLE = 0.5 * sum(SLOPES)
MOST = 8  # pendulums whose corners are all looked at
WEIGHTS = np.geomspace(0.03, 3.0, 9)  # of ω² beside θ², of which the best is taken


@struct.dataclass
class Pendulums(DriftFamily):
    """The pendulums. Radians, radians a second, seconds.

    Attributes:
        gravity: G in 1/s², gravity over length; below 0 upside down.
        stiffness: K >= 0 in 1/s², of the spring of each joint.
        damping: c >= 0 in 1/s.
        coupling: k >= 0 in 1/s², of the springs between neighbours.
        tau: τ, sampling step.
        n: pendulums.
    """

    gravity: Knob = 2.0
    stiffness: Knob = 4.0
    damping: Knob = 1.0
    coupling: Knob = 0.5
    tau: Knob = 0.1
    n: int = struct.field(pytree_node=False, default=2)

    family = "Pendulums"
    dimensions = ("n",)
    positive = ("tau",)
    limits: ClassVar = dict.fromkeys(("stiffness", "damping", "coupling"), (0.0, np.inf))
    horizon = 200
    action_limit = None

    @property
    def state_dim(self):
        """2n."""
        return 2 * self.n

    @property
    def action_dim(self):
        """n."""
        return self.n

    def drift(self, s):
        """f(s)."""
        theta, omega = s[0::2], s[1::2]
        apart = self.coupling * (theta[1:] - theta[:-1])
        pulled = jnp.pad(apart, (0, 1)) - jnp.pad(apart, (1, 0))
        force = pulled - self.gravity * jnp.sin(theta) - self.stiffness * theta
        omega = omega + self.tau * (force - self.damping * omega)
        return _interleaved(theta + self.tau * omega, omega)

    def actuate(self, s, a):
        """g a: τ a on velocities, τ² a on angles."""
        pushed = self.tau * a
        return _interleaved(self.tau * pushed, pushed)

    def actuate_transpose(self, s, v):
        """gᵀ v."""
        return self.tau * (v[1::2] + self.tau * v[0::2])

    def at(self, slopes: np.ndarray) -> np.ndarray:
        """A(σ), (2n, 2n), for σ = ``slopes`` (n,)."""
        apart = np.diff(np.eye(self.n), axis=0)
        pull = np.diag(self.gravity * slopes + self.stiffness) + self.coupling * apart.T @ apart
        rows = np.zeros((self.n, 2, self.n, 2))
        rows[:, 1, :, 0] = -self.tau * pull
        rows[:, 1, :, 1] = (1.0 - self.tau * self.damping) * np.eye(self.n)
        rows[:, 0] = self.tau * rows[:, 1]
        rows[:, 0, :, 0] += np.eye(self.n)
        return rows.reshape(2 * self.n, 2 * self.n)

    def hull(self):
        """A(σ) of all corners of σ, for at most eight pendulums."""
        if self.n > MOST:
            return None
        corners = itertools.product(SLOPES, repeat=self.n)
        return np.stack([self.at(np.array(slopes)) for slopes in corners])

    def value_matrix(self, R, *, gamma, p, finite):
        """P of the regulator, or for a list of actions of the drift alone, at the middle of the
        hull, for the weight of ω² that leaves most at its corners.

        Raises InputError where no P solves the equation.
        """
        A, G = np.sqrt(gamma) * self.at(np.full(self.n, MIDDLE)), p * self.input_matrix()
        ends = [self.at(np.full(self.n, slope)) for slope in SLOPES]
        hull = np.stack(ends) if self.n > MOST else self.hull()
        assert hull is not None
        best, most = None, np.inf
        for weight in WEIGHTS:
            Q = np.diag(np.tile([1.0, weight], self.n))
            try:
                if finite:
                    P = scipy.linalg.solve_discrete_lyapunov(A.T, Q)
                else:
                    P = scipy.linalg.solve_discrete_are(A, np.sqrt(gamma) * G, Q, linalg.to_full(R))
            except (np.linalg.LinAlgError, ValueError):
                continue
            P = 0.5 * (P + P.T)
            if np.linalg.eigvalsh(P)[0] <= 0.0:
                continue
            spent = gamma * P
            if not finite:
                GP = G.T @ P
                B = linalg.to_full(R) + gamma * GP @ G
                spent = gamma * (P - gamma * GP.T @ np.linalg.solve(B, GP))
            found = shares(hull, 0.5 * (spent + spent.T), P).max()
            if found < most:
                best, most = P, found
        if best is None:
            raise InputError("P: the pendulums' own equation has no solution here; give P")
        return best

    @classmethod
    def defaults(cls, **given):
        """Noise on the velocities, and through them on the angles."""
        return {"R": 0.02, "gamma": 0.95, "Sigma": np.tile([0.0, 1e-3], given["n"])}

    def noise_order(self):
        """Velocities, then angles."""
        return (*range(1, 2 * self.n, 2), *range(0, 2 * self.n, 2))

    def picture(self):
        """Links, each angle beside its velocity."""
        return "arm", {"n": self.n, "interleaved": True}

    def initial_law(self, dtype=None):
        """θ ~ U(-1.5, 1.5), ω ~ U(-1, 1)."""
        high = jnp.asarray(np.tile([1.5, 1.0], self.n), dtype)
        return Uniform(low=-high, high=high)


def _interleaved(theta, omega):
    return jnp.stack([theta, omega], axis=-1).reshape(-1)
