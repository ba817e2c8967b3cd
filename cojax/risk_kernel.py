"""The kernels in which a policy is measured where risk has a price: its own and the tilted one."""

from __future__ import annotations

from flax import struct

from cojax.delegated import Delegated
from cojax.risk import RecursiveRisk, RiskSensitive
from cojax.system import Optimum


@struct.dataclass
class Kernel(Delegated):
    """A risky system in which a policy is measured: the same costs, optimum and advantages, and
    next states by its own kernel or the tilted one, from the same white noise. Methods are of one
    state, action a or deviation ``delta`` = a - a*, and ``key``.

    Attributes:
        base: the system.
        tilted: which of the two.
    """

    base: RiskSensitive | RecursiveRisk  # pyright: ignore[reportIncompatibleVariableOverride]
    tilted: bool = struct.field(pytree_node=False, default=True)

    def labels(self):
        """Those of the base."""
        return self.base.labels()

    def optimum(self, s):
        """a* as in the base; the tilted mean and drift, P⁻¹y/γ and what the action leaves of it."""
        at = self.base.optimum(s)
        if not self.tilted:
            return at
        moved = (self.base.pushed(s, z, "carried") for z in (at.drift, at.next_mean))
        drift, mean = moved
        return Optimum(drift, at.action, mean)

    def actuate(self, s, a):
        """p g(s) a, carried to the tilted mean."""
        pushed = self.base.actuate(s, a)
        return self.base.pushed(s, pushed, "carried") if self.tilted else pushed

    def expected_value(self, s, z, a=None):
        """That of the base: the certainty equivalent, not a mean under this kernel."""
        z = self.base.pushed(s, z, "back") if self.tilted else z
        return self.base.expected_value(s, z, a)

    def excess_cost(self, s, delta, optimum=None):
        """A*."""
        if self.tilted and optimum is not None and self.constrained:
            nominal = self.base.pushed(s, optimum.next_mean, "back")
            optimum = optimum._replace(next_mean=nominal)
        return self.base.excess_cost(s, delta, optimum)

    def sample_noise(self, s, key, a=None):
        """w, or tilted noise from the same draws."""
        return self.base.tilted_noise(s, key) if self.tilted else self.base.sample_noise(s, key, a)
