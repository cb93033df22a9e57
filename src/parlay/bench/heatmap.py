"""Tables of ratios as heat maps in a PNG file."""

from collections.abc import Callable, Mapping, Sequence
from math import log2
from pathlib import Path
from textwrap import fill
from typing import Any

NOT_SLOWER = 0.98  # a ratio below is marked
_LETTERS = 16  # of the legend an inch
_CLIP = 1.0  # factors of two up and down to which colours reach
_LEGEND = f"times plain decoding, 95 % interval; framed: below {NOT_SLOWER:g}; *: interval wider than asked for"

_Row = Mapping[str, Any]
_Labels = Mapping[str, str]  # along a side of a map, each with what it is parted by from others


def draw_heatmap(path: Path, title: str, rows: Sequence[_Row]) -> None:
    """Write a cell for each case and method: the ratio, its interval, and a colour that leaves white at 1.

    Colours go by the ratio's logarithm, so that half as fast and twice as fast are equally deep. A cell below
    `NOT_SLOWER` has a frame; a star says that the interval is wider than was asked for.

    Args:
        path: of the file.
        title: of the figure.
        rows: of `parlay.bench.methods`; plain decoding's, which are all 1, are left out.
    """
    down = {_case(row, ", "): str(row["workload"]) for row in _in_order(rows)}
    across = {str(row["method"]): "" for row in rows if row["method"] != "plain"}
    cells = _cells(rows, lambda row: (_case(row, ", "), str(row["method"])))
    _draw(path, title, _LEGEND, [("", cells, down, across)])


def draw_sweep(path: Path, title: str, rows: Sequence[_Row]) -> None:
    """Write a map for each model, with a row for each method and budget, and a column for each case.

    Args:
        path: of the file.
        title: of the figure.
        rows: of `parlay.bench.sweep`; cells are as in `draw_heatmap`.
    """
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    names = [Path(model).name for model in models]
    panels = []
    for model, name in zip(models, names, strict=True):
        own = [row for row in rows if row["model"] == model]
        down = {_contender(row): str(row["method"]) for row in own if row["method"] != "plain"}
        across = {_case(row, "\n"): str(row["workload"]) for row in _in_order(own)}
        cells = _cells(own, lambda row: (_contender(row), _case(row, "\n")))
        panels.append((model if names.count(name) > 1 else name, cells, down, across))
    _draw(path, title, f"{_LEGEND}; a number after a method: most nodes a draft", panels)


_Panel = tuple[str, Mapping[tuple[str, str], _Row], _Labels, _Labels]  # title, cells, labels down and across


def _draw(path: Path, title: str, legend: str, panels: Sequence[_Panel]) -> None:
    from matplotlib.figure import Figure

    # Inches: a cell holds two lines of text, the left margin the longest label, the upper one as many lines as its.
    width = max(1.05 * max(len(across), 1) + 0.085 * max(map(len, down), default=0) for _, _, down, across in panels)
    lines = max(label.count("\n") for _, _, _, across in panels for label in ("", *across))
    heights = [0.42 * max(len(down), 1) for _, _, down, _ in panels]
    margins = len(panels) * (0.5 + 0.14 * lines) + 1.0
    figure = Figure(figsize=(max(width + 0.6, 5.0), sum(heights) + margins), layout="constrained")
    drawn = figure.subplots(len(panels), squeeze=False, height_ratios=heights)
    for axes, (name, cells, down, across) in zip(drawn[:, 0], panels, strict=True):
        _panel(axes, cells, down, across)
        axes.set_title(name, fontsize=9)
    figure.suptitle(title, fontsize=10)
    figure.supxlabel(fill(legend, int(_LETTERS * figure.get_figwidth())), fontsize=7)
    figure.savefig(path, dpi=150)


def _panel(axes: Any, cells: Mapping[tuple[str, str], _Row], down: _Labels, across: _Labels) -> None:
    """Draw one map: `cells` by their labels `down` the left side and `across` the top."""
    import numpy as np
    from matplotlib.patches import Rectangle

    values = np.full((max(len(down), 1), max(len(across), 1)), np.nan)
    for (left, top), row in cells.items():
        y, x = list(down).index(left), list(across).index(top)
        values[y, x] = max(-_CLIP, min(_CLIP, log2(row["speed_up"])))
        ends = row["interval"]
        under = f"{ends[0]:.2f} to {ends[1]:.2f}" if ends else f"turns: {row['turns']}"
        text = f"{row['speed_up']:.2f}{'' if row['precise'] else '*'}\n{under}"
        colour = "white" if abs(values[y, x]) > 0.6 * _CLIP else "black"
        axes.text(x, y, text, ha="center", va="center", fontsize=7, color=colour, linespacing=1.1)
        if row["speed_up"] < NOT_SLOWER:
            axes.add_patch(Rectangle((x - 0.47, y - 0.46), 0.94, 0.92, fill=False, edgecolor="black", linewidth=1.8))
    axes.imshow(values, cmap="RdBu", vmin=-_CLIP, vmax=_CLIP, aspect="auto")
    axes.set_facecolor("0.92")  # what was not measured
    axes.set_xticks(range(len(across)), list(across), fontsize=8)
    axes.set_yticks(range(len(down)), list(down), fontsize=8)
    axes.tick_params(length=0, top=True, bottom=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    _part(axes.axhline, list(down.values()))
    _part(axes.axvline, list(across.values()))


def _part(line: Callable[..., Any], groups: Sequence[str]) -> None:
    for i in range(1, len(groups)):
        if groups[i] != groups[i - 1]:
            line(i - 0.5, color="black", linewidth=0.6)


def _cells(rows: Sequence[_Row], place: Callable[[_Row], tuple[str, str]]) -> dict[tuple[str, str], _Row]:
    return {place(row): row for row in rows if row["method"] != "plain"}


def _in_order(rows: Sequence[_Row]) -> list[_Row]:
    """Return rows by workload, batch size and temperature; a run that went on later may have added to every one."""
    workloads = list(dict.fromkeys(str(row["workload"]) for row in rows))
    return sorted(rows, key=lambda row: (workloads.index(row["workload"]), row["batch"], row["temperature"]))


def _case(row: _Row, between: str) -> str:
    return between.join((str(row["workload"]), f"batch {row['batch']}", f"temp. {row['temperature']:g}"))


def _contender(row: _Row) -> str:
    return str(row["method"]) if row["budget"] is None else f"{row['method']} {row['budget']}"
