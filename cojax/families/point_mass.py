"""Point mass in the plane: s = [x, y, v_x, v_y], a the two accelerations, dt on the velocities.

    S(s) = G(v_x, v_y; c tanh(v_x v_y)) · G(y, v_y; b) · G(x, v_x; b) · G(x, y; φ)
    φ = atan2(v_y, v_x + 1e-6),  b = 0.25 tanh(1.2 (|v_x| + |v_y|))

read from right to left. One of the paper authors' further systems. S has no limit at v = 0.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax.geometry import Knob
from cojax.initial import Fixed
from cojax.linalg import rotate
from cojax.quadratic import Geometry


@struct.dataclass
class PointMass(Geometry):
    """Geometry of the point mass. Metres, seconds.

    Attributes:
        drive_gain: of b, the coupling of position and velocity.
        turn_gain: c, of the coupling of the two velocities.
        dt: sampling step.
    """

    drive_gain: Knob = 0.25
    turn_gain: Knob = 0.20
    dt: Knob = 0.08

    family = "PointMass"
    dimensions = ()
    gains = ("drive_gain", "turn_gain")
    horizon = 280
    action_limit = None
    ranges: ClassVar = {
        **Geometry.ranges,
        "drive_gain": {"uniform": [0.0, 0.4]},
    }
    constant_input = True
    one_row_each = True

    @property
    def state_dim(self):
        """4."""
        return 4

    @property
    def action_dim(self):
        """2."""
        return 2

    def actuate(self, s, a):
        """g a: dt a on the velocities."""
        return jnp.concatenate([jnp.zeros_like(a), self.dt * a])

    def actuate_transpose(self, s, v):
        """gᵀ v."""
        return self.dt * v[2:]

    def rotate(self, s, x, p):
        """S(s) x."""
        v = s[2:]
        x0, x1 = rotate(x[0], x[1], jnp.arctan2(v[1], v[0] + 1e-6))
        drive = self.drive_gain * jnp.tanh(1.2 * (jnp.abs(v[0]) + jnp.abs(v[1])))
        x0, x2 = rotate(x0, x[2], drive)
        x1, x3 = rotate(x1, x[3], drive)
        x2, x3 = rotate(x2, x3, self.turn_gain * jnp.tanh(v[0] * v[1]))
        return jnp.stack([x0, x1, x2, x3])

    def input_norm(self):
        """|g|₂ = dt."""
        return abs(float(self.dt))

    def noise_order(self):
        """Velocities, then positions."""
        return (2, 3, 0, 1)

    @classmethod
    def defaults(cls, **given):
        """As the authors have it."""
        P, Sigma = (1 / 16, 1 / 16, 1.0, 1.0), (1e-4, 1e-4, 4e-4, 4e-4)
        return {"P": P, "share": 0.6, "R": 0.012, "gamma": 0.985, "Sigma": Sigma}

    def picture(self):
        """A mass in the plane."""
        return "mass", {}

    def initial_law(self, dtype=None):
        """s_0 = (4, -3, 0, 0)."""
        return Fixed(jnp.asarray(np.array([4.0, -3.0, 0.0, 0.0]), dtype))
