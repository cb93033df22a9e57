"""`parlay bench sweep`."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parlay.bench.options import SweepOptions
from parlay.cli.bench_methods import add_case_flags, case_options, show
from parlay.cli.report import count

_DEFAULT = SweepOptions()


def add_parser(kinds: Any) -> None:
    """Register the command."""
    parser = kinds.add_parser(
        "sweep",
        help="the same for several models, and for several sizes of drafts",
        description="Measure plain decoding against every method with every budget, on several models, as `parlay "
        "bench methods` does it for one. The exit status is 1 if a token differs.",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        default=list(_DEFAULT.models),
        metavar="MODEL",
        help="the targets: directories, GGUF files, names (default: tiny-code)",
    )
    parser.add_argument(
        "--budgets", type=count, nargs="+", default=[], help="most nodes a draft (default: each method's own)"
    )
    add_case_flags(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    asked = SweepOptions(models=tuple(options.models), budgets=tuple(options.budgets), each=case_options(options))

    def measure(tick: Callable[[str], None]) -> list[dict[str, Any]]:
        from parlay.bench import sweep

        return sweep.measure(asked, options.output, tick)

    def draw(path: Path, rows: Sequence[dict[str, Any]]) -> None:
        from parlay.bench.heatmap import draw_sweep

        draw_sweep(path, "parlay bench sweep", rows)

    return show(options, measure, draw, without=("tokens_per_s", "decode_speed_up", "acceptance_length"))
