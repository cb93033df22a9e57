"""`parlay bench serve`."""

import argparse
import sys
from dataclasses import asdict
from importlib.util import find_spec
from math import isfinite
from typing import Any

from parlay import env
from parlay.bench.options import LoadOptions
from parlay.cli.bench_serving import add_plot_flag
from parlay.cli.flags import add_flags, given
from parlay.cli.report import Columns, progress, report, table
from parlay.config import build
from parlay.errors import ConfigError, visible

_LATENCY: Columns = {
    "measure": ("ms", "{}"),
    "mean": ("mean", "{:,.2f}"),
    "p50": ("p50", "{:,.2f}"),
    "p90": ("p90", "{:,.2f}"),
    "p99": ("p99", "{:,.2f}"),
}
_WHOLE: Columns = {
    "requests": ("sent", "{:,d}"),
    "completed": ("done", "{:,d}"),
    "refused": ("429", "{:,d}"),
    "failed": ("failed", "{:,d}"),
    "duration_s": ("seconds", "{:,.1f}"),
    "requests_per_s": ("requests/s", "{:,.2f}"),
    "tokens_per_s": ("tokens/s", "{:,.0f}"),
    "good_per_s": ("good/s", "{:,.2f}"),
    "late": ("late", "{:,d}"),
}
_SPECULATION: Columns = {
    "drafts": ("drafts", "{:,d}"),
    "drafted": ("nodes", "{:,d}"),
    "acceptance_rate": ("accepted", "{:.1%}"),
    "acceptance_length": ("tokens a draft", "{:.2f}"),
}


def add_parser(kinds: Any) -> None:
    """Register the command."""
    parser = kinds.add_parser(
        "serve",
        help="load on a running server of OpenAI's protocol: latencies, throughput, goodput",
        description="Send requests to a running server when they are due, whether or not it keeps up, and read the "
        "answers as streams. A key is taken from OPENAI_API_KEY. The exit status is 1 if a request failed; being "
        "refused with 429 is no failure.",
    )
    add_plot_flag(parser)
    add_flags(parser, LoadOptions, skip=("goodput",))
    parser.add_argument(
        "--goodput",
        nargs="+",
        default=argparse.SUPPRESS,
        metavar="NAME:MS",
        help="limits that make a request a good one, in milliseconds: ttft, tpot, itl, e2el, as in ttft:200 itl:50",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    values = given(LoadOptions, vars(options))
    load: LoadOptions = build(LoadOptions, {**values, "goodput": tuple(values.get("goodput", ()))}, "option")
    if find_spec("httpx") is None:
        raise ConfigError("load on a server needs httpx; pip install 'parlay[load]'")
    if options.plot is not None:
        from parlay.bench.plot import check_target

        check_target(options.plot)
    from parlay.bench.load import measure
    from parlay.bench.load_summary import LATE, latencies, panels, summarise

    with progress() as tick:
        run = measure(load, env.api_key(), tick)
    row = summarise(run, load)
    if options.plot is not None and latencies(row):
        from parlay.bench.plot import draw

        draw(options.plot, f"parlay bench serve: {row['model']}", panels(row))
    if latencies(row):
        table(latencies(row), _LATENCY)
    if row["speculation"] is not None:
        table([row["speculation"]], _SPECULATION)
    for error, count in row["errors"].items():
        print(f"{count} x {visible(error)}", file=sys.stderr)
    if row["late"]:
        print(
            f"{row['late']} of {row['requests']} requests left over {1e3 * LATE:g} ms late: the client's machine "
            "is busy, or too slow for the rate asked for",
            file=sys.stderr,
        )
    # JSON has no infinity.
    workload = {k: v if not isinstance(v, float) or isfinite(v) else str(v) for k, v in asdict(load).items()}
    report(options, [row], _WHOLE, workload=workload)
    return 1 if row["failed"] else 0
