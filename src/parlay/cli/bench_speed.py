"""`parlay bench latency` and `parlay bench throughput`."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parlay import system
from parlay.bench.options import LatencyOptions, SpeedOptions, ThroughputOptions
from parlay.cli.flags import add_flags, given
from parlay.cli.report import Columns, progress, report
from parlay.cli.serving import add_model_flags, engine_options, speculation
from parlay.config import EngineConfig, SpeculativeConfig, build

_METHOD: Columns = {"method": ("method", "{}")}
_LATENCY: Columns = {
    "median_s": ("median s", "{:.3f}"),
    "p90_s": ("p90 s", "{:.3f}"),
    "first_token_ms": ("first ms", "{:.1f}"),
    "ms_per_token": ("ms/token", "{:.2f}"),
}
_THROUGHPUT: Columns = {
    "median_s": ("median s", "{:.2f}"),
    "requests_per_s": ("requests/s", "{:,.1f}"),
    "tokens_per_s": ("tokens/s", "{:,.0f}"),
}
_SPECULATION: Columns = {
    "speed_up": ("ratio", "{:.2f}x"),
    "acceptance_length": ("accept", "{:.2f}"),
    "same_tokens": ("same", "{}"),
}


def add_parsers(kinds: Any) -> None:
    """Register both commands."""
    for name, cls, columns, text in (
        (
            "latency",
            LatencyOptions,
            _LATENCY,
            "one batch at a time: seconds, time to the first token and between tokens",
        ),
        ("throughput", ThroughputOptions, _THROUGHPUT, "many prompts at once: requests and tokens per second"),
    ):
        parser = kinds.add_parser(
            name,
            help=text,
            description=f"Measure {text}. Prompts are Python code that comes with the package, cut where the seed "
            "says. With --speculative-config plain decoding and speculation alternate on the same prompts, and the "
            "exit status is 1 if a token differs.",
        )
        add_plot_flag(parser)
        add_flags(parser, cls)
        add_model_flags(parser, sampling=False, default="none, plain decoding alone is measured")
        parser.set_defaults(run=_run, kind=name, options=cls, columns=_METHOD | columns | _SPECULATION)


def add_plot_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag of the commands that can plot their results."""
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the result too (needs matplotlib)")


def _run(options: argparse.Namespace) -> int:
    workload: SpeedOptions = build(options.options, given(options.options, vars(options)), "option")
    speculative = None
    if options.speculative_config is not None:
        speculative = SpeculativeConfig.parse(speculation(options))
    from parlay.bench.plots import check_target, draw_bars
    from parlay.bench.speed import measure, panels

    if options.plot is not None:
        check_target(options.plot)

    with progress() as tick:
        rows = measure(engine_options(options), speculative, workload, tick)
    if options.plot is not None:
        model, machine = vars(options).get("model", EngineConfig().model), system.processor()[0].partition(" (")[0]
        draw_bars(options.plot, f"parlay bench {options.kind}: {Path(model).name}\n{machine}", panels(rows, workload))
    report(options, rows, options.columns, workload=asdict(workload))
    return 0 if all(row["same_tokens"] for row in rows) else 1
