"""KinematicArm: an n-link arm whose angles move exactly as their velocities say.

    s = [θ_1, ω_1, …, θ_n, ω_n],  a = joint torques,  θ_i' = θ_i + τ ω_i
    g(s)[2i, i] = τ (1 - c (1 - cos θ_i))
    S_p(s) = Π_i G(ω_i, ω_{i+1}; φ_i),  φ_i = p (g0 sin θ_i + κ tanh(ω_i ω_{i+1} sin θ_{i+1}))

The couplings act from base to tip: g0 on weight, κ on rates as Coriolis terms do. It is what the
kinematic line of the paper's arm says, by the construction of :mod:`cojax.kinematic`; with
c = g0 = κ = 0 it is the chain θ' = θ + τ ω, ω' = ω + p τ a with its regulator. A single joint has
nothing to turn: what is not linear in it is c alone.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax.geometry import Knob
from cojax.initial import Uniform
from cojax.kinematic import KinematicGeometry
from cojax.linalg import rotate_chain


@struct.dataclass
class KinematicArm(KinematicGeometry):
    """Geometry of the arm. Radians, radians a second, seconds.

    Attributes:
        gravity: g0, gain of the turn that depends on the angles.
        coriolis: κ, gain of the turn that depends on products of rates.
        lever: c in [0, 1], how much of a torque's effect goes with cos θ.
        tau: τ, sampling step.
        n: joints.
    """

    gravity: Knob = 0.5
    coriolis: Knob = 0.4
    lever: Knob = 1.0
    tau: Knob = 0.1
    n: int = struct.field(pytree_node=False, default=3)

    family = "KinematicArm"
    gains = ("gravity", "coriolis")
    horizon = 300
    action_limit = None
    limits: ClassVar = {"lever": (0.0, 1.0)}
    ranges: ClassVar = {
        "p": {"uniform": [0.5, 1.0]},
        "gravity": {"uniform": [0.0, 0.8]},
        "coriolis": {"uniform": [0.0, 1.0]},
        "lever": {"uniform": [0.0, 1.0]},
        "tau": {"uniform": [0.08, 0.15]},
        "R": {"log_uniform": [0.02, 0.2]},
        "Sigma": {"std": {"log_uniform": [1e-3, 3e-2]}, "correlation": 0.0},
    }

    def gain(self, s):
        """τ (1 - c (1 - cos θ_i))."""
        return self.tau * (1.0 - self.lever * (1.0 - jnp.cos(s[0::2])))

    def turn(self, s, u, p):
        """S_p(s) u in O(n)."""
        theta, omega = s[0::2], s[1::2]
        rates = jnp.tanh(omega[:-1] * omega[1:] * jnp.sin(theta[1:]))
        angle = self.gravity * jnp.sin(theta[:-1]) + self.coriolis * rates
        return rotate_chain(u, p * angle)

    @classmethod
    def defaults(cls, **given):
        """Each joint costs less than the one before it, and its angle is held to its neighbours';
        noise on the velocities.
        """
        n = given["n"]
        weights = np.linspace(1.0, 0.4, n)
        steps = np.eye(n)[1:] - np.eye(n)[:-1]
        Q = np.kron(np.diag(weights) + 0.5 * steps.T @ steps, np.diag([1.0, 0.0]))
        Q = Q + np.kron(np.diag(weights), np.diag([0.0, 0.2]))
        Sigma = np.tile([0.0, 1e-4], n)
        return {"p": 0.8, "Q": Q, "R": 0.05, "gamma": 0.99, "Sigma": Sigma}

    def picture(self):
        """Links, each angle beside its velocity."""
        return "arm", {"n": self.n, "interleaved": True}

    def initial_law(self, dtype=None):
        """θ ~ U(-1.5, 1.5), ω ~ U(-1, 1)."""
        high = jnp.asarray(np.tile([1.5, 1.0], self.n), dtype)
        return Uniform(low=-high, high=high)
