"""Animations of policies."""

from __future__ import annotations

import click


@click.command()
@click.argument("fixture", metavar="FIXTURE")
@click.option(
    "--policy",
    default="oracle",
    show_default=True,
    metavar="POLICY",
    help="oracle, zero, another reference, or a checkpoint.",
)
@click.option(
    "--out",
    metavar="FILE.gif|.mp4|.png",
    help="What to write: an animation, or a strip of six moments  [default: FIXTURE-POLICY.gif].",
)
@click.option("--steps", type=int, help="Steps shown  [default: the horizon, 200 at most].")
@click.option("--trial", type=int, default=0, show_default=True, help="Trial of the streams.")
@click.option("--root", type=int, default=0, show_default=True, help="Seed of the streams.")
@click.option("--fps", type=int, default=20, show_default=True, help="Frames a second, 1 to 50.")
@click.option(
    "--member", type=int, default=0, show_default=True, help="Which one of a trained population."
)
def render(
    fixture: str,
    *,
    policy: str,
    out: str | None,
    steps: int | None,
    trial: int,
    root: int,
    fps: int,
    member: int,
) -> None:
    """Draw a policy beside no control on the same start and noise, with V* falling.

    Trial K of root R is that of cojax evaluate. The zero policy stands beside the optimal one. An
    MP4 needs ffmpeg; without it a GIF is written.
    """
    from pathlib import Path

    from cojax.errors import InputError
    from cojax.fixtures import load_fixture
    from cojax.report import animation

    loaded = load_fixture(fixture)
    if out is None:
        out = f"{loaded.id}-{Path(policy).stem.replace(':', '-')}.gif"
    animation.suffix(out)
    if not Path(out).absolute().parent.is_dir():
        raise InputError(f"{out}: no such folder")
    made = animation.animate(
        loaded, policy, num_steps=steps, trial=trial, root=root, fps=fps, member=member
    )
    written = made.save(out)
    if written != Path(out):
        click.echo(f"no ffmpeg found: {written} instead of {out}")
    for side in made.sides:
        failed = "" if side.failed is None else f", left the divergence guard at step {side.failed}"
        click.echo(f"{side.label}: V* {side.values[0]:.4g} -> {side.values[-1]:.4g}{failed}")
    click.echo(f"written to {written}, {written.stat().st_size / 1000:,.0f} kB")


COMMANDS: list[click.Command] = [render]
