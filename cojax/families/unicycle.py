"""Unicycle with accelerations as inputs: s = [x, y, φ, v, ω], a = (dt v̇, dt ω̇)/dt.

    S(s) = G(v, ω; c tanh(1.5 v ω)) · G(y, v; b) · G(x, v; b) · G(x, y; φ),  b = 0.28 tanh(1.2 v)

read from right to left; g = dt on the rows of v and ω. One of the paper authors' further systems.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax.geometry import Knob
from cojax.initial import Fixed
from cojax.linalg import rotate
from cojax.noise import scatter
from cojax.quadratic import Geometry


@struct.dataclass
class Unicycle(Geometry):
    """Geometry of the unicycle. Metres, radians, seconds.

    Attributes:
        drive_gain: of b, the coupling of position and speed.
        turn_gain: c, of the coupling of the two velocities.
        dt: sampling step.
    """

    drive_gain: Knob = 0.28
    turn_gain: Knob = 0.25
    dt: Knob = 0.1

    family = "Unicycle"
    dimensions = ()
    gains = ("drive_gain", "turn_gain")
    horizon = 300
    action_limit = None
    ranges: ClassVar = {
        **Geometry.ranges,
        "drive_gain": {"uniform": [0.0, 0.4]},
    }
    constant_input = True
    one_row_each = True

    @property
    def state_dim(self):
        """5."""
        return 5

    @property
    def action_dim(self):
        """2."""
        return 2

    def actuate(self, s, a):
        """g a: dt a on v and ω."""
        return scatter(self.dt * a, (3, 4), 5)

    def actuate_transpose(self, s, v):
        """gᵀ v."""
        return self.dt * v[3:]

    def rotate(self, s, x, p):
        """S(s) x."""
        drive = self.drive_gain * jnp.tanh(1.2 * s[3])
        x0, x1 = rotate(x[0], x[1], s[2])
        x0, x3 = rotate(x0, x[3], drive)
        x1, x3 = rotate(x1, x3, drive)
        x3, x4 = rotate(x3, x[4], self.turn_gain * jnp.tanh(1.5 * s[3] * s[4]))
        return jnp.stack([x0, x1, x[2], x3, x4])

    def input_norm(self):
        """|g|₂ = dt."""
        return abs(float(self.dt))

    def noise_order(self):
        """Velocities, then pose."""
        return (3, 4, 0, 1, 2)

    @classmethod
    def defaults(cls, **given):
        """As the authors have it."""
        P, Sigma = (1 / 9, 1 / 9, 1.0, 1.0, 1.0), (1e-4, 1e-4, 2.5e-5, 4e-4, 4e-4)
        return {"P": P, "share": 0.63, "R": 0.00390625, "gamma": 0.98, "Sigma": Sigma}

    def picture(self):
        """One vehicle."""
        return "vehicles", {"num": 1, "module_dim": 5}

    def initial_law(self, dtype=None):
        """s_0 = (3, -2, 0.6, 0, 0)."""
        return Fixed(jnp.asarray(np.array([3.0, -2.0, 0.6, 0.0, 0.0]), dtype))
