"""From what a user calls policies to the groups of members that the program runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from cojax import streams
from cojax.action_lists import chosen
from cojax.envs import EnvParams, unstack
from cojax.errors import InputError
from cojax.evaluation.host import HostPolicy, host_policy, is_host, refuse_memory
from cojax.evaluation.named_systems import pairs
from cojax.evaluation.references import ORACLE, Act, ReferencePolicy, parse_policy
from cojax.evaluation.result import Member
from cojax.evaluation.rollout import PolicyGroup
from cojax.policy import Policy
from cojax.system import Optimum
from cojax.types import Array, PRNGKeyArray, PyTree

AnyPolicy = Policy | ReferencePolicy | HostPolicy
AXES = ("fixture", "hyperparameters", "seed")


@dataclasses.dataclass(frozen=True)
class Plain:
    """A function of (obs, key) as the ``apply`` of a :class:`cojax.policy.Policy`."""

    function: Callable[..., object]

    def __call__(self, params: PyTree, obs: Array, key: PRNGKeyArray) -> Array:
        """Return the function's action."""
        return jnp.asarray(self.function(obs, key))


@dataclasses.dataclass(frozen=True)
class Blind:
    """A policy's ``apply`` in the form of a reference's ``act``: it does not see the optimum."""

    apply: Callable[[PyTree, Array, PRNGKeyArray], Array]

    def __call__(self, params: PyTree, optimum: Optimum, s: Array, key: PRNGKeyArray) -> Array:
        """The action at s, (m,)."""
        return self.apply(params, s, key)


@dataclasses.dataclass(frozen=True)
class ByIndex:
    """An ``act`` that gives indices, as one that gives actions; its params come with the list."""

    act: Act

    def __call__(self, params: PyTree, optimum: Optimum, s: Array, key: PRNGKeyArray) -> Array:
        """The action at s, (m,)."""
        own, actions = params
        return chosen(actions, self.act(own, optimum, s, key))


@dataclasses.dataclass(frozen=True)
class PolicySet:
    """All policies of an evaluation, the oracle among them.

    Attributes:
        policies: in order; the oracle is last where nobody asked for it.
        members: of the policies that were asked for.
        oracle: index of the oracle on the member axis.
        order: where each member, the oracle included, stands among those of the program followed
            by those on the host.
    """

    policies: tuple[AnyPolicy, ...]
    members: tuple[Member, ...]
    oracle: int
    order: tuple[int, ...]

    @property
    def hosts(self) -> tuple[HostPolicy, ...]:
        """Policies that run on the host."""
        return tuple(policy for policy in self.policies if isinstance(policy, HostPolicy))

    def program(self, batch: EnvParams, indices: Sequence[int]) -> tuple[tuple, tuple]:
        """Groups and their params for a stacked batch: fixtures ``indices`` of all."""
        groups, group_params = [], []
        systems = unstack(batch)
        for policy in self.policies:
            if isinstance(policy, HostPolicy):
                continue
            if isinstance(policy, ReferencePolicy):
                made = [policy.make_params(one) for one in systems]
                params = jax.tree.map(lambda *leaves: jnp.stack(leaves)[:, None], *made)
                group = PolicyGroup(policy.act, 1, True)
            else:
                params, count, per_fixture = _expand(policy, indices)
                group = PolicyGroup(Blind(policy.apply), count, per_fixture)
            lead = 2 if group.per_fixture else 1
            one = jax.tree.map(lambda x, k=lead: jax.ShapeDtypeStruct(x.shape[k:], x.dtype), params)
            check_action(policy.name, group.act, one, systems[0])
            groups.append(group)
            group_params.append(params)
        return tuple(groups), tuple(group_params)


def by_fixture(policies: object, names: Sequence[str]) -> list[dict[str, object]] | None:
    """The policies of each fixture, where a policy is given for each by its name; else None.

    Raises InputError for a fixture that has none.
    """
    if not isinstance(policies, Mapping):
        return None
    if not any(isinstance(value, Mapping) for value in policies.values()):
        return None
    separate = []
    for place, fixture in enumerate(names):
        own: dict[str, object] = {}
        for name, value in policies.items():
            if isinstance(value, Mapping):
                if fixture not in value:
                    known = ", ".join(map(str, value))
                    raise InputError(
                        f"policy {name}: expected one for each fixture, got none for {fixture} "
                        f"(there are: {known})"
                    )
                value = value[fixture]
            elif isinstance(value, Policy) and "fixture" in value.axes:
                _members(name, value, len(names))
                value = value.member(fixture=place)
            own[str(name)] = value
        separate.append(own)
    return separate


def gather(policies: object, num_fixtures: int) -> PolicySet:
    """Name, check and line up policies.

    Raises ValueError for an empty list, an unknown name, something that is no policy, or axes
    that do not fit.
    """
    found = [as_policy(name, value) for name, value in pairs(policies)]
    if not found:
        raise InputError("policies: expected at least one policy, got an empty list")
    names = _distinct([policy.name for policy in found])
    members: list[Member] = []
    on_host: list[bool] = []
    oracle = None
    for name, policy in zip(names, found, strict=True):
        if isinstance(policy, Policy):
            members.extend(_members(name, policy, num_fixtures))
        else:
            if isinstance(policy, ReferencePolicy) and policy.act is ORACLE.act and oracle is None:
                oracle = len(members)
            members.append(Member(name))
        on_host.extend([isinstance(policy, HostPolicy)] * (len(members) - len(on_host)))
    if oracle is None:
        oracle = len(members)
        found.append(ORACLE)
        on_host.append(False)
    places = np.argsort(np.argsort(on_host, kind="stable"), kind="stable")
    return PolicySet(tuple(found), tuple(members), oracle, tuple(int(i) for i in places))


def as_policy(name: str | None, value: object) -> AnyPolicy:
    """A policy from a policy, a reference, a text or a function, under a name if one is given.

    Raises InputError, one line, for anything else, and for a memory that cannot be carried.
    """
    if isinstance(value, str):
        value = parse_policy(value)
    if isinstance(value, AnyPolicy):
        return value if name is None else dataclasses.replace(value, name=name)
    if is_host(value):
        return host_policy(value, name)
    if callable(value):
        own = name or getattr(value, "__name__", type(value).__name__)
        refuse_memory(value, own)
        return Policy(params=(), apply=Plain(value), name=own)
    raise InputError(
        "policies: expected a policy, the name of a reference, a JAX function of (obs, key), a "
        f"NumPy function of (obs), or an object with predict; got {type(value).__name__}"
    )


def jax_policy(value: object, expected: str) -> Policy | ReferencePolicy:
    """A policy of JAX, of one member or several, or the reference that a text names.

    Raises InputError, ``expected`` and what it got, for another thing.
    """
    value = parse_policy(value) if isinstance(value, str) else value
    if isinstance(value, Policy | ReferencePolicy):
        return value
    raise InputError(f"{expected}, got {type(value).__name__}")


def singles(policy: Policy | ReferencePolicy) -> list[Policy | ReferencePolicy]:
    """Every policy of a population, named by its place in it; anything else by itself."""
    if not isinstance(policy, Policy) or not policy.axes:
        return [policy]
    out = []
    for place in np.ndindex(*_axis_sizes(policy).values()):
        at = dict(zip(policy.axes, place, strict=True))
        label = ", ".join(f"{axis} {i}" for axis, i in at.items())
        out.append(dataclasses.replace(policy.member(**at), name=f"{policy.name} ({label})"))
    return out


def _distinct(names: list[str]) -> list[str]:
    """Number policies of one name, so that a table can tell them apart."""
    out, seen = [], {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return out


def _members(name: str, policy: Policy, num_fixtures: int) -> list[Member]:
    """The members of a population, settings outermost."""
    unknown = [axis for axis in policy.axes if axis not in AXES]
    if unknown or len(set(policy.axes)) < len(policy.axes):
        raise InputError(
            f"policy {name}: expected axes out of {list(AXES)}, got {list(policy.axes)}"
        )
    sizes = _axis_sizes(policy)
    if sizes.get("fixture", num_fixtures) != num_fixtures:
        raise InputError(
            f"policy {name}: it was trained on {sizes['fixture']} fixtures and is to be evaluated "
            f"on {num_fixtures}; give the same fixtures, or take members with policy.member(...)"
        )
    settings = range(sizes["hyperparameters"]) if "hyperparameters" in sizes else [None]
    seeds = range(sizes["seed"]) if "seed" in sizes else [None]
    told = dict(enumerate(policy.settings))
    return [
        Member(name, setting, seed, told.get(-1 if setting is None else setting, ()))
        for setting in settings
        for seed in seeds
    ]


def _axis_sizes(policy: Policy) -> dict[str, int]:
    """Length of each labelled axis; raises ValueError where leaves disagree."""
    lead = len(policy.axes)
    shapes = {np.shape(leaf)[:lead] for leaf in jax.tree.leaves(policy.params)}
    if not lead:
        return {}
    if len(shapes) != 1 or len(next(iter(shapes))) != lead:
        raise InputError(
            f"policy {policy.name}: expected leading axes {list(policy.axes)} on every parameter, "
            f"got {sorted(shapes)}"
        )
    return dict(zip(policy.axes, next(iter(shapes)), strict=True))


def _expand(policy: Policy, indices: Sequence[int]) -> tuple[PyTree, int, bool]:
    """Params with leading axes ([fixture,] members), the number of members, and which it is."""
    sizes = _axis_sizes(policy)
    order = [policy.axes.index(axis) for axis in AXES if axis in policy.axes]
    per_fixture = "fixture" in policy.axes
    count = int(np.prod([sizes[axis] for axis in AXES[1:] if axis in sizes], dtype=int))
    lead = len(policy.axes)

    def arrange(leaf):
        leaf = jnp.asarray(leaf)
        leaf = jnp.transpose(leaf, (*order, *range(lead, leaf.ndim)))
        rest = leaf.shape[lead:]
        if not per_fixture:
            return leaf.reshape(count, *rest)
        return leaf.reshape(leaf.shape[0], count, *rest)[jnp.asarray(indices)]

    return jax.tree.map(arrange, policy.params), count, per_fixture


def player(policy: Policy | ReferencePolicy, env_params: EnvParams) -> tuple[Act, PyTree]:
    """``(params, optimum, s, key) -> a``, hashable, and params, of one policy on one system.

    Raises InputError, one line, where its action is not one of the system.
    """
    if isinstance(policy, ReferencePolicy):
        act, own = policy.act, policy.make_params(env_params)
    else:
        act, own = Blind(policy.apply), policy.params
    if check_action(policy.name, act, own, env_params):
        return ByIndex(act), (own, env_params.system.actions)  # pyright: ignore
    return act, own


def check_action(name: str, act: Act, params: PyTree, env_params: EnvParams) -> bool:
    """Refuse a policy whose action for one observation is not a vector of the right length, nor,
    where the actions of the system are a list, an index into it: whether it is.

    ``params`` are those of ``act`` for one system, or their shapes. Raises InputError, one line.
    """
    system = env_params.system
    d, m, dtype = system.observed_dim, system.action_dim, system.gamma.dtype
    x, s, a = (jnp.zeros(n, dtype) for n in (system.state_dim, d, m))
    key = jax.eval_shape(lambda: streams.root_key(0))
    try:
        found = jax.eval_shape(act, params, Optimum(x, a, x), s, key)
    except (TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"policy {name}: it cannot take an observation of shape ({d},): {reason}"
        ) from error
    shape = getattr(found, "shape", None)
    listed = getattr(system, "actions", None) is not None
    if listed and shape == () and jnp.issubdtype(found.dtype, jnp.integer):  # pyright: ignore
        return True
    if shape != (m,):
        got = f"a {type(found).__name__}" if shape is None else shape
        raise InputError(f"policy {name}: expected an action of shape ({m},), got {got}")
    return False
