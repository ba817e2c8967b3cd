"""What a family is: the input map g(s), the rotation field S(s), and what is usual for it."""

from __future__ import annotations

import abc
import dataclasses
import inspect
from collections.abc import Mapping
from typing import ClassVar, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from cojax import inputs, labels, linalg, precision
from cojax.distinct import Distinct
from cojax.errors import InputError, one_of
from cojax.initial import InitialLaw
from cojax.types import Array, Float, Json, Option, Options

Knob: TypeAlias = Float[Array, "*batch"] | float

BASE = ("P", "Q", "R", "gamma", "p")
SWITCHES = ("law", "state_noise", "action_noise", "state_columns", "limit")
USUAL: Options = {
    "P": 1.0,
    "Q": None,
    "R": 1.0,
    "gamma": 0.99,
    "p": 1.0,
    "Sigma": 0.0,
    "share": 0.5,
}


class Family(Distinct, abc.ABC):
    """A page on a family: input map, rotation field, initial law, and its ways.

    Implementations are pytrees: knobs are leaves (swept), dimensions static, all with defaults.
    :func:`cojax.rebuild` changes knobs. Methods are of one state s (d,), action a (m,), vectors x
    and v (d,), and the control strength p, (). Only what is abstract must be given: the rest says
    how systems are built, generated, drawn and named where a family has its own way. Users write
    subclasses of :class:`cojax.quadratic.Geometry`, which builds systems of it.
    """

    family: ClassVar[str]
    dimensions: ClassVar[tuple[str, ...]]  # the static fields: they determine shapes
    settings: ClassVar[tuple[str, ...]] = ()  # arguments of ``defaults`` beside the dimensions
    gains: ClassVar[tuple[str, ...]] = ()  # the leaves that scale the rotations
    horizon: ClassVar[int] = 512  # steps of an episode, unless stated
    action_limit: ClassVar[float | None] = 2.0  # the box of the actions, unless stated
    positive: ClassVar[tuple[str, ...]] = ()  # the knobs that are > 0
    limits: ClassVar[Mapping[str, tuple[float, float]]] = {}  # of knobs in closed intervals
    target: ClassVar[str | None] = None  # argument of build that chooses Q and R: see tune
    target_check: ClassVar[str] = "target"  # what a certificate calls the check that they meet it
    ranges: ClassVar[Mapping[str, Json]] = {  # what a generator draws, unless stated
        "p": {"uniform": [0.5, 1.0]},
        "Q": {"uniform": [0.4, 0.7]},
    }
    constant_input: ClassVar[bool]  # g does not depend on s
    one_row_each: ClassVar[bool]  # each action drives one row of its own: g R⁻¹ gᵀ is diagonal

    @property
    @abc.abstractmethod
    def state_dim(self) -> int:
        """d."""

    @property
    @abc.abstractmethod
    def action_dim(self) -> int:
        """m."""

    @abc.abstractmethod
    def actuate(self, s: Float[Array, "d"], a: Float[Array, "m"]) -> Float[Array, "d"]:
        """g(s) a, without p."""

    @abc.abstractmethod
    def actuate_transpose(self, s: Float[Array, "d"], v: Float[Array, "d"]) -> Float[Array, "m"]:
        """g(s)ᵀ v, without p."""

    @abc.abstractmethod
    def rotate(
        self, s: Float[Array, "d"], x: Float[Array, "d"], p: Float[Array, ""]
    ) -> Float[Array, "d"]:
        """S_p(s) x for an orthogonal field S."""

    @abc.abstractmethod
    def input_norm(self) -> float:
        """sup_s |g(s)|₂, on the host."""

    def largest_input(self, dtype: DTypeLike) -> Float[Array, "m d"]:
        """sup_s |g(s)ᵀ|, entry by entry, without p, in a ``dtype``; where the family does not say,
        it is met in the origin.
        """
        s, eye = jnp.zeros(self.state_dim, dtype), jnp.eye(self.action_dim, dtype=dtype)
        return jnp.abs(jax.vmap(lambda a: self.actuate(s, a))(eye))

    @abc.abstractmethod
    def noise_order(self) -> tuple[int, ...]:
        """All rows, those that carry noise first: see :class:`cojax.noise.DiagonalNoise`."""

    @abc.abstractmethod
    def initial_law(self, dtype: DTypeLike | None = None) -> InitialLaw:
        """The law of s_0, its leaves in a ``dtype``."""

    @classmethod
    def fields(cls) -> dict[str, float]:
        """Knobs and dimensions, and what each is unless given."""
        fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        return {f.name: f.default for f in fields if f.name != "type_name"}  # pyright: ignore

    @classmethod
    def of(cls, values: Mapping[str, Json]) -> Self:
        """The geometry of those of ``values`` that are knobs and dimensions of it."""
        return cls(**{name: values[name] for name in cls.fields() if name in values})

    @classmethod
    def defaults(cls, **given: Option) -> Options:
        """P, R, gamma, Sigma, p, ``share``, target and knobs where ``build`` is not told.

        ``given`` are the dimensions, and those of ``settings`` that build was told. Where this is
        silent: I, I, 0.99, 0, 1, 0.5, none and the defaults of the fields.
        """
        return {}

    @classmethod
    def completed(cls, **options: Option) -> Options:
        """What ``build`` takes, in full: ``options``, and what is usual where they are silent.

        Raises ValueError, one line, for unknown names and unusable numbers.
        """
        for name in options:
            one_of(f"{cls.family}.build", name, cls.arguments())
        given = {name: value for name, value in options.items() if value is not None}
        if "Q" in given and cls.target in given:
            raise InputError(f"{cls.target}: expected none where Q is given, since it chooses Q")
        fields = cls.fields()
        known = {n: cls.checked(n, given.pop(n, fields[n])) for n in cls.dimensions}
        settings = {n: given.pop(n) for n in cls.settings if n in given}
        usual = cls.defaults(**known, **settings)
        if "Q" in given:
            usual.pop(cls.target or "", None)
        rest = USUAL | usual | given
        rest["gamma"] = inputs.discount("gamma", rest["gamma"])
        rest |= known
        names = ("p", *fields, *([cls.target] if cls.target in rest else []))
        return rest | {name: cls.checked(name, rest.get(name, fields.get(name))) for name in names}

    @classmethod
    def checked(cls, name: str, value: object, prefix: str = "") -> float:
        """A dimension, knob, p or target as a whole number or a float; raises ValueError, one line,
        in which it is called ``prefix`` and its name.
        """
        if name in cls.dimensions:
            return inputs.whole(prefix + name, value, 1)
        low = 0.0 if name in ("p", *cls.positive, cls.target) else -np.inf
        high = 1.0 if name == "p" else np.inf
        if name in cls.limits:
            return inputs.number(prefix + name, value, *cls.limits[name])
        return inputs.number(prefix + name, value, low, high, low_open=low == 0.0)

    @classmethod
    def arguments(cls) -> tuple[str, ...]:
        """Names of what ``build`` takes."""
        own = inspect.signature(cls.build).parameters  # pyright: ignore[reportAttributeAccessIssue]
        if "options" not in own:
            return tuple(own)
        target = () if cls.target is None else (cls.target,)
        rest = ("Sigma", *SWITCHES, "parameterization", "dtype")
        return (*cls.fields(), *cls.settings, *target, *BASE, *rest)

    def tune(
        self, P: np.ndarray, R: np.ndarray, *, gamma: float, p: float, target: float
    ) -> tuple[np.ndarray, float]:
        """R, and β of Q = βP, that meet the ``target`` of a family that has one, at P, R, gamma
        and p as they are given; raises ValueError where nothing does.
        """
        raise NotImplementedError

    @classmethod
    def draw_P(cls, d: int, rng: np.random.Generator) -> np.ndarray | None:
        """A random P, (d, d), of the family's own, from ``rng``; None where there is none."""
        return None

    def labels(self) -> labels.Labels:
        """Names and units of the d entries of a state, which are the observation, and of the m of
        an action, such as "θ_1 [rad]"; a family of one's own says them here.
        """
        sizes = {name: getattr(self, name) for name in self.dimensions}
        return labels.of(self.family, sizes, self.state_dim, self.action_dim)

    def picture(self) -> tuple[str, Options]:
        """Which picture of :mod:`cojax.report.drawing` shows a state, and its arguments."""
        return "bars", {"dim": self.state_dim}

    @classmethod
    def setting(cls, id: str) -> str:
        """A word for the setting of a fixture called ``id``, beside its size and p; or ""."""
        return ""

    def constant_D(self, p: float, R_inverse: np.ndarray) -> np.ndarray:
        """p² g R⁻¹ gᵀ of a constant g, (d, d), or (d,) where it is diagonal; on the host.

        p is the control strength, and ``R_inverse`` R⁻¹, (m, m) or (m,).
        """
        with precision.x64():
            s = jnp.zeros(self.state_dim)
            eye = jnp.eye(self.action_dim)
            g = np.asarray(jax.vmap(lambda a: self.actuate(s, a))(eye)).T
        D = p**2 * g @ linalg.to_full(R_inverse) @ g.T
        diagonal = np.diagonal(D)
        return diagonal.copy() if np.array_equal(D, np.diag(diagonal)) else 0.5 * (D + D.T)
