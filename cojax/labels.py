"""What the entries of states and actions are called, and their units; nothing here imports JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Labels = tuple[list[str], list[str]]


def of(family: str, sizes: Mapping[str, int], d: int, m: int) -> Labels:
    """Names and units of the d entries of a state and the m of an action, such as "θ_1 [rad]".

    ``sizes`` are the dimensions of the family. One that is not ours has s_1 … s_d and a_1 … a_m.
    """
    if family in KNOWN:
        return KNOWN[family](sizes)
    return [f"s_{i + 1}" for i in range(d)], [f"a_{i + 1}" for i in range(m)]


def _arm(sizes: Mapping[str, int]) -> Labels:
    joints = range(1, sizes["n"] + 1)
    states = [word for i in joints for word in (f"θ_{i} [rad]", f"ω_{i} [rad/step]")]
    return states, [f"torque_{i} [-]" for i in joints]


def _isotropic(sizes: Mapping[str, int]) -> Labels:
    entries = range(1, sizes["n"] + 1)
    return [f"x_{i} [-]" for i in entries], [f"a_{i} [-]" for i in entries]


def _kinematic_arm(sizes: Mapping[str, int]) -> Labels:
    joints = range(1, sizes["n"] + 1)
    states = [word for i in joints for word in (f"θ_{i} [rad]", f"ω_{i} [rad/s]")]
    return states, [f"torque_{i} [rad/s²]" for i in joints]


def _manipulator(sizes: Mapping[str, int]) -> Labels:
    joints = range(1, sizes["n"] + 1)
    states = [f"θ_{i} [rad]" for i in joints] + [f"ω_{i} [rad/s]" for i in joints]
    return states, [f"torque_{i} [rad/s²]" for i in joints]


def _nvdex(sizes: Mapping[str, int]) -> Labels:
    states, actions = [], []
    for module in range(1, sizes["K"] + 1):
        after = f"_{module}" if sizes["K"] > 1 else ""
        states += [f"x{after} [m]", f"y{after} [m]", f"φ{after} [rad]"]
        for name, unit, depth in (("v", "m", sizes["r_v"]), ("ω", "rad", sizes["r_omega"])):
            words = [_derivative(name + after, unit, order) for order in range(depth + 1)]
            states += words[:-1]
            actions.append(words[-1])
    return states, actions


def _derivative(name: str, unit: str, order: int) -> str:
    """A velocity's derivative of some order, with its unit."""
    power = {1: "s", 2: "s²", 3: "s³"}.get(order + 1, f"s^{order + 1}")
    before = {0: "", 1: "d/dt "}.get(order, f"d^{order}/dt^{order} ")
    return f"{before}{name} [{unit}/{power}]"


def _listed(states: list[str], actions: list[str]) -> Callable[[Mapping[str, int]], Labels]:
    return lambda sizes: (list(states), list(actions))


KNOWN: dict[str, Callable[[Mapping[str, int]], Labels]] = {
    "ConverseArm": _arm,
    "NVDEx": _nvdex,
    "Manipulator": _manipulator,
    "Unicycle": _listed(
        ["x [m]", "y [m]", "φ [rad]", "v [m/s]", "ω [rad/s]"],
        ["d/dt v [m/s²]", "d/dt ω [rad/s²]"],
    ),
    "PointMass": _listed(
        ["x [m]", "y [m]", "v_x [m/s]", "v_y [m/s]"], ["d/dt v_x [m/s²]", "d/dt v_y [m/s²]"]
    ),
    "KinematicArm": _kinematic_arm,
    "Isotropic": _isotropic,
    "Pendulums": _kinematic_arm,
    "PlanarAerial": _listed(
        ["x [m]", "z [m]", "φ [rad]", "v_x [m/s]", "v_z [m/s]", "ω [rad/s]"],
        ["thrust beyond hover [m/s²]", "torque [rad/s²]"],
    ),
    "Aerial": _listed(
        ["x [m]", "y [m]", "z [m]", "roll [rad]", "pitch [rad]", "yaw [rad]",
         "v_x [m/s]", "v_y [m/s]", "v_z [m/s]", "ω_x [rad/s]", "ω_y [rad/s]", "ω_z [rad/s]"],
        ["thrust beyond hover [m/s²]", "torque_x [rad/s²]", "torque_y [rad/s²]",
         "torque_z [rad/s²]"],
    ),
    "DoubleIntegrator": _listed(["position [-]", "velocity [-]"], ["force [-]"]),
}  # fmt: skip


def remembered(extension: Mapping[str, Any], actions: list[str]) -> list[str]:
    """What follows the states of the base, of a fixture's field ``extension``, beside the names of
    ``actions``; names of its systems are the same.
    """
    kind = extension["kind"] or ""
    if kind in ("action-rate", "delay"):
        return [f"last {name}" for name in actions]
    if kind == "markov-jump":
        return [f"mode {i + 1} [-]" for i in range(len(extension["modes"]))]
    if kind == "disturbance":
        return [f"disturbance {i + 1}" for i in range(len(extension["effect"][0]))]
    if kind == "termination":
        return ["ended [-]"]
    if kind in ("finite-horizon", "average-cost", "risk"):
        return [f"step / {1 << (int(extension['T']) - 1).bit_length()} [-]"]
    if kind.startswith("hidden-") and extension.get("observe") == "belief":
        beliefs = [f"belief {i + 1}" for i in range(len(extension["effect"][0]))]
        return beliefs + (["step / 4096 [-]"] if kind == "hidden-constant" else [])
    return []
