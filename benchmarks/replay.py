"""Chosen draft lengths against the best fixed one, on recorded answers, with a cost table for a clock.

Recorded answers run through the engine's scheduler and drafting, without the model and without noise. Ratios are to
plain decoding; the best fixed length is picked on one half of the requests and compared on the other.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import start
from benchmarks.replays import costs
from benchmarks.replays.regret import measure
from benchmarks.replays.traces import read_all
from parlay.cli.report import Columns, count, progress, report

_COLUMNS: Columns = {
    "workload": ("workload", "{}"),
    "temperature": ("temp.", "{:g}"),
    "batch": ("batch", "{:d}"),
    "costs": ("costs", "{}"),
    "method": ("method", "{}"),
    "best_length": ("best", "{}"),
    "best_ratio": ("fixed", "{:.2f}x"),
    "chosen_ratio": ("chosen", "{:.2f}x"),
    "regret": ("regret", "{:.1%}"),
    "mean_length": ("length", "{:.1f}"),
    "drafted_share": ("drafted", "{:.0%}"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    return start("replay", __doc__, _add_flags, _replay, arguments)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("traces", type=Path, nargs="+", help="files of `python -m benchmarks.record`, or directories")
    parser.add_argument(
        "--costs",
        nargs="+",
        help="cost tables: presets by name, or JSON files (default: every preset, or what --measure finds)",
    )
    parser.add_argument("--measure", metavar="MODEL", help="time the passes of a model here for a cost table")
    parser.add_argument("--batch-sizes", type=count, nargs="+", default=[1, 8], help="requests at once (1 and 8)")
    parser.add_argument("--methods", nargs="+", help="proposers (default: those on the host, and all recorded)")
    parser.add_argument(
        "--lengths", type=count, nargs="+", default=[1, 2, 3, 4, 6, 8, 12, 16], help="fixed ones to compare with"
    )


def _replay(options: argparse.Namespace) -> int:
    with progress() as tick:
        tables = [
            costs.preset(name) if name in costs.PRESETS or not Path(name).is_file() else costs.read(Path(name))
            for name in options.costs or ()
        ]
        if options.measure is not None:
            from parlay.explain.passes import time_passes
            from parlay.models.select import describe_model, resolve_dtype

            tick(f"timing passes of {options.measure}")
            config = describe_model(options.measure)
            timed = time_passes(config, resolve_dtype("auto", config), 2.0).timed
            tables.append(costs.of_passes(options.measure, timed, 0.0))
        rows = list(
            measure(
                read_all(options.traces),
                options.batch_sizes,
                tables or list(costs.PRESETS.values()),
                options.methods,
                options.lengths,
                tick,
            )
        )
    report(options, rows, _COLUMNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
