"""The page of a results folder: one HTML file that opens offline and asks the network for nothing.

Tables, figures and fixtures are whatever the folder holds; nothing is computed that it does not
state, but medians over systems.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import numpy as np

from cojax import __version__
from cojax.errors import InputError
from cojax.evaluation import provenance
from cojax.evaluation.metrics import METRIC
from cojax.io import files, json_text, tables, yaml
from cojax.report.page_charts import curve_charts, forest
from cojax.report.page_parts import CELLS, MORE, cards, evaluate_command, result_rows, summary
from cojax.report.printing import number
from cojax.types import Content, Json, Row

if TYPE_CHECKING:
    import pandas as pd

BEST = 20  # settings of a sweep that its page shows, of each system
TITLES = ("Gap / V*", "Exploitable ≥", "Exploitable ≤", "OptGap", "Regret")
MEASURES = {**dict(zip(CELLS, TITLES, strict=True)), **MORE}
CELL = {"mean", "low", "high"}
FIRST = 200  # rows of a table shown before anybody asks for more; report.js has the same
IMAGES = {".svg": "image/svg+xml", ".png": "image/png"}


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page of a results folder, whole or not at all.

    Args:
        folder: as ``cojax run``, ``train``, ``sweep`` or ``evaluate --out`` writes it; of a
            sweep, the best settings are shown. ``tables/*.csv``,
            ``figures/*.svg`` and ``*.png``, and ``fixtures/*.yaml`` are included where there are
            any, with title, caption and command from an ``index.json`` beside them.
        out: the file to write, by default ``report.html`` in the folder.

    Returns the path that was written.

    Raises ValueError, one line, for a folder that is not one, lacks a file or holds a damaged one.
    """
    folder = Path(folder)
    if out is not None and (Path(out).is_dir() or not Path(out).absolute().parent.is_dir()):
        raise InputError(f"{out}: expected the name of a file in a folder that exists")
    page = render(gather(folder))
    out = folder / "report.html" if out is None else Path(out)
    files.write_whole(out, page)
    return out


# --- what the folder holds -----------------------------------------------------------------------


def gather(folder: Path) -> Content:
    """What the page shows of a results folder; raises as :func:`write_report` does."""
    results = provenance.load(folder)
    about = results.provenance
    rows = _rows(folder / "rows.json")
    settings = 0
    if about.get("kind") == "sweep":
        settings = len({(row["policy"], row.get("setting")) for row in rows})
        rows = _best(rows)
        shown = [provenance.named(row["policy"], row.get("setting")) for row in rows]
        results = results._replace(trials=results.trials[results.trials["policy"].isin(shown)])
    curves = _curves(folder)
    configuration = about.get("configuration")
    configuration = configuration if isinstance(configuration, dict) else {}
    learners = [] if curves is None else list(dict.fromkeys(curves["algorithm"]))
    if (folder / "config.yaml").is_file():
        again = f"cojax {about.get('kind', 'run')} config.yaml --out again"
    else:
        again = evaluate_command(about, **configuration)
    said, tilted = summary(results, learners, configuration), about.get("kernel") == "tilted"
    titles = MEASURES | ({METRIC: "Tilted Σ γᵏ A* / V*"} if tilted else {})
    if all("violation" in row for row in rows):  # where the paper's say nothing
        titles = {n: title for n, title in titles.items() if n == METRIC or n in MORE}
    facts = {
        name.replace("_", " "): "–" if value is None else value
        for name, value in about.items()
        if name not in ("fixtures", "configuration")
    }
    return {
        "name": str(configuration.get("name") or folder.name),
        "said": said,
        "settings": settings if settings > BEST else 0,
        "best": BEST,
        "forest": forest(said["policies"]),
        "measures": [(n, t) for n, t in titles.items() if any(n in row for row in rows)],
        "tilted": tilted,
        "smoke": configuration.get("scale") == "smoke",
        "rows": result_rows(folder, rows, learners, about=about, again=again),
        "policies": list(dict.fromkeys(str(row["policy"]) for row in rows)),
        "tables": _tables(folder),
        "figures": _figures(folder),
        "charts": [] if curves is None else curve_charts(curves, learners),
        "cards": cards(folder, about["fixtures"]),
        "first": FIRST,
        "facts": facts,
        "configuration": yaml.dump(_plain(configuration)) if configuration else "",
        "again": again,
        "version": __version__,
    }


def _rows(file: Path) -> list[Row]:
    if not file.is_file():
        raise InputError(f"{file.parent}: expected a results folder, {file.name} is missing")
    rows = json_text.load(file, list)
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{file}: expected a list of rows, at least one")
    for k, row in enumerate(rows):
        missing = [n for n in ("fixture", "policy", "failures", "num_trials") if n not in row]
        missing += [] if set(row.get(METRIC) or ()) >= CELL else [METRIC]
        missing += [n for n in CELLS if n in row and not set(row[n] or ()) >= CELL]
        if missing:
            raise InputError(f"{file}: row {k}: {missing[0]} is missing")
    return rows


def _best(rows: list[Row]) -> list[Row]:
    """The rows of a sweep with the lowest bounds on each system."""
    count: dict[str, int] = {}
    best = []
    for row in sorted(rows, key=lambda row: (row["fixture"], row.get("bound") or 0.0)):
        count[row["fixture"]] = count.get(row["fixture"], 0) + 1
        best += [row] if count[row["fixture"]] <= BEST else []
    return best


def _curves(folder: Path) -> pd.DataFrame | None:
    """Training curves; None for an evaluation alone."""
    file = folder / "curves.parquet"
    if not file.is_file():
        if (folder / "config.yaml").is_file():
            raise InputError(f"{folder}: expected a results folder, {file.name} is missing")
        return None
    curves = tables.read(file)
    needed = {"fixture", "algorithm", "seed", "timesteps", "relative_suboptimality"}
    if not needed <= set(curves.columns):
        raise InputError(f"{file}: column {min(needed - set(curves.columns))} is missing")
    return curves


def _described(folder: Path, chosen: list[Path], index: Content) -> list[Content]:
    """Files of a folder with title, caption and command from its index, in the index's order."""
    file = folder / "index.json"
    index = index | (json_text.load(file, dict) if file.is_file() else {})
    if not all(isinstance(entry, dict) for entry in index.values()):
        raise InputError(f"{file}: expected a mapping from names to title, caption and command")
    place = {name: k for k, name in enumerate(index)}
    out = []
    for one in sorted(chosen, key=lambda one: (place.get(one.stem, len(place)), one.name)):
        entry = index.get(one.stem, {})
        if entry.get("on_page") is False:
            continue
        title = entry.get("title") or one.stem.replace("_", " ").replace("-", " ").capitalize()
        words = {"title": str(title)}
        words |= {name: str(entry.get(name) or "") for name in ("caption", "command")}
        out.append({"id": re.sub(r"[^A-Za-z0-9]+", "-", one.stem), "file": one, **words})
    return out


def _tables(folder: Path) -> list[Content]:
    """Every ``tables/*.csv``: columns, and rows of (text, number or None)."""
    import pandas as pd

    out = _described(folder / "tables", list((folder / "tables").glob("*.csv")), {})
    for one in out:
        file = one.pop("file")
        try:
            table = pd.read_csv(file)
        except ValueError as error:
            raise InputError(f"{file}: damaged: {str(error).splitlines()[0]}") from error
        numeric = [table[c].dtype.kind in "iuf" for c in table.columns]
        names = [str(c).replace("_", " ") for c in table.columns]
        pairs = zip(names, numeric, strict=True)
        one["columns"] = [{"name": name, "numeric": n} for name, n in pairs]
        one["rows"] = [
            [_cell(value, n) for value, n in zip(row, numeric, strict=True)]
            for row in table.itertuples(index=False, name=None)
        ]
    return out


def _cell(value, numeric: bool) -> tuple[str, float | None]:
    if not numeric:
        return ("" if value is None or value != value else str(value)), None
    if value != value:
        return "–", None
    value = float(value)
    if value.is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}", value
    return number(value), value


def _figures(folder: Path) -> list[Content]:
    """``figure.png`` and every figure in ``figures``, SVG before PNG, as data URIs.

    An SVG is shown as an image, in which no script runs and nothing is fetched.
    """
    chosen: dict[str, Path] = {}
    for suffix in IMAGES:
        for file in (folder / "figures").glob(f"*{suffix}"):
            chosen.setdefault(file.stem, file)
    index = {}
    if (folder / "figure.png").is_file():
        chosen = {"figure": folder / "figure.png", **chosen}
        index = {"figure": {"title": "The gap over training"}}
    out = _described(folder / "figures", list(chosen.values()), index)
    for one in out:
        file = one.pop("file")
        data = base64.b64encode(file.read_bytes()).decode()
        one["source"] = f"data:{IMAGES[file.suffix]};base64,{data}"
    return out


def _plain(value: object) -> Json:
    """Data that YAML can hold: keys are words."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value


# --- the page ------------------------------------------------------------------------------------


def render(content: Content) -> str:
    """The HTML of what :func:`gather` gives. Everything in it is escaped.

    The policy of the page allows its own style and script by their hashes, pictures inside the
    page, and nothing else.
    """
    source = resources.files("cojax.report").joinpath("templates")
    style, script, page = (
        source.joinpath(f"report.{kind}").read_text("utf-8") for kind in ("css", "js", "html")
    )
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = number
    digests = (hashlib.sha256(text.encode()).digest() for text in (style, script))
    hashes = ["sha256-" + base64.b64encode(digest).decode() for digest in digests]
    template = environment.from_string(page)
    return template.render(**content, style=style, script=script, hashes=hashes)
