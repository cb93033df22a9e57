"""Bar charts and maps of a benchmark's results, as PNG files."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from parlay.errors import ConfigError

# Title of a panel, to method, to group along the axis, to value.
Panels = Mapping[str, Mapping[str, Mapping[str, float]]]


def check_target(path: Path) -> None:
    """Check that a plot can be written before anything is measured for it.

    Raises:
        ConfigError: matplotlib is missing, or the path is no PNG file in a folder that exists.
    """
    if path.suffix.lower() != ".png" or not path.absolute().parent.is_dir():
        raise ConfigError(f"a plot is a .png file in a folder that exists, not {str(path)!r}")
    if find_spec("matplotlib") is None:
        raise ConfigError("plots need matplotlib; pip install 'parlay[plot]'")


def draw(path: Path, title: str, panels: Panels) -> None:
    """Write one panel of bars beside the other; every method has its colour, every bar its value."""
    from matplotlib.figure import Figure

    groups = max(len(values) for methods in panels.values() for values in methods.values())
    methods = max(len(methods) for methods in panels.values())
    width = len(panels) * max(3.5, 0.55 * groups * methods)
    figure = Figure(figsize=(width, 3.8), layout="constrained")
    figure.suptitle(title)
    for i, (label, bars) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), i + 1)
        names = list(dict.fromkeys(group for values in bars.values() for group in values))
        for j, (method, values) in enumerate(bars.items()):
            places = [names.index(g) + (j - (len(bars) - 1) / 2) * 0.8 / len(bars) for g in values]
            drawn = axes.bar(places, list(values.values()), 0.76 / len(bars), label=method)
            axes.bar_label(drawn, fmt="{:,.3g}", fontsize=8)
        axes.set_title(label, fontsize=10)
        axes.set_xticks(range(len(names)), names)
        axes.margins(y=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    # One legend below all panels: within one it would lie over a bar's number.
    handles = {
        label: drawn for axes in figure.axes for drawn, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=max(len(handles), 1),
        frameon=False,
        fontsize=8,
    )
    figure.savefig(path, dpi=150)


def draw_map(path: Path, title: str, cells: Mapping[str, Mapping[str, tuple[float, str]]]) -> None:
    """Write a map of values by row and column, each with a text on it; 1 is white, more is darker.

    Args:
        path: of the PNG file.
        title: above the map.
        cells: label of a row, to that of a column, to value and text.
    """
    from matplotlib.figure import Figure

    rows, columns = list(cells), list(next(iter(cells.values())))
    values = [[row[column][0] for column in columns] for row in cells.values()]
    figure = Figure(figsize=(1.5 + 0.8 * len(columns), 1.2 + 0.6 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    highest = max(max(map(max, values)), 1.1)
    axes.imshow(values, cmap="Greens", vmin=1.0, vmax=1.3 * highest, aspect="auto")
    for i, row in enumerate(cells.values()):
        for j, column in enumerate(columns):
            axes.text(j, i, row[column][1], ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel("acceptance of a node")
    axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=150)
