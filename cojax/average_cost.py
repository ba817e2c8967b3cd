"""The average cost of a step as the objective: γ = 1, and no discount.

    λ* = min lim E Σ_{k<T} c(s_k, a_k)/T      h(s) + λ* = min_a c(s, a) + E h(f(s) + p g a + w)
    λ* = tr(P Σ)     h = sᵀP s     M = P⁻¹ + p² g R⁻¹gᵀ     a* = -p R⁻¹gᵀy,  y = M^{-1/2} u
    A*(s, a) = c + E h(s') - h(s) - λ* = |δ|²_R + p² |g δ|²_P

h is the bias, what a state costs beyond the average. Since Q ⪰ βP, β > 0, the optimal loop
contracts sᵀP s by 1-β in the mean, and over any T and for every policy

    E Σ_{k<T} (c_k - λ*) + E h(s_T) - h(s_0) = E Σ_{k<T} A*(s_k, a_k)

so the gap of its average cost is the average of its A*, exactly, which
:mod:`cojax.evaluation.average_cost` measures.
The construction is that of :mod:`cojax.quadratic_gaussian` at a look-ahead P̂ = P/γ, whose M, a* and
A* at any γ are those above.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from flax import struct

from cojax import inputs, linalg
from cojax.errors import InputError
from cojax.labels import Labels
from cojax.linalg import quadratic_form
from cojax.memory import Remembering, assembled, statement
from cojax.quadratic_gaussian import QuadraticGaussian
from cojax.types import Array, Float


@inputs.guarded
@struct.dataclass
class AverageCost(Remembering):
    """A system whose average cost is known. Build it with :func:`averaged`.

    ``value`` is the bias h, and ``expected_value`` E h(s'). Methods are of one state s (d,), action
    a or deviation ``delta`` = a - a* (m,), mean next state z and ``key``; bounds of a ``radius`` of
    the guard, states |s_i| <= ``start`` and actions within ``limit``.

    Attributes:
        parts: the system at a look-ahead P/γ, alone.
        gamma: (), 1.
        offset: (), h(0) = 0.
        average: (), λ*.
    """

    parts: tuple[QuadraticGaussian, ...]
    gamma: Float[Array, "*batch"]
    offset: Float[Array, "*batch"]
    average: Float[Array, "*batch"]
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Refuse replacement; raises InputError."""
        self._refuse(origin, "cojax.average_cost.averaged")

    @property
    def state_dim(self):
        """d."""
        return self.inner.state_dim

    @property
    def constant_curvature(self):
        """As of the discounted system."""
        return self.inner.constant_curvature

    def optimum(self, s):
        """f, a* and z* at γ = 1."""
        return self.inner.optimum(s)

    def actuate(self, s, a):
        """p g(s) a."""
        return self.inner.actuate(s, a)

    def stage_cost(self, s, a):
        """c = sᵀQ s + aᵀR a."""
        return self.inner.stage_cost(s, a)

    def value(self, s):
        """h = sᵀP s."""
        return quadratic_form(self.inner.P, s)

    def expected_value(self, s, z, a=None):
        """E h(z + w) = zᵀP z + λ*."""
        return quadratic_form(self.inner.P, z) + self.average

    def excess_cost(self, s, delta, optimum=None):
        """A* = |δ|²_R + p² |g δ|²_P."""
        return self.inner.excess_cost(s, delta)

    def state_bound(self, radius):
        """|s_i| <= radius sqrt((P⁻¹)_ii)."""
        return self.inner.state_bound(radius)

    def reach(self, radius, start, limit):
        """That of the system."""
        return self.inner.reach(radius, start, limit)

    def sample_noise(self, s, key, a=None):
        """One draw of w."""
        return self.inner.sample_noise(s, key)

    def initial_law(self, law=None, memory=None):
        """The ``law`` of s_0, by default the family's; there is no ``memory``."""
        return self.inner.geometry.initial_law(self.gamma.dtype) if law is None else law

    @property
    def noise_power(self):
        """λ*."""
        return self.average

    def least_cost(self, s):
        """sᵀQ s."""
        return quadratic_form(self.inner.Q, s)

    def labels(self) -> Labels:
        """Those of the family."""
        return self.inner.labels()


def averaged(system: QuadraticGaussian) -> AverageCost:
    """The system of the average cost, of family, P, Q, R, p and noise of a discounted ``system``;
    its drift is that of γ = 1.

    Raises InputError, one line, for a system of another class, and for Q that is not at least βP
    with β > 0: no average would then be reached.
    """
    stated = statement("averaged", system)
    if type(system) is not QuadraticGaussian:
        raise InputError(
            f"averaged: expected no system of a class of its own, got {type(system).__name__}"
        )
    contraction(system)
    P = linalg.to_full(stated["P"])
    average = float(np.sum(P * linalg.to_full(stated["Sigma"])))
    inner = assembled(stated | {"P_hat": P / stated["gamma"], "noise_cost": average})
    one, zero, average = (linalg.to_device(x, system.gamma.dtype) for x in (1.0, 0.0, average))
    return AverageCost(parts=(inner,), gamma=one, offset=zero, average=average)


def contraction(system: QuadraticGaussian) -> float:
    """The largest β with Q ⪰ βP of a ``system``. Raises InputError where it is not positive."""
    P, Q = (linalg.to_full(np.asarray(x, np.float64)) for x in (system.P, system.Q))
    beta = linalg.largest_share(Q, P)
    if beta <= 1e-12:
        raise InputError(f"Q: expected βP ⪯ Q with β > 0, got β = {beta:.3g}")
    return beta
