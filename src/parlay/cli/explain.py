"""`parlay explain`: where speculation pays, from the cost of passes on this machine."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parlay.cli.flags import add_dequantize_flag, add_model
from parlay.cli.report import add_json_flag


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "explain",
        help="time a model's passes and say where speculation pays, by batch size and acceptance",
        description="Time the target's passes of 1, 2, 4 ... rows and derive, for every batch size and acceptance, "
        "the best length of a chain and what it gains over plain decoding.",
    )
    add_model(parser, "tiny-code")
    add_dequantize_flag(parser)
    parser.add_argument("--seconds", type=float, default=5.0, help="for timing passes (default: 5)")
    parser.add_argument(
        "--draft-cost",
        type=float,
        default=0.0,
        help="of a node, as a share of a plain step of the target (default: 0, as of look-ups in the text)",
    )
    parser.add_argument("--context", type=int, default=128, help="tokens before a step (default: 128)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the speed-ups too (needs matplotlib)")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Time, derive, print."""
    from parlay.bench.explain import explain
    from parlay.bench.passes import time_passes
    from parlay.bench.plot import check_target, draw_map
    from parlay.bench.provenance import provenance
    from parlay.cli.report import print_json, progress, table

    if options.plot is not None:
        check_target(options.plot)
    with progress() as tick:
        tick(f"timing passes of {options.model}")
        timed = time_passes(options.model, options.seconds, dequantize=options.dequantize)
    found = explain(timed.costs, timed.config, timed.dtype, options.draft_cost, options.context)
    ridge = found["ridge"]
    table(
        found["passes"],
        {
            "rows": ("rows", "{:d}"),
            "ms": ("ms", "{:,.3f}"),
            "ms_per_row": ("ms/row", "{:,.3f}"),
            "to_one_row": ("to one row", "{:.2f}x"),
            "flop_per_byte": ("FLOP/byte", "{:,.1f}"),
            "gb_per_s": ("GB/s", "{:,.1f}"),
            "gflop_per_s": ("GFLOP/s", "{:,.0f}"),
        },
    )
    print("times are fitted so that more rows never take less; equal ones differ by less than the noise")
    print(
        f"ridge: up to about {ridge['rows']:.1f} rows ({ridge['flop_per_byte']:.1f} FLOP a byte) further rows are "
        "nearly free; beyond, each costs its arithmetic"
    )
    print("speed-up and best chain length k, by batch size and acceptance of a node")
    _show(found["grid"])
    for sentence in found["conclusions"]:
        print(sentence)
    if options.plot is not None:
        draw_map(options.plot, f"{options.model}: speed-up and best length", _cells(found["grid"]))
    own = f"{options.model} --temperatures 0"
    print(
        f"your acceptance: `parlay bench methods {own}` measures it for your prompts (--prompts FILE), and a "
        "server's /metrics shows it for its clients'"
    )
    print_json(options, {**found, "provenance": provenance()})
    return 0


def _cells(grid: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, tuple[float, str]]]:
    """Return speed-ups and their labels, by batch size and acceptance."""
    cells: dict[str, dict[str, tuple[float, str]]] = {}
    for cell in grid:
        text = f"{cell['speed_up']:.2f}x\nk = {cell['length']}"
        cells.setdefault(f"batch {cell['batch']}", {})[f"{cell['acceptance']:g}"] = (cell["speed_up"], text)
    return cells


def _show(grid: Sequence[Mapping[str, Any]]) -> None:
    """Print speed-ups and best lengths in colours: the greener, the more it pays."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from parlay.cli.report import paper

    cells = _cells(grid)
    acceptances = list(next(iter(cells.values())))
    shown = Table("best k at", *acceptances, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for batch, row in cells.items():
        shown.add_row(
            batch, *(Text(text.replace("x\nk = ", "x "), style=_style(value)) for value, text in row.values())
        )
    paper().print(shown)


def _style(speed_up: float) -> str:
    if speed_up <= 1:
        return "dim"
    return "yellow" if speed_up < 1.2 else "green" if speed_up < 2 else "bold green"
