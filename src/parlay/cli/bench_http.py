"""`parlay bench http`."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from parlay.bench.options import HttpOptions
from parlay.cli.flags import add_flags, given
from parlay.cli.report import Columns, progress, report
from parlay.cli.serving import add_model_flags, engine_options, read_speculation
from parlay.config import build

_COLUMNS: Columns = {
    "way": ("way", "{}"),
    "tokens_per_s": ("tokens/s", "{:,.0f}"),
    "cost": ("cost", "{:+.1%}"),
    "first_token_ms": ("first ms", "{:.1f}"),
    "front_ms_per_request": ("front ms/request", "{:.2f}"),
    "us_per_event": ("us/event", "{:.0f}"),
    "same_text": ("same", "{}"),
}


def add_parser(kinds: Any) -> None:
    """Register the command."""
    parser = kinds.add_parser(
        "http",
        help="what the server costs: the same prompts by LLM and over HTTP, whole and streamed",
        description="Start a server on this machine and give it the prompts that LLM completes too, turn by turn; "
        "the client that measures shares the machine. The exit status is 1 if a text differs.",
    )
    add_flags(parser, HttpOptions)
    add_model_flags(parser, sampling=False, default="none")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    workload: HttpOptions = build(HttpOptions, given(HttpOptions, vars(options)), "option")
    speculative = options.speculative_config
    if speculative is not None and not isinstance(found := read_speculation(speculative), str):
        speculative = json.dumps(found)
    from parlay.bench.http import measure

    with progress() as tick:
        rows = measure(engine_options(options), speculative, workload, tick)
    report(options, rows, _COLUMNS, workload=asdict(workload))
    return 0 if all(row["same_text"] for row in rows) else 1
