"""Policies that run on the host: NumPy in, NumPy out, one call a step for all trials."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import numpy.typing as npt

from cojax.errors import InputError, one_line
from cojax.types import Float, PyTree

if TYPE_CHECKING:
    import torch  # pyright: ignore[reportMissingImports]

# methods by which objects empty a memory of their own
MEMORY = ("reset", "reset_state", "reset_hidden", "reset_memory", "init_hidden")
ADVICE = (
    "trials run side by side; give an object with predict(observations, state, episode_start) -> "
    "(actions, state), as Stable-Baselines3 has it, whose state has a row for each observation"
)


Act = Callable[[np.ndarray], object]  # observations (B, d) -> actions (B, m), checked afterwards


@dataclasses.dataclass(frozen=True)
class HostPolicy:
    """A policy outside of JAX. The evaluator steps all trials in one compiled call and asks it
    for all actions in between; streams and metrics are those of every other policy.

    Attributes:
        function: observations (B, d) -> actions (B, m), in the units of the environment.
        name: how tables call it.
        begin: where it has a memory: makes such a function with an empty one, for B trials that
            begin together; row i is the same trial in every call.
    """

    function: Act
    name: str
    begin: Callable[[], Act] | None = None

    def begun(self) -> HostPolicy:
        """The policy for trials that begin together, its memory empty."""
        return self if self.begin is None else dataclasses.replace(self, function=self.begin())

    def actions(
        self,
        obs: Float[np.ndarray, "B d"],
        num_actions: int,
        lists: Float[np.ndarray, "*B k m"] | None = None,
    ) -> Float[np.ndarray, "B m"]:
        """Actions, m = ``num_actions``, at observations; where there are ``lists`` of actions,
        one for all or each, those of the indices (B,) that the function may give instead.

        Both arrays are copies: the function may write into what it is given, and go on using what
        it gave.

        Raises ValueError, one line, for another shape, what is no number, an index that is not in
        the list, and where the function fails.
        """
        try:
            actions = np.array(self.function(np.array(obs)))
        except InputError as error:
            raise InputError(f"policy {self.name}: {error}") from None
        except Exception as error:
            where = f"policy {self.name}: it failed on observations of shape {obs.shape}"
            raise InputError(f"{where}: {one_line(error)}") from error
        if lists is not None and actions.shape == (len(obs),) and actions.dtype.kind in "iu":
            k, m = lists.shape[-2:]
            if not ((actions >= 0) & (actions < k)).all():
                raise InputError(
                    f"policy {self.name}: expected indices in [0, {k - 1}], got "
                    f"{actions.min()} … {actions.max()}"
                )
            own = np.broadcast_to(lists, (len(obs), k, m))
            return own[np.arange(len(obs)), actions]
        expected = (len(obs), num_actions)
        if actions.shape != expected or actions.dtype.kind not in "iuf":
            raise InputError(
                f"policy {self.name}: expected actions of shape {expected}, numbers, "
                f"got {actions.shape} of {actions.dtype}"
            )
        return inside(actions, obs.dtype)


def inside(actions: np.ndarray, dtype: npt.DTypeLike) -> np.ndarray:
    """Finite numbers beyond the range of a float ``dtype`` at its ends, where a cast gives ±inf."""
    largest = np.finfo(dtype).max
    if actions.dtype.kind != "f" or np.finfo(actions.dtype).max <= largest:
        return actions
    return np.where(np.isfinite(actions), np.clip(actions, -largest, largest), actions)


def host_policy(value: object, name: str | None = None, batched: bool = False) -> HostPolicy:
    """Wrap an object with ``predict``, a module of PyTorch, or a NumPy function.

    Args:
        value: an object whose ``predict(observations)`` gives actions, or (actions, state) as
            Stable-Baselines3 does; or a function of the observation. ``predict`` is passed what it
            names of ``deterministic=True``, ``state``, what it gave last (None at the start of a
            trial), and ``episode_start`` (B,), so that a memory is carried from step to step. A
            module of PyTorch is given observations (B, d) as a tensor of its own dtype on its own
            device, without gradients, in evaluation mode.
        name: how tables call it.
        batched: whether the function takes observations (B, d) and gives actions (B, m), instead
            of (d,) and (m,). ``predict`` always does.

    Trials run side by side, so a memory must have a row for each. Raises ValueError, one line, for
    one that cannot be carried: modules with a recurrent layer, objects with a ``reset``, and a
    ``predict`` that gives a state and takes none.
    """
    own = name or getattr(value, "__name__", type(value).__name__)
    predict = getattr(value, "predict", None)
    if not _takes(predict, "state"):
        refuse_memory(value, own)
        if is_torch_module(value):
            _refuse_recurrent(value, own)
            return HostPolicy(partial(_torch, value), own)
    if predict is None and callable(value):
        return HostPolicy(partial(_whole if batched else _one_by_one, value), own)
    if predict is None:
        raise InputError(f"policy {own}: expected a function, or an object with predict")
    # learned in the [-1, 1] of an adapter: cojax.adapters.gymnasium.ActionBox
    scale = getattr(getattr(value, "action_space", None), "scale", None)
    begin = partial(_predict, predict, scale)
    return HostPolicy(lambda obs: begin()(obs), own, begin)


def _predict(predict: Callable[..., object], scale: npt.ArrayLike | None) -> Act:
    """Observations (B, d) -> actions (B, m), for trials that begin together."""
    fixed = {"deterministic": True} if _takes(predict, "deterministic") else {}
    carries, told = _takes(predict, "state"), _takes(predict, "episode_start")
    state, first = None, True

    def actions(obs):
        nonlocal state, first
        own = {"state": state} if carries else {}
        own |= {"episode_start": np.full(len(obs), first)} if told else {}
        out = predict(obs, **fixed, **own)
        action, *rest = out if isinstance(out, tuple) else (out,)
        state, first = rest[0] if rest else None, False
        if not (carries or state is None or (isinstance(state, tuple | list | dict) and not state)):
            raise InputError(f"predict gives a state and takes none; {ADVICE}")
        return action if scale is None else scale * np.asarray(action)

    return actions


def refuse_memory(value: object, name: str) -> None:
    """Raise InputError for an object, or a method of one, that has a memory of its own."""
    while isinstance(value, partial):
        value = value.func
    value = getattr(value, "__self__", value)
    found = [method for method in MEMORY if callable(getattr(value, method, None))]
    if found and not inspect.ismodule(value):
        raise InputError(
            f"policy {name}: it has a memory of its own, for it has a method {found[0]}; {ADVICE}"
        )


def _refuse_recurrent(module: torch.nn.Module, name: str) -> None:
    """Raise InputError for a module of PyTorch with a memory."""
    rnn = sys.modules["torch"].nn.modules.rnn
    kinds = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")
    for layer, part in module.named_modules():
        kind = getattr(part, "original_name", type(part).__name__)  # of a scripted module
        if isinstance(part, rnn.RNNBase | rnn.RNNCellBase) or kind in kinds:
            where = f"{layer}, {kind}" if layer else kind
            raise InputError(f"policy {name}: it has a recurrent layer ({where}); {ADVICE}")


def is_torch_module(value: object) -> TypeGuard[torch.nn.Module]:
    """Whether something is a module of PyTorch, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _torch(module: torch.nn.Module, obs: np.ndarray) -> np.ndarray:
    """Actions of a module of PyTorch at observations; its mode is left as it was."""
    torch = sys.modules["torch"]
    like = next(module.parameters(), None)
    given = torch.from_numpy(obs)
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            out = module(given if like is None else given.to(like.device, like.dtype))
    finally:
        module.train(training)
    return _alone(out, 2).detach().cpu().numpy()


def is_host(value: object) -> bool:
    """Whether something is meant to run on the host: it has ``predict``, is a module of PyTorch,
    or takes one argument.
    """
    if callable(getattr(value, "predict", None)) or is_torch_module(value):
        return True
    if not callable(value):
        return False
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in found):
        return False
    return sum(p.kind in positional and p.default is p.empty for p in found) == 1


def _whole(function: Act, obs: np.ndarray) -> object:
    return _alone(function(obs), 2)


def _one_by_one(function: Act, obs: np.ndarray) -> np.ndarray:
    # copies: a function may give the same array every time
    return np.stack([np.array(_alone(function(one), 1)) for one in obs])


def _alone(out: PyTree, ndim: int) -> PyTree:
    """What a function gives, unless it is an action, of ``ndim`` axes, and something beside it."""
    if isinstance(out, tuple) and any(np.ndim(part) >= ndim for part in out):
        raise InputError(f"it gives a tuple of {len(out)} where actions were expected; {ADVICE}")
    return out


def _takes(function: object, name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters  # pyright: ignore
    except (TypeError, ValueError):
        return False
