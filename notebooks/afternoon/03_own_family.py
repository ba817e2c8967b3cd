"""A family of your own, registered and then like any other; see own_family.ipynb for its parts."""

import jax.numpy as jnp
from flax import struct

import cojax


@cojax.families.register
@struct.dataclass
class Wheel(cojax.families.DoubleIntegrator):
    """The torque moves the speed alone; S(s) turns the plane by gain · tanh(speed)."""

    gain: float = 0.3
    family, gains, horizon, action_limit = "Wheel", ("gain",), 60, 2.0

    def rotate(self, s, x, p):
        return jnp.stack(cojax.linalg.rotate(x[0], x[1], self.gain * jnp.tanh(s[1])))

    build = classmethod(cojax.quadratic.Geometry.build.__func__)


ranges = {"gain": {"uniform": [0.1, 0.4]}, "R": 0.05, "Sigma": {"std": 1e-2}}
for fixture in cojax.fixtures.generate("Wheel", 2, seed=1, ranges=ranges):
    print(fixture, fixture.certificate.passed, cojax.evaluate(["lqr", "zero"], fixture, 8))
