"""Bars for what a benchmark found, as a PNG file."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from parlay.errors import ConfigError

# Title of a panel, to method, to group along the axis, to value.
Panels = Mapping[str, Mapping[str, Mapping[str, float]]]


def check_target(path: Path) -> None:
    """Find out whether a plot can be written before anything is measured for it.

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
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
