"""`parlay bench ranks`."""

import argparse
from typing import Any

from parlay.cli.flags import add_dequantize_flag, add_model
from parlay.cli.report import Columns, count, progress, report, table

_COLUMNS: Columns = {
    "batch": ("batch", "{:d}"),
    "ranks": ("ranks", "{:d}"),
    "mode": ("mode", "{}"),
    "threads": ("threads each", "{:d}"),
    "tokens_per_s": ("tokens/s", "{:,.1f}"),
    "ratio": ("of one rank", "{:.3f}x"),
    "interval": ("95 %", "{0[0]:.3f} to {0[1]:.3f}"),
    "turns": ("turns", "{:d}"),
    "same_tokens": ("same", "{}"),
}
_EXCHANGES: Columns = {
    "ranks": ("ranks", "{:d}"),
    "kilobytes": ("kB each", "{:d}"),
    "shared_memory_us": ("shared memory, us", "{:.1f}"),
    "gloo_us": ("gloo, us", "{:.1f}"),
}
_DRAFTS: Columns = {
    "ranks": ("target's ranks", "{:d}"),
    "draft_ranks": ("draft's ranks", "{:d}"),
    "us_per_token": ("us a draft token", "{:.0f}"),
}


def add_parser(kinds: Any) -> None:
    """Register the command."""
    parser = kinds.add_parser(
        "ranks",
        help="one rank with all threads against several that share them; what an exchange takes",
        description="Compare plain decoding on one rank, which has all threads, with several ranks that share them, "
        "in interleaved turns. With stages, each has a plan under way, and so as many times the requests. "
        "The exit status is 1 if a token differs.",
    )
    add_model(parser, "tiny-code")
    parser.add_argument("--ranks", type=count, nargs="+", default=[2], help="to compare with one (default: 2)")
    parser.add_argument(
        "--modes",
        choices=("exact", "fast"),
        nargs="+",
        default=["exact"],
        help="of splitting layers (default: exact)",
    )
    parser.add_argument(
        "--stages",
        type=count,
        nargs="+",
        default=[],
        help="to compare with one rank, each stage a rank (default: none)",
    )
    parser.add_argument(
        "--batch-sizes", type=count, nargs="+", default=[1, 8], help="requests that run at once, in each plan"
    )
    parser.add_argument("--max-tokens", type=count, default=64, help="of each answer (default: 64)")
    add_dequantize_flag(parser)
    parser.add_argument("--turns", type=count, default=100, help="at most so many a batch size (default: 100)")
    parser.add_argument("--minutes", type=float, default=3.0, help="at most so long a batch size (default: 3)")
    parser.add_argument("--draft", metavar="MODEL", help="measure a draft model too, on one rank and on several")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from parlay.bench.ranks import RanksOptions, measure, measure_drafts, measure_exchanges

    asked = RanksOptions(
        model=options.model,
        ranks=tuple(options.ranks),
        modes=tuple(options.modes),
        stages=tuple(options.stages),
        batch_sizes=tuple(options.batch_sizes),
        max_tokens=options.max_tokens,
        dequantize=options.dequantize,
        turns=options.turns,
        minutes=options.minutes,
    )
    with progress() as tick:
        exchanges = [row for size in asked.ranks for row in measure_exchanges(size, tick)]
        rows = measure(asked, tick)
        drafts = measure_drafts(asked, options.draft, tick) if options.draft else []
    table(exchanges, _EXCHANGES)
    if drafts:
        table(drafts, _DRAFTS)
    report(options, rows, _COLUMNS, exchanges=exchanges, drafts=drafts)
    return 0 if all(row["same_tokens"] is not False for row in rows) else 1
