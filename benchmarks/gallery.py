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


def along(fixture: Fixture, reach: float, num: int = 801) -> tuple[np.ndarray, jax.Array]:
    """Numbers x in [-reach, reach], and the states with x on every velocity."""
    x = np.linspace(-reach, reach, num)
    unit = np.tile([0.0, 1.0], fixture.state_dim // 2)
    return x, jnp.asarray(np.outer(x, unit), jnp.float32)


def first_action(axis: Axes, fixture: Fixture, label: str, index: int, reach: float = 3.0) -> None:
    """The first joint's optimal torque, over a velocity that all joints share."""
    x, states = along(fixture, reach)
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


PANELS = (limits, caution, laws, sparse, saturating, wells)


def main() -> None:
    """Draw the panels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("gallery.png"))
    options = parser.parse_args()
    with style.style():
        drawing = style.figure(style.PAGE, 4.4)
        for axis, panel in zip(drawing.subplots(2, 3).flat, PANELS, strict=True):
            panel(axis)
            style.grid(axis)
            axis.legend(frameon=False, fontsize=6.5)
        style.save_as(drawing, options.out)


if __name__ == "__main__":
    main()
