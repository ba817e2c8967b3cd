"""Vehicles that fly on the thrust along their own axis, with actuators of cubic response.

PlanarAerial, in the plane of x and height z: s = [x, z, φ, v_x, v_z, ω], u = (thrust, torque), with
g = dt (-sin φ, cos φ) on (v_x, v_z) and dt on ω, and

    S(s) = G(v_x, v_z; c tanh ω) · G(v_x, φ; t cos φ) · G(φ, ω; -r cos φ)
           · G(z, v_z; -d cos φ) · G(x, v_x; -d cos φ)

Aerial: s = [position (3), roll φ, pitch θ, yaw ψ, velocity (3), rates (3)], u = (thrust, three
torques), with g = dt e on the velocity, e = (cos φ sin θ cos ψ + sin φ sin ψ, cos φ sin θ sin ψ -
sin φ cos ψ, cos φ cos θ), and dt on the rates, and

    S(s) = G(ω_x, ω_y; k tanh ω_z) · G(v_x, v_y; c tanh ω_z)
           · G(v_y, φ; t cos φ) · G(v_x, θ; -t cos θ)
           · Π_i G(attitude_i, ω_i; -r cos attitude_i) · Π_i G(position_i, v_i; -d cos φ cos θ)

read from right to left: positions drift with velocities and attitudes with rates, tilt pushes
sideways, and turning mixes velocities and rates. Thrust is counted from that of hovering. The
action is ν with u = ν + η ν³ (:mod:`cojax.actuators`). The paper has the construction, not these.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax.actuators import CubicGeometry
from cojax.geometry import Knob
from cojax.initial import Uniform
from cojax.linalg import rotate
from cojax.quadratic import Geometry


@struct.dataclass
class _Airframe(CubicGeometry):
    """What both have in common."""

    drive: Knob = 0.3
    spin: Knob = 0.4
    tilt: Knob = 0.5
    turn: Knob = 0.3
    dt: Knob = 0.1
    eta: Knob = 0.1

    dimensions = ()
    gains = ("tilt", "drive", "spin", "turn")
    horizon = 300
    action_limit = None
    positive = ("dt",)
    ranges: ClassVar = {
        **Geometry.ranges,
        "Q": {"uniform": [0.03, 0.1]},
        "R": {"log_uniform": [0.01, 0.1]},
        "P": {"condition": {"log_uniform": [2.0, 10.0]}},
        "tilt": {"uniform": [0.0, 0.8]},
        "turn": {"uniform": [0.0, 0.6]},
        "eta": {"uniform": [0.0, 0.3]},
        "Sigma": {"std": {"log_uniform": [1e-3, 3e-2]}, "correlation": 0.0},
    }
    constant_input = False
    one_row_each = False

    def input_norm(self):
        """|g|₂ = dt."""
        return abs(float(self.dt))


@struct.dataclass
class PlanarAerial(_Airframe):
    """Geometry of the vehicle in the plane. Metres, radians, seconds; φ against the clock.

    Attributes:
        drive: d, of position and velocity.
        spin: r, of attitude and rate.
        tilt: t, of attitude and velocity.
        turn: c, of the two velocities while it turns.
        dt: sampling step.
        eta: η of the actuators.
    """

    family = "PlanarAerial"

    @property
    def state_dim(self):
        """6."""
        return 6

    @property
    def action_dim(self):
        """2."""
        return 2

    def actuate(self, s, a):
        """g(s) u: dt u_1 along the axis of the vehicle, dt u_2 on its rate."""
        pushed = jnp.stack([-jnp.sin(s[2]) * a[0], jnp.cos(s[2]) * a[0], a[1]])
        return self.dt * jnp.concatenate([jnp.zeros_like(pushed), pushed])

    def actuate_transpose(self, s, v):
        """g(s)ᵀ v."""
        return self.dt * jnp.stack([jnp.cos(s[2]) * v[4] - jnp.sin(s[2]) * v[3], v[5]])

    def rotate(self, s, x, p):
        """S(s) x."""
        upright = jnp.cos(s[2])
        drive, spin = -self.drive * upright, -self.spin * upright
        pose, rates = rotate(x[0:3], x[3:6], jnp.stack([drive, drive, spin]))
        vx, phi = rotate(rates[0], pose[2], self.tilt * upright)
        vx, vz = rotate(vx, rates[1], self.turn * jnp.tanh(s[5]))
        return jnp.concatenate([pose[:2], jnp.stack([phi, vx, vz, rates[2]])])

    def largest_input(self, dtype):
        """dt where g has an entry at some attitude."""
        return jnp.asarray(self.dt, dtype) * jnp.asarray([[0, 0, 0, 1, 1, 0], [0] * 5 + [1]], dtype)

    def noise_order(self):
        """Velocities and rate, then the pose."""
        return (3, 4, 5, 0, 1, 2)

    @classmethod
    def defaults(cls, **given):
        """Noise on velocities and rate."""
        P, Sigma = (0.5, 0.5, 1.0, 0.4, 0.4, 0.3), (0.0, 0.0, 0.0, 1e-4, 1e-4, 1e-4)
        return {"P": P, "share": 0.05, "R": 0.02, "p": 0.8, "Sigma": Sigma}

    def picture(self):
        """A vehicle in flight."""
        return "flyer", {}

    def initial_law(self, dtype=None):
        """Within 1 m, 0.8 rad, 0.5 m/s and 0.5 rad/s of hovering in the origin."""
        high = jnp.asarray(np.array([1.0, 1.0, 0.8, 0.5, 0.5, 0.5]), dtype)
        return Uniform(low=-high, high=high)


@struct.dataclass
class Aerial(_Airframe):
    """Geometry of the vehicle in space. Metres, radians, seconds.

    Attributes:
        drive: d, of position and velocity.
        spin: r, of attitude and rates.
        tilt: t, of attitude and velocity.
        turn: c, of the two velocities across while it yaws.
        gyro: k, of the two rates across while it yaws.
        dt: sampling step.
        eta: η of the actuators.
    """

    gyro: Knob = 0.4

    family = "Aerial"
    gains = (*_Airframe.gains, "gyro")

    @property
    def state_dim(self):
        """12."""
        return 12

    @property
    def action_dim(self):
        """4."""
        return 4

    def axis(self, s):
        """e(s), (3,), the direction of thrust."""
        (c1, c2, c3), (s1, s2, s3) = jnp.cos(s[3:6]), jnp.sin(s[3:6])
        return jnp.stack([c1 * s2 * c3 + s1 * s3, c1 * s2 * s3 - s1 * c3, c1 * c2])

    def actuate(self, s, a):
        """g(s) u: dt u_1 e on the velocity, dt times the torques on the rates."""
        pushed = jnp.concatenate([self.axis(s) * a[0], a[1:]])
        return self.dt * jnp.concatenate([jnp.zeros(6, pushed.dtype), pushed])

    def actuate_transpose(self, s, v):
        """g(s)ᵀ v."""
        return self.dt * jnp.concatenate([jnp.sum(self.axis(s) * v[6:9])[None], v[9:]])

    def rotate(self, s, x, p):
        """S(s) x."""
        c = jnp.cos(s[3:6])
        position, v = rotate(x[0:3], x[6:9], -self.drive * c[0] * c[1])
        attitude, rates = rotate(x[3:6], x[9:12], -self.spin * c)
        vx, pitch = rotate(v[0], attitude[1], -self.tilt * c[1])
        vy, roll = rotate(v[1], attitude[0], self.tilt * c[0])
        vx, vy = rotate(vx, vy, self.turn * jnp.tanh(s[11]))
        wx, wy = rotate(rates[0], rates[1], self.gyro * jnp.tanh(s[11]))
        rest = jnp.stack([roll, pitch, attitude[2], vx, vy, v[2], wx, wy, rates[2]])
        return jnp.concatenate([position, rest])

    def largest_input(self, dtype):
        """dt where g has an entry at some attitude."""
        rows = np.zeros((4, 12))
        rows[0, 6:9], rows[[1, 2, 3], [9, 10, 11]] = 1.0, 1.0
        return jnp.asarray(self.dt, dtype) * jnp.asarray(rows, dtype)

    def noise_order(self):
        """Velocities and rates, then pose."""
        return (*range(6, 12), *range(6))

    @classmethod
    def defaults(cls, **given):
        """Noise on velocities and rates."""
        P = np.repeat([0.5, 1.0, 0.4, 0.3], 3)
        Sigma = np.repeat([0.0, 1e-4], 6)
        return {"P": P, "share": 0.05, "R": 0.02, "p": 0.8, "Sigma": Sigma}

    def picture(self):
        """A vehicle in flight, seen along y."""
        return "flyer", {"x": 0, "z": 2, "tilt": 4, "sign": -1.0, "torque": 2}

    def initial_law(self, dtype=None):
        """Within 1 m, 0.6 rad, 0.5 m/s and 0.5 rad/s of hovering in the origin."""
        high = jnp.asarray(np.repeat([1.0, 0.6, 0.5, 0.5], 3), dtype)
        return Uniform(low=-high, high=high)
