"""Systems that are another one in all but a few respects."""

from __future__ import annotations

# gamma and offset are those of the system beneath, not leaves of their own.
# pyright: reportIncompatibleVariableOverride=false
from cojax.system import System


class Delegated(System):
    """A system that is its ``base`` wherever a class does not say otherwise: dimensions, costs, V*,
    measures, feasible actions and bounds. Where a state goes, what an action is worth and what
    :class:`cojax.system.System` has by default are a class's own.

    Methods are of one state and action a; gradients have a ``mean`` and ``rms``; bounds are of a
    ``radius`` of the guard, states |x_i| <= ``start`` and actions within ``limit``.

    Attributes:
        base: the system.
    """

    base: System

    @property
    def gamma(self):
        """That of the base."""
        return self.base.gamma

    @property
    def offset(self):
        """That of the base."""
        return self.base.offset

    @property
    def state_dim(self):
        """d, of the base."""
        return self.base.state_dim

    @property
    def action_dim(self):
        """m, of the base."""
        return self.base.action_dim

    @property
    def constant_curvature(self):
        """Whether that of the base is."""
        return self.base.constant_curvature

    @property
    def constrained(self):
        """Whether the base is."""
        return self.base.constrained

    @property
    def measures(self):
        """Those of the base."""
        return self.base.measures

    @property
    def measures_known(self):
        """Whether those of the base are."""
        return self.base.measures_known

    def stage_cost(self, s, a):
        """c."""
        return self.base.stage_cost(s, a)

    def value(self, s):
        """V*."""
        return self.base.value(s)

    def feasible(self, a):
        """As of the base."""
        return self.base.feasible(a)

    def feasible_box(self):
        """As of the base."""
        return self.base.feasible_box()

    def downhill(self, mean, rms):
        """As of the base."""
        return self.base.downhill(mean, rms)

    def state_bound(self, radius):
        """That of the base."""
        return self.base.state_bound(radius)

    def reach(self, radius, start, limit):
        """That of the base."""
        return self.base.reach(radius, start, limit)
