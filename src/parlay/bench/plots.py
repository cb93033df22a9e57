"""Plots of results as PNG files: everything that is drawn comes from rows as the commands write them in JSON."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import log2
from pathlib import Path
from textwrap import fill
from typing import Any

from parlay.errors import ConfigError

# Title of a panel, to method, to group along the axis, to value.
Panels = Mapping[str, Mapping[str, Mapping[str, float]]]
NOT_SLOWER = 0.98  # a ratio below is marked
_CLIP = 1.0  # factors of two up and down to which colours reach
_LETTERS = 16  # of a line of small text an inch
_LEGEND = f"times plain decoding, 95 % interval; framed: below {NOT_SLOWER:g}; *: interval wider than --precision"

_Row = Mapping[str, Any]


def check_target(path: Path) -> None:
    """Check that a plot can be written before anything is measured for it.

    Raises:
        ConfigError: matplotlib is missing, or the path is no PNG file in a folder that exists.
    """
    if path.suffix.lower() != ".png" or not path.absolute().parent.is_dir():
        raise ConfigError(f"a plot must be a .png file in an existing directory, not {str(path)!r}")
    if find_spec("matplotlib") is None:
        raise ConfigError("plots need matplotlib; pip install 'parlay[plot]'")


def draw_bars(path: Path, title: str, panels: Panels) -> None:
    """Write one panel of bars beside the other; every method has its colour, every bar its value."""
    from matplotlib.figure import Figure

    bars = max(len(groups) for methods in panels.values() for groups in methods.values())
    bars *= max(len(methods) for methods in panels.values())
    figure = Figure(figsize=(len(panels) * max(3.5, 0.55 * bars), 3.8), layout="constrained")
    figure.suptitle(title)
    for axes, (label, methods) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        names = list(dict.fromkeys(group for groups in methods.values() for group in groups))
        for j, (method, groups) in enumerate(methods.items()):
            places = [names.index(g) + (j - (len(methods) - 1) / 2) * 0.8 / len(methods) for g in groups]
            drawn = axes.bar(places, list(groups.values()), 0.76 / len(methods), label=method)
            axes.bar_label(drawn, fmt="{:,.3g}", fontsize=8)
        axes.set_title(label, fontsize=10)
        axes.set_xticks(range(len(names)), names)
        axes.margins(y=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    # One legend below all panels: within one it would lie over a bar's number.
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(len(labels), 1), frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def draw_ratios(path: Path, title: str, rows: Sequence[_Row]) -> None:
    """Write a map for each model: a row for each case, a column for each method and budget.

    Colours go by the ratio's logarithm, so that half as fast and twice as fast are equally deep. A cell below
    `NOT_SLOWER` has a frame; a star says that the interval is wider than `--precision`.

    Args:
        path: path of the file.
        title: title of the figure.
        rows: rows of `parlay.bench.methods`, of several runs too; plain decoding's, which are all 1, are left out.
    """
    from matplotlib.figure import Figure

    panels: dict[str, list[_Row]] = {}
    for row in rows:
        panels.setdefault(row.get("model", ""), []).append(row)
    # Inches: a cell holds two lines of text, the left margin the longest case.
    down = [list(dict.fromkeys(map(_case, _in_order(own)))) for own in panels.values()]
    across = [
        list(dict.fromkeys(_contender(row) for row in own if row["method"] != "plain")) for own in panels.values()
    ]
    width = max(1.05 * len(columns) for columns in across) + 0.085 * max(len(case) for own in down for case in own)
    heights = [0.42 * len(own) for own in down]
    figure = Figure(figsize=(max(width + 0.6, 5.0), sum(heights) + 0.64 * len(panels) + 1.0), layout="constrained")
    drawn = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, model, own, left, top in zip(drawn, panels, panels.values(), down, across, strict=True):
        _draw_panel(axes, own, left, top)
        axes.set_title(Path(model).name, fontsize=9)
    figure.suptitle(title, fontsize=10)
    figure.supxlabel(fill(_LEGEND, int(_LETTERS * figure.get_figwidth())), fontsize=7)
    figure.savefig(path, dpi=150)


def _draw_panel(axes: Any, rows: Sequence[_Row], down: Sequence[str], across: Sequence[str]) -> None:
    import numpy as np
    from matplotlib.patches import Rectangle

    values = np.full((len(down), max(len(across), 1)), np.nan)
    for row in rows:
        if row["method"] == "plain":
            continue
        y, x = down.index(_case(row)), across.index(_contender(row))
        values[y, x] = max(-_CLIP, min(_CLIP, log2(row["speed_up"])))
        ends, repetitions = row["interval"], row.get("repetitions", row.get("turns"))  # in files of older versions
        under = f"{ends[0]:.2f} to {ends[1]:.2f}" if ends else f"repetitions: {repetitions}"
        text = f"{row['speed_up']:.2f}{'' if row['precise'] else '*'}\n{under}"
        colour = "white" if abs(values[y, x]) > 0.6 * _CLIP else "black"
        axes.text(x, y, text, ha="center", va="center", fontsize=7, color=colour, linespacing=1.1)
        if row["speed_up"] < NOT_SLOWER:
            axes.add_patch(Rectangle((x - 0.47, y - 0.46), 0.94, 0.92, fill=False, edgecolor="black", linewidth=1.8))
    axes.imshow(values, cmap="RdBu", vmin=-_CLIP, vmax=_CLIP, aspect="auto")
    axes.set_facecolor("0.92")  # what was not measured
    axes.set_xticks(range(len(across)), across, fontsize=8)
    axes.set_yticks(range(len(down)), down, fontsize=8)
    axes.tick_params(length=0, top=True, bottom=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)


def _in_order(rows: Sequence[_Row]) -> list[_Row]:
    """Return rows by workload, batch size and temperature; a run that went on later may have added to every one."""
    workloads = list(dict.fromkeys(str(row["workload"]) for row in rows))
    return sorted(rows, key=lambda row: (workloads.index(row["workload"]), row["batch"], row["temperature"]))


def _case(row: _Row) -> str:
    return f"{row['workload']}, batch {row['batch']}, temp. {row['temperature']:g}"


def _contender(row: _Row) -> str:
    return str(row["method"]) if row.get("budget") is None else f"{row['method']} {row['budget']}"


def draw_payoff(path: Path, title: str, grid: Sequence[_Row]) -> None:
    """Write a map of speed-ups by batch size and acceptance rate; 1 is white, more is darker.

    Args:
        path: path of the PNG file.
        title: text above the map.
        grid: the grid of `parlay.explain.payoff.explain`.
    """
    from matplotlib.figure import Figure

    batches, rates = (list(dict.fromkeys(cell[key] for cell in grid)) for key in ("batch", "acceptance"))
    values = [[cell["speed_up"] for cell in grid if cell["batch"] == batch] for batch in batches]
    figure = Figure(figsize=(1.5 + 0.8 * len(rates), 1.2 + 0.6 * len(batches)), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(values, cmap="Greens", vmin=1.0, vmax=1.3 * max(max(map(max, values)), 1.1), aspect="auto")
    for cell in grid:
        at = rates.index(cell["acceptance"]), batches.index(cell["batch"])
        text = f"{cell['speed_up']:.2f}x\nk = {cell['length']}"
        axes.text(*at, text, ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axes.set_yticks(range(len(batches)), [f"batch {batch}" for batch in batches])
    axes.set_xlabel("acceptance rate of a draft token")
    axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=150)
