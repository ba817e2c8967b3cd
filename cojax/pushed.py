"""A system that a hidden disturbance pushes, with the Bayes optimum over all histories, exactly.

    s' = f(s) + p g(s)(a + n) + w     n = E z + w_a     c = q(s) + (a + n)ᵀR (a + n)

z has a law of its own (:mod:`cojax.belief`) and is not seen; s is. The step shows n, by s', and
the belief b of z follows from the n seen, whatever was done: information is free. With
v = a + E E[z|b] and S = Cov(n|b) Bellman's equation is the paper's in v,

    V*(s, b) = sᵀP s + b_0 + r(b)     a* = a_s(s) - E E[z|b]     A* as without z

a_s being optimal without z. Where gᵀP g is constant q = sᵀQ s, the informed problem (z seen) is
solved by the same formula, and r is what not knowing costs: V* - V_inf, the same for all policies
(:mod:`cojax.evaluation.hidden`). Where it varies the price of the spread depends on s, and

    q(s) = sᵀQ s + c0 - γp² tr(gᵀP g S)     c0 >= its supremum     (1-γ) b = c0 + tr(R S) + γ tr(PΣ)

which asks for one S for ever: Kalman's, from the stationary covariance on; r is 0, and no value of
the informed problem is known.

The state is x = (s, b, z, n). Observations are s alone, or s and b with ``observe="belief"``, the
upper yardstick. The cost is a function of s, a and s', and so is what ends an episode: neither
tells more of z than s does. Bellman's equation holds given the history, not given z: certificates
are about ``known``, the same problem for one who sees (s, b) and draws n by b.

Not exact, and refused: w on rows that actions push by a g(s) that varies (what is learned of z then
depends on the path, and so on the actions), hidden gains, drifts or rotation angles.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct

from cojax import inputs
from cojax.belief import Filter, FirstBelief, FirstHidden, farthest_push
from cojax.distinct import of_another
from cojax.errors import InputError
from cojax.labels import Labels
from cojax.linalg import quadratic_form
from cojax.memory import Remembering
from cojax.quadratic import QuadraticGaussian
from cojax.system import Optimum, next_mean
from cojax.types import Array, Float

Shown = Literal["state", "belief"]


class Pushed(Remembering):
    """What both views of the problem share. Methods are of one state x, action a or deviation
    ``delta`` = a - a* (m,), and ``key``; bounds of a ``radius`` of the guard, states
    |x_i| <= ``start`` and actions within ``limit``.

    Attributes:
        filter: the law of z, and what is known of it.
        spent: (m, m), p²gᵀP g where it is constant; else that of g = its largest, times S.
        floor: (), c0.
        unknown: (), r of the Kalman filter.
        most: (), the largest tr(B E Cov(z|b) Eᵀ) of the other filters.
    """

    filter: Filter
    spent: Float[Array, "*batch m m"]
    floor: Float[Array, "*batch"]
    unknown: Float[Array, "*batch"]
    most: Float[Array, "*batch"]

    @property
    def constant_curvature(self):
        """As without z."""
        return self.inner.constant_curvature

    def scattered(self, s: Float[Array, "d"], S: Float[Array, "m m"]) -> Float[Array, ""]:
        """p² tr(gᵀP g S), ``S`` being Cov(n|b)."""
        geometry = self.inner.geometry
        if geometry.constant_input:
            return jnp.sum(self.spent * S)
        return quadratic_form(self.spent, geometry.actuate_transpose(s, jnp.ones_like(s)))

    def charge(self, s: Float[Array, "d"], v: Float[Array, "m"]) -> Float[Array, ""]:
        """q(s) + vᵀR v."""
        cost = self.inner.stage_cost(s, v)
        if self.inner.geometry.constant_input:
            return cost
        return cost + (self.floor - self.gamma * self.scattered(s, self.spent))

    def least_cost(self, s):
        """sᵀQ s."""
        return quadratic_form(self.inner.Q, s[: self.inner.state_dim])

    def size(self, s):
        """sᵀP s."""
        return quadratic_form(self.inner.P, s[: self.inner.state_dim])

    @property
    def noise_power(self):
        """At the most: (1-γ) b/γ, and what r may move."""
        return (1.0 / self.gamma - 1.0) * self.offset + self.most / self.gamma

    def believed(self, x: Float[Array, "n"]) -> tuple[Float[Array, "d"], Float[Array, "b"]]:
        """s and b."""
        d = self.inner.state_dim
        return x[:d], x[d : d + self.filter.belief_dim]

    def value(self, s):
        """V* = sᵀP s + b + r(b)."""
        s, b = self.believed(s)
        return quadratic_form(self.inner.P, s) + (self.offset + self.filter.price(b))

    def excess_cost(self, s, delta, optimum=None):
        """A* = |δ|²_R + γ p² |g δ|²_P."""
        return self.inner.excess_cost(s[: self.inner.state_dim], delta)

    def state_bound(self, radius):
        """That of s; of the rest about how far it goes."""
        b, z = self.filter.bounds()
        every = [self.inner.state_bound(radius), b, z, farthest_push(self.filter)]
        return jnp.concatenate(every)[: self.state_dim]

    def reach(self, radius, start, limit):
        """That of s under actions within ``limit`` and pushes; of the rest about how far it goes,
        but not less than ``start``.
        """
        pushed, d = farthest_push(self.filter), self.inner.state_dim
        b, z = self.filter.bounds()
        s = self.inner.reach(radius, start[:d], limit + pushed)
        rest = jnp.concatenate([b, z, pushed])[: self.state_dim - d]
        return jnp.concatenate([s, jnp.maximum(rest, start[d:])])


@inputs.guarded
@struct.dataclass
class Believed(Pushed):
    """The problem of one who knows (s, b): x = (s, b), and n is drawn by b. Made by
    :attr:`Hidden.known`.

    Attributes:
        parts: the system without z, alone.
        gamma: (), discount.
        offset: (), b.
        filter, spent, floor, unknown, most: see :class:`Pushed`.
    """

    parts: tuple[QuadraticGaussian, ...]
    gamma: Float[Array, "*batch"]
    offset: Float[Array, "*batch"]
    filter: Filter
    spent: Float[Array, "*batch m m"]
    floor: Float[Array, "*batch"]
    unknown: Float[Array, "*batch"]
    most: Float[Array, "*batch"]
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Refuse replacement; raises InputError."""
        self._refuse(origin, "cojax.hidden")

    @property
    def state_dim(self):
        """d + the entries of b."""
        return self.inner.state_dim + self.filter.belief_dim

    def optimum(self, s):
        """That of the system, less E E[z|b]; b goes its own way."""
        s, b = self.believed(s)
        at, led, ahead = self.inner.optimum(s), self.filter.predicted(b), self.filter.ahead(b)
        drift = at.drift + self.inner.push(s, led)
        return Optimum(
            jnp.concatenate([drift, ahead]),
            at.action - led,
            jnp.concatenate([at.next_mean, ahead]),
        )

    def actuate(self, s, a):
        """(p g(s) a, 0)."""
        s, b = self.believed(s)
        return jnp.concatenate([self.inner.actuate(s, a), jnp.zeros_like(b)])

    def stage_cost(self, s, a):
        """E[c|b] = q(s) + vᵀR v + tr(R S)."""
        s, b = self.believed(s)
        R, S = self.inner.R, self.filter.spread(b)
        spread = jnp.sum(R * (jnp.diagonal(S) if R.ndim == 1 else S))
        return self.charge(s, a + self.filter.predicted(b)) + spread

    def expected_value(self, s, z, a=None):
        """E V*(z + w), n and w drawn."""
        (s, b), mean = self.believed(s), self.believed(z)[0]
        known = quadratic_form(self.inner.P, mean) + self.inner.noise_power
        known = known + self.scattered(s, self.filter.spread(b))
        return known + (self.offset + self.filter.price_ahead(b))

    def noise_price(self, s, a):
        """γ (E V*(z + w) - V*(z)) - (1-γ) b."""
        z = next_mean(self, s, a, self.optimum(s))
        added = self.expected_value(s, z, a) - self.value(z)
        return self.gamma * added - (1.0 - self.gamma) * self.offset

    def sample_noise(self, s, key, a=None):
        """p g (n - E n) and w; what n moves b, less its mean."""
        s, b = self.believed(s)
        n = self.filter.draw(b, jax.random.fold_in(key, 2))
        pushed = self.inner.push(s, n - self.filter.predicted(b))
        learned = self.filter.update(b, n) - self.filter.ahead(b)
        return jnp.concatenate([self.inner.sample_noise(s, key) + pushed, learned])

    def project(self, s):
        """s, and the nearest belief."""
        s, b = self.believed(s)
        return jnp.concatenate([s, self.filter.project(b)])

    def initial_memory(self):
        """b_0."""
        return FirstBelief(self.filter)

    def labels(self) -> Labels:
        """Those of the family, and of the belief."""
        states, actions = self.inner.geometry.labels()
        return [*states, *self.filter.names()], actions


@inputs.guarded
@struct.dataclass
class Hidden(Pushed):
    """A system that a hidden disturbance pushes, x = (s, b, z, n). Build it with
    :mod:`cojax.hidden`: ``hidden_disturbance``, ``hidden_constant`` or ``hidden_hypotheses``.

    Attributes:
        parts: the system without z, alone.
        gamma: (), discount.
        offset: (), b.
        filter, spent, floor, unknown, most: see :class:`Pushed`.
        observe: "state", or "belief" for s and b.
    """

    parts: tuple[QuadraticGaussian, ...]
    gamma: Float[Array, "*batch"]
    offset: Float[Array, "*batch"]
    filter: Filter
    spent: Float[Array, "*batch m m"]
    floor: Float[Array, "*batch"]
    unknown: Float[Array, "*batch"]
    most: Float[Array, "*batch"]
    observe: Shown = struct.field(pytree_node=False, default="state")
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Refuse replacement; raises InputError."""
        self._refuse(origin, "cojax.hidden")

    @property
    def state_dim(self):
        """d, the entries of b and z, and m."""
        known = self.inner.state_dim + self.filter.belief_dim
        return known + self.filter.hidden_dim + self.inner.action_dim

    @property
    def observed_dim(self):
        """d, and those of b where they are shown."""
        shown = self.filter.belief_dim if self.observe == "belief" else 0
        return self.inner.state_dim + shown

    @property
    def known(self) -> Believed:
        """The problem of one who knows (s, b)."""
        fields = of_another(self)
        return Believed(**{n: x for n, x in fields.items() if n not in ("observe", "origin")})

    @property
    def solved_informed(self) -> bool:
        """Whether the value of the problem with z seen is known: where gᵀP g is constant."""
        return self.inner.geometry.constant_input

    def price_of_not_knowing(self, x: Float[Array, "n"]) -> Float[Array, ""]:
        """V*(s, b) - E[V_inf(s, z)|b] = r(b) of one state ``x``. Raises InputError where it is not
        known.
        """
        if not self.solved_informed:
            raise InputError(
                "price_of_not_knowing: expected a g that does not depend on the state, with which "
                f"the informed problem is solved, got {type(self.inner.geometry).__name__}"
            )
        return self.unknown + self.filter.price(self.believed(x)[1])

    def split(self, x: Float[Array, "n"]) -> tuple[Float[Array, "n"], ...]:
        """s, b, z and n."""
        d, k, h = self.inner.state_dim, self.filter.belief_dim, self.filter.hidden_dim
        return x[:d], x[d : d + k], x[d + k : d + k + h], x[d + k + h :]

    def optimum(self, s):
        """That of the system, less E E[z|b]; where n moves s and b, and where z goes."""
        s, b, z, n = self.split(s)
        at, led, following = self.inner.optimum(s), self.filter.predicted(b), self.filter.moved(z)
        rest = [self.filter.update(b, n), following, self.filter.pushed(following)]
        drift = at.drift + self.inner.push(s, n)
        mean = at.next_mean + self.inner.push(s, n - led)
        return Optimum(
            jnp.concatenate([drift, *rest]), at.action - led, jnp.concatenate([mean, *rest])
        )

    def actuate(self, s, a):
        """(p g(s) a, 0)."""
        s, *rest = self.split(s)
        return jnp.concatenate([self.inner.actuate(s, a), *map(jnp.zeros_like, rest)])

    def stage_cost(self, s, a):
        """c = q(s) + (a + n)ᵀR (a + n), of the n that acts."""
        s, _, _, n = self.split(s)
        return self.charge(s, a + n)

    def expected_value(self, s, z, a=None):
        """E V*(z + w), n known and the next one drawn."""
        mean, b = self.believed(z)
        known = quadratic_form(self.inner.P, mean) + self.inner.noise_power
        return known + (self.offset + self.filter.price(b))

    @property
    def follows_mean(self):
        """No: V* is that of the belief."""
        return False

    def sample_noise(self, s, key, a=None):
        """w; 0 for b; what z moves beyond its mean, and that times E and w_a, by a folded key."""
        s, b, z, _ = self.split(s)
        jolt, shake = self.filter.jolt(z, jax.random.fold_in(key, 2))
        w, push = self.inner.sample_noise(s, key), self.filter.pushed(jolt) + shake
        return jnp.concatenate([w, jnp.zeros_like(b), jolt, push])

    def project(self, s):
        """s and n, the nearest belief and the nearest z."""
        s, b, z, n = self.split(s)
        z = self.filter.project_hidden(z)
        return jnp.concatenate([s, self.filter.project(b), z, n])

    def initial_memory(self):
        """b_0, z_0 and n_0."""
        return FirstHidden(self.filter)

    def labels(self) -> Labels:
        """Those of the family, of the belief, of z and of n."""
        states, actions = self.inner.geometry.labels()
        hidden = [f"hidden {i + 1}" for i in range(self.filter.hidden_dim)]
        return [*states, *self.filter.names(), *hidden, *(f"push on {a}" for a in actions)], actions
