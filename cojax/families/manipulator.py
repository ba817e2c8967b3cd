"""Planar manipulator with torque inputs: s = [θ_1 … θ_n, ω_1 … ω_n], constant input map dt on ω.

    S(s) = Π_i G(ω_i, ω_{i+1}; c tanh(θ_{i+1} - θ_i)) · Π_i G(θ_i, ω_i; a tanh(θ_i ω_i) + b sin θ_i)

The joint rotations act first, the couplings from base to tip. With two and with three joints
these are two of the paper authors' further systems.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax.geometry import Knob
from cojax.initial import Fixed
from cojax.linalg import rotate, rotate_chain
from cojax.quadratic import Geometry


class Setting(NamedTuple):
    """The authors' values for one number of joints."""

    share: float  # Q = share · P
    R: float
    joint_gain: float
    gravity_gain: float
    coupling_gain: float
    start: tuple[float, ...]


SETTINGS = {
    2: Setting(0.5265, 0.0009, 0.35, 0.5, 0.30, (1.2, -0.8)),
    3: Setting(0.6, 0.0025, 0.3, 0.6, 0.28, (1.0, -0.6, 0.4)),
}


@struct.dataclass
class Manipulator(Geometry):
    """Geometry of the manipulator. Radians, radians a second, seconds.

    Attributes:
        joint_gain: a, of the rotation of each joint with its velocity.
        gravity_gain: b, of its gravity-like part.
        coupling_gain: c, of the coupling of neighbours.
        dt: sampling step.
        n: joints.
    """

    joint_gain: Knob = 0.35
    gravity_gain: Knob = 0.5
    coupling_gain: Knob = 0.30
    dt: Knob = 0.05
    n: int = struct.field(pytree_node=False, default=2)

    family = "Manipulator"
    dimensions = ("n",)
    gains = ("joint_gain", "gravity_gain", "coupling_gain")
    horizon = 320
    action_limit = None
    ranges: ClassVar = {**Geometry.ranges, "n": {"choice": [2, 3]}}
    constant_input = True
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
        """g a: dt a on the velocities."""
        return jnp.concatenate([jnp.zeros_like(a), self.dt * a])

    def actuate_transpose(self, s, v):
        """gᵀ v."""
        return self.dt * v[self.n :]

    def rotate(self, s, x, p):
        """S(s) x in O(n)."""
        theta, omega = s[: self.n], s[self.n :]
        joint = self.joint_gain * jnp.tanh(theta * omega) + self.gravity_gain * jnp.sin(theta)
        x_theta, x_omega = rotate(x[: self.n], x[self.n :], joint)
        coupling = self.coupling_gain * jnp.tanh(theta[1:] - theta[:-1])
        return jnp.concatenate([x_theta, rotate_chain(x_omega, coupling)])

    def input_norm(self):
        """|g|₂ = dt."""
        return abs(float(self.dt))

    def noise_order(self):
        """Velocities, then angles."""
        return (*range(self.n, 2 * self.n), *range(self.n))

    @classmethod
    def defaults(cls, **given):
        """As the authors have it for n = 2 or 3, for others as for 3: P = diag(1/π², …, 1, …)."""
        n = given["n"]
        own = SETTINGS.get(n, SETTINGS[3])
        P, Sigma = np.repeat([1.0 / np.pi**2, 1.0], n), np.repeat([0.0, 2e-4], n)
        return {"P": P, "Sigma": Sigma, **{k: v for k, v in own._asdict().items() if k != "start"}}

    def picture(self):
        """Links, angles first."""
        return "arm", {"n": self.n, "interleaved": False}

    def initial_law(self, dtype=None):
        """At rest, at the authors' angles (for other n, those of 3 joints repeated)."""
        start = np.resize(SETTINGS.get(self.n, SETTINGS[3]).start, self.n)
        return Fixed(jnp.asarray(np.concatenate([start, np.zeros(self.n)]), dtype))
