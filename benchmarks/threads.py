"""Forward passes by number of threads, interleaved: which number is best, and what more threads than cores cost."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from benchmarks.common import start
from parlay import env
from parlay.cli.flags import add_model
from parlay.cli.report import count, progress, report
from parlay.engine.timing import timed_passes
from parlay.explain.passes import load_runner
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, resolve_dtype

_ROWS = (1, 8, 256)
_SECONDS = 60.0  # for each number in a round: enough for a dozen passes of most models
_COLUMNS = {
    "threads": ("threads", "{:d}"),
    **{f"ms_{rows}": (f"ms, {rows} row{'s' * (rows > 1)}", "{:.2f}") for rows in _ROWS},
}


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "tiny-code")
    text = "numbers of threads (default: powers of two up to twice the cores, and the cores)"
    cores = env.threads()
    usual = sorted({cores, *(1 << i for i in range((2 * cores).bit_length()))})
    parser.add_argument("--counts", type=count, nargs="+", default=usual, help=text)
    parser.add_argument("--rounds", type=count, default=4, help="rounds, each with every number (default: 4)")


def _run(options: argparse.Namespace) -> int:
    with progress() as tick:
        rows = measure(options, tick)
    report(options, rows, _COLUMNS)
    return 0


def measure(options: argparse.Namespace, tick: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the median milliseconds of passes by number of threads."""
    config = describe_model(options.model)
    kernels = select_kernels()
    runner, blocks = load_runner(config, resolve_dtype("auto", config), max(_ROWS), kernels)
    found: dict[tuple[int, int], list[float]] = {}
    for turn in range(options.rounds):
        for threads in options.counts:
            tick(f"{threads} threads, round {turn + 1} of {options.rounds}")
            kernels.set_threads(threads)
            for rows, seconds in timed_passes(runner, blocks, _SECONDS, _ROWS, of=median):
                found.setdefault((threads, rows), []).append(1e3 * seconds)
    return [
        {"threads": threads} | {f"ms_{rows}": median(found[threads, rows]) for rows in _ROWS}
        for threads in options.counts
    ]


main = partial(start, "threads", __doc__, _add_flags, _run)

if __name__ == "__main__":
    sys.exit(main())
