"""A table of ratios as a heat map in a PNG file."""

from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path
from typing import Any

NOT_SLOWER = 0.98  # a ratio below is marked
_CLIP = 1.0  # factors of two up and down to which colours reach


def draw_heatmap(path: Path, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a cell for each case and method: the ratio, its interval, and a colour that leaves white at 1.

    Colours go by the ratio's logarithm, so that half as fast and twice as fast are equally deep. A cell below
    `NOT_SLOWER` has a frame; a star says that the interval is wider than was asked for.

    Args:
        path: of the file.
        title: of the figure.
        rows: of `parlay.bench.methods`; plain decoding's, which are all 1, are left out.
    """
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    shown = [row for row in rows if row["method"] != "plain"]
    workloads = list(dict.fromkeys(str(row["workload"]) for row in rows))
    # A run that went on later may have added cases of every workload.
    ordered = sorted(rows, key=lambda row: (workloads.index(row["workload"]), row["batch"], row["temperature"]))
    cases = list(dict.fromkeys(_case(row) for row in ordered))
    methods = list(dict.fromkeys(str(row["method"]) for row in shown))
    values = np.full((len(cases), max(len(methods), 1)), np.nan)
    # Inches: a cell holds two lines of text, the left margin the longest case.
    size = 1.05 * values.shape[1] + 0.085 * max(map(len, cases)) + 0.6, 0.42 * len(cases) + 1.5
    figure = Figure(figsize=(max(size[0], 5.0), size[1]), layout="constrained")
    axes = figure.add_subplot()
    for row in shown:
        y, x = cases.index(_case(row)), methods.index(str(row["method"]))
        values[y, x] = max(-_CLIP, min(_CLIP, log2(row["speed_up"])))
        low, high = row["interval"]
        text = f"{row['speed_up']:.2f}{'' if row['precise'] else '*'}\n{low:.2f} to {high:.2f}"
        colour = "white" if abs(values[y, x]) > 0.6 * _CLIP else "black"
        axes.text(x, y, text, ha="center", va="center", fontsize=7, color=colour, linespacing=1.1)
        if row["speed_up"] < NOT_SLOWER:
            axes.add_patch(Rectangle((x - 0.47, y - 0.46), 0.94, 0.92, fill=False, edgecolor="black", linewidth=1.8))
    axes.imshow(values, cmap="RdBu", vmin=-_CLIP, vmax=_CLIP, aspect="auto")
    axes.set_facecolor("0.92")  # what was not measured
    axes.set_xticks(range(len(methods)), methods, fontsize=8)
    axes.set_yticks(range(len(cases)), cases, fontsize=8)
    axes.tick_params(length=0, top=True, bottom=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    _part_workloads(axes, [case.partition(",")[0] for case in cases])
    figure.suptitle(title, fontsize=10)
    figure.supxlabel(
        f"times plain decoding, 95 % interval; framed: below {NOT_SLOWER:g}; *: interval wider than asked for",
        fontsize=7,
    )
    figure.savefig(path, dpi=150)


def _case(row: Mapping[str, Any]) -> str:
    return f"{row['workload']}, batch {row['batch']}, temp. {row['temperature']:g}"


def _part_workloads(axes: Any, names: Sequence[str]) -> None:
    for y in range(1, len(names)):
        if names[y] != names[y - 1]:
            axes.axhline(y - 0.5, color="black", linewidth=0.6)
