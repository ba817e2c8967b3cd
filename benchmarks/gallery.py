"""One picture of the certified classes: what each does to the optimum.

python benchmarks/gallery.py [--out benchmarks/gallery.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

import cojax
from cojax import noise_laws
from cojax.fixtures import Fixture
from cojax.report import style

DRAWS = 400_000


def along(
    fixture: Fixture, reach: float, num: int = 801, memory: tuple[float, ...] = ()
) -> tuple[np.ndarray, jax.Array]:
    """Numbers x in [-reach, reach], and the states with x on every velocity and a ``memory``."""
    x = np.linspace(-reach, reach, num)
    unit = np.tile([0.0, 1.0], (fixture.state_dim - len(memory)) // 2)
    states = np.hstack([np.outer(x, unit), np.tile(memory, (num, 1))])
    return x, jnp.asarray(states, jnp.float32)


def first_action(
    axis: Axes,
    fixture: Fixture,
    label: str,
    index: int,
    reach: float = 3.0,
    *,
    memory: tuple[float, ...] = (),
) -> None:
    """The first joint's optimal torque, over a velocity that all joints share."""
    x, states = along(fixture, reach, memory=memory)
    actions = jax.vmap(fixture.system().optimum)(states).action
    axis.plot(x, actions[:, 0], color=style.colour(index), label=label, linewidth=1.4)


def limits(axis: Axes) -> None:
    """Three bounds and none."""
    arm = cojax.load_fixture("arm-n4-p0.80-s7")
    first_action(axis, arm, "none", 0)
    for i, bound in enumerate((0.2, 0.1, 0.05)):
        limited = arm.with_changes(action_limit={"kind": "box", "bound": bound})
        first_action(axis, limited, f"{bound:g}", i + 1)
    axis.set(title="hard limits", xlabel="velocity of all joints", ylabel="optimal torque a*₁")


def caution(axis: Axes) -> None:
    """Noise that actions make."""
    arm = cojax.load_fixture("arm-n4-p0.80-s7")
    for i, sigma in enumerate((0.0, 2.0, 5.0)):
        noisy = arm.with_changes(noise={"model": "gaussian", "on_action": sigma})
        first_action(axis, noisy, f"σ = {sigma:g}", i)
    axis.set(title="noise on actions", xlabel="velocity of all joints", ylabel="optimal torque a*₁")


def sparse(axis: Axes) -> None:
    """A control cost with a kink, and without."""
    arm = cojax.load_fixture("sparse-arm-n2")
    plain = arm.with_changes(control_cost=None)
    first_action(axis, plain, "r a²", 0, 2.0)
    first_action(axis, arm, "r a² + µ|a|", 1, 2.0)
    axis.set(title="sparse optimum", xlabel="velocity of all joints", ylabel="optimal torque a*₁")


def saturating(axis: Axes) -> None:
    """A cost whose optimum is ū tanh(·), with a value of fourth order."""
    arm = cojax.load_fixture("quartic-arm-n2")
    first_action(axis, arm.with_changes(value=None, control_cost=None), "quadratic", 0, 6.0)
    first_action(axis, arm.with_changes(value=None), "ū tanh(·)", 1, 6.0)
    first_action(axis, arm, "and quartic V*", 2, 6.0)
    axis.set(title="values of fourth order", xlabel="velocity of all joints")
    axis.set_ylabel("optimal torque a*₁")


def wells(axis: Axes) -> None:
    """A value with several wells."""
    arm = cojax.load_fixture("wells-arm-n1")
    system = arm.system()
    x, states = along(arm, 4.0)
    value = jax.vmap(system.value)(states) - system.offset
    axis.plot(x, value, color=style.colour(0), label="V* - b")
    quadratic = np.asarray(
        jnp.einsum("ni,ij,nj->n", states, jnp.asarray(arm.P, jnp.float32), states)
    )
    axis.plot(x, quadratic, color=style.colour(1), label="sᵀP s", linestyle="--")
    axis.set(title="values that are not convex", xlabel="velocity", ylabel="cost to go")


def laws(axis: Axes) -> None:
    """Densities of the laws of noise, of one variance."""
    options = {"student-t": {"nu": 3.0}, "gusts": {}, "laplace": {}, "uniform": {}, "gaussian": {}}
    edges = np.linspace(-6.0, 6.0, 97)
    for i, (word, given) in enumerate(options.items()):
        law = jax.tree.map(jnp.float32, noise_laws.law(word, **given))
        draws = np.asarray(jax.jit(lambda law: law.draw(jax.random.key(0), (DRAWS,)))(law))
        if law.joint:  # one gust for all entries of a step: a step each
            keys = jax.random.split(jax.random.key(0), DRAWS)
            draws = np.asarray(jax.jit(jax.vmap(lambda k: law.draw(k, (1,))[0]))(keys))  # noqa: B023
        density = np.histogram(draws, edges)[0] / len(draws) / np.diff(edges)
        shown = np.where(density > 0.0, density, np.nan)
        axis.plot(0.5 * (edges[1:] + edges[:-1]), shown, color=style.colour(i), label=word)
    axis.set(title="laws of noise", xlabel="w in standard deviations", ylabel="density")
    axis.set(yscale="log", ylim=(1e-5, 2.0))


def modes(axis: Axes) -> None:
    """Modes that jump."""
    arm = cojax.load_fixture("arm-n4-jump")
    first_action(axis, arm, "sound, p = 0.8", 0, memory=(1.0, 0.0))
    first_action(axis, arm, "failing, p = 0.2", 1, memory=(0.0, 1.0))
    axis.set(title="modes that jump", xlabel="velocity of all joints", ylabel="optimal torque a*₁")


def rates(axis: Axes) -> None:
    """A price on the rate of actions: what was done last."""
    arm = cojax.load_fixture("arm-n4-action-rate")
    for i, last in enumerate((-0.2, 0.0, 0.2)):
        first_action(axis, arm, f"last {last:g}", i, memory=(last,) * 4)
    axis.set(title="a price on rates", xlabel="velocity of all joints")
    axis.set_ylabel("optimal torque a*₁")


def listed(axis: Axes) -> None:
    """Five torques, and all."""
    pendulum = cojax.load_fixture("pendulums-n1-list")
    first_action(axis, pendulum.with_changes(action_limit=None), "all", 0, 1.0)
    first_action(axis, pendulum, "five", 1, 1.0)
    axis.set(title="actions of a list", xlabel="velocity [rad/s]", ylabel="optimal torque a*")


def opponents(axis: Axes) -> None:
    """The saddle point."""
    arm = cojax.load_fixture("arm-n2-game")
    x, states = along(arm, 3.0)
    saddle = jax.vmap(arm.system().saddle)(states)  # pyright: ignore[reportAttributeAccessIssue]
    axis.plot(x, saddle.action[:, 0], color=style.colour(0), label="agent a*₁")
    axis.plot(x, saddle.disturbance[:, 0], color=style.colour(1), label="disturbance d*₁")
    axis.set(title="an opponent", xlabel="velocity of all joints", ylabel="at the saddle point")


def fronts(axis: Axes) -> None:
    """What least cost a budget buys, and gains that are not optimal."""
    fixture = cojax.load_fixture("isotropic-n2")
    front = fixture.system(np.float32).front(fixture.initial_law())  # pyright: ignore
    low, high = front.least_gain, 1.0 / front.p
    K = low + (high - low) * np.linspace(0.02, 1.6, 200)
    cost, spent = np.array([front.at(k) for k in K]).T
    best = high >= K
    axis.plot(spent[best], cost[best], color=style.colour(0), label="optimal")
    axis.plot(
        spent[~best], cost[~best], color=style.colour(1), linestyle="--", label="gains above 1/p"
    )
    axis.set(title="a Pareto front", xlabel="J_d, energy of actions", ylabel="J_c, cost of states")
    axis.set(ylim=(0.9 * cost.min(), 3.0 * cost.min()))


def risks(axis: Axes) -> None:
    """Risk that is sought, ignored and shunned: where the optimum sends a state."""
    arm = cojax.load_fixture("arm-n2-risk-averse")
    for i, theta in enumerate((-6.0, 0.0, 6.0)):
        stated = {"kind": "risk", "theta": theta, "T": 20}
        own = arm.with_changes(extension=stated, action_limit=None)
        x, states = along(own, 3.0, memory=(0.0,))
        after = jax.vmap(own.system().optimum)(states).next_mean
        axis.plot(x, after[:, 1], color=style.colour(i), label=f"θ = {theta:g}")
    axis.set(title="risk", xlabel="velocity of all joints", ylabel="first velocity after π*")


PANELS = (
    (limits, caution, laws, sparse),
    (saturating, wells, modes, rates),
    (listed, opponents, fronts, risks),
)


def main() -> None:
    """Draw the panels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("gallery.png"))
    options = parser.parse_args()
    with style.style():
        drawing = style.figure(1.25 * style.PAGE, 6.4)
        panels = [panel for row in PANELS for panel in row]
        for axis, panel in zip(drawing.subplots(3, 4).flat, panels, strict=True):
            panel(axis)
            style.grid(axis)
            axis.legend(frameon=False, fontsize=6.5)
        style.save_as(drawing, options.out)


if __name__ == "__main__":
    main()
