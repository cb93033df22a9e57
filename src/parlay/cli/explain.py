"""`parlay explain`: where speculation pays, from the cost of passes on this machine."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parlay.cli.flags import add_dequantize_flag, add_model
from parlay.cli.report import add_json_flag, make_console, plain_table, print_json, progress, table


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "explain",
        help="time a model's passes and say where speculation pays, by batch size and acceptance rate",
        description="Time the target's passes of 1, 2, 4 ... rows and derive, for every batch size and acceptance "
        "rate, the best length of a chain and what it gains over plain decoding.",
    )
    add_model(parser, "tiny-code")
    add_dequantize_flag(parser)
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="S", help="seconds in which passes are timed (default: 5)"
    )
    parser.add_argument(
        "--draft-cost",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="time to draft one token, as a share of a plain step of the target (default: 0, as of look-ups)",
    )
    parser.add_argument("--context", type=int, default=128, metavar="N", help="tokens before a step (default: 128)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the speed-ups too (needs matplotlib)")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Time, derive, print."""
    from dataclasses import replace

    from parlay.bench.plots import check_target, draw_payoff
    from parlay.bench.provenance import provenance
    from parlay.explain.passes import time_passes
    from parlay.explain.payoff import explain
    from parlay.models.select import describe_model, resolve_dtype

    if options.plot is not None:
        check_target(options.plot)
    config = replace(describe_model(options.model), storage="plain" if options.dequantize else "stored")
    dtype = resolve_dtype("auto", config)
    with progress() as tick:
        tick(f"timing passes of {options.model}")
        times = time_passes(config, dtype, options.seconds)
    found = explain(times, config, dtype, options.draft_cost, options.context)
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
    print("a pass that took longer than one of more rows has that one's time: the difference is noise")
    print(
        f"ridge: up to about {ridge['rows']:.1f} rows ({ridge['flop_per_byte']:.1f} FLOP a byte) further rows are "
        "nearly free; beyond, each costs its arithmetic"
    )
    print("speed-up and best chain length k, by batch size and acceptance rate of a draft token")
    _show(found["grid"])
    for sentence in found["conclusions"]:
        print(sentence)
    if options.plot is not None:
        draw_payoff(options.plot, f"{options.model}: speed-up and best length", found["grid"])
    own = f"{options.model} --temperatures 0"
    print(
        f"your acceptance rate: `parlay bench methods {own}` measures it for your prompts (--prompts FILE), and a "
        "server's /metrics shows it for its clients'"
    )
    print_json(options, {**found, "provenance": provenance()})
    return 0


def _show(grid: Sequence[Mapping[str, Any]]) -> None:
    """Print speed-ups and best lengths in colours: the greener, the more it pays."""
    from rich.text import Text

    rows: dict[int, list[Text]] = {}
    for cell in grid:
        text = f"{cell['speed_up']:.2f}x {cell['length']}"
        rows.setdefault(cell["batch"], []).append(Text(text, style=_style(cell["speed_up"])))
    rates = dict.fromkeys(f"{cell['acceptance']:g}" for cell in grid)
    shown = plain_table("best k at rate", *rates)
    for batch, texts in rows.items():
        shown.add_row(f"batch {batch}", *texts)
    make_console().print(shown)


def _style(speed_up: float) -> str:
    if speed_up <= 1:
        return "dim"
    return "yellow" if speed_up < 1.2 else "green" if speed_up < 2 else "bold green"
