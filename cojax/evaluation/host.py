"""Policies that run on the host: NumPy in, NumPy out, one call a step for all trials."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from cojax.inputs import InputError


@dataclasses.dataclass(frozen=True)
class HostPolicy:
    """A policy outside of JAX. The evaluator steps all trials in one compiled call and asks it
    for all actions in between; streams and metrics are those of every other policy.

    Attributes:
        function: observations (B, d) -> actions (B, m), in the units of the environment.
        name: how tables call it.
    """

    function: Callable[[np.ndarray], Any]
    name: str

    def actions(self, obs: np.ndarray, num_actions: int) -> np.ndarray:
        """Actions (B, m), m = ``num_actions``, at observations ``obs`` (B, d).

        Raises ValueError, one line, for another shape, what is no number, and where the function
        fails.
        """
        try:
            actions = np.asarray(self.function(obs))
        except InputError:
            raise
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"policy {self.name}: it failed on observations of shape {obs.shape}: {reason}"
            ) from error
        expected = (len(obs), num_actions)
        if actions.shape != expected or actions.dtype.kind not in "iuf":
            raise InputError(
                f"policy {self.name}: expected actions of shape {expected}, numbers, "
                f"got {actions.shape} of {actions.dtype}"
            )
        return actions


def host_policy(value: Any, name: str | None = None, batched: bool = False) -> HostPolicy:
    """Wrap an object with ``predict``, a module of PyTorch, or a NumPy function.

    Args:
        value: an object whose ``predict(observations)`` gives actions, or (actions, state) as
            Stable-Baselines3 does (``deterministic=True`` is passed where it is known); or a
            function of the observation. A module of PyTorch is given observations (B, d) as a
            tensor of its own dtype on its own device, without gradients, in evaluation mode.
        name: how tables call it.
        batched: whether the function takes observations (B, d) and gives actions (B, m), instead
            of (d,) and (m,). ``predict`` always does.

    Policies with a memory of their own are not supported: trials run side by side.
    """
    own = getattr(value, "__name__", type(value).__name__)
    if is_torch_module(value):
        return HostPolicy(_torch(value), name or own)
    if not hasattr(value, "predict"):
        return HostPolicy(value if batched else _one_by_one(value), name or own)
    # learned in the [-1, 1] of an adapter: cojax.adapters.gymnasium.ActionBox
    scale = getattr(getattr(value, "action_space", None), "scale", None)
    options = {"deterministic": True} if _takes(value.predict, "deterministic") else {}

    def predict(obs: np.ndarray) -> Any:
        out = value.predict(obs, **options)
        action = out[0] if isinstance(out, tuple) else out
        return action if scale is None else scale * np.asarray(action)

    return HostPolicy(predict, name or own)


def is_torch_module(value: Any) -> bool:
    """Whether something is a module of PyTorch, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _torch(module: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Observations (B, d) -> actions (B, m) of a module of PyTorch; its mode is left as it was."""
    torch = sys.modules["torch"]

    def actions(obs: np.ndarray) -> np.ndarray:
        like = next(module.parameters(), None)
        given = torch.from_numpy(np.array(obs))
        training = module.training
        module.eval()
        try:
            with torch.no_grad():
                out = module(given if like is None else given.to(like.device, like.dtype))
        finally:
            module.train(training)
        return out.detach().cpu().numpy()

    return actions


def is_host(value: Any) -> bool:
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


def _one_by_one(function: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], Any]:
    def over_batch(obs: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(function(one)) for one in obs])

    return over_batch


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
