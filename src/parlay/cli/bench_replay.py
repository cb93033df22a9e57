"""`parlay bench record` and `parlay bench replay`."""

import argparse
from pathlib import Path
from typing import Any

from parlay.cli.flags import add_model
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

_WORKLOADS = ("completion", "edit", "agent", "random")


def add_parsers(kinds: Any) -> None:
    """Register both commands."""
    recording = kinds.add_parser(
        "record",
        help="record answers and drafts, to replay without the model",
        description="Let a model answer, and record what each of its proposers guesses after every token of the "
        "answers. One file for each workload and temperature; `parlay bench replay` reads them.",
    )
    add_model(recording, "tiny-code", "the target, of tiny-code's vocabulary or with --dataset")
    recording.add_argument(
        "--workloads",
        nargs="+",
        help="what to ask (default: completion, edit, agent and random, none with --dataset)",
    )
    recording.add_argument(
        "--dataset",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="ask these prompts: JSON lines with 'turns', 'messages' or 'prompt'; may be given several times",
    )
    recording.add_argument(
        "--temperatures", type=float, nargs="+", default=[0.0, 0.8], help="of sampling (default: 0 and 0.8)"
    )
    recording.add_argument("--prompts", type=count, default=48, help="of each workload (default: 48)")
    recording.add_argument("--tokens", type=count, default=64, help="of each answer (default: 64)")
    recording.add_argument("--num-speculative-tokens", type=count, default=8, help="of a chain (default: 8)")
    recording.add_argument("--output", type=Path, required=True, help="directory to write the traces to")
    recording.set_defaults(run=_record)
    replaying = kinds.add_parser(
        "replay",
        help="chosen lengths against the best fixed one, on recorded answers, with a cost table for a clock",
        description="Run recorded answers through the scheduler, drafting and controller of the engine, without the "
        "model and without noise. Ratios are to plain decoding; the best fixed length is picked on one half of the "
        "requests and compared on the other.",
    )
    replaying.add_argument("traces", type=Path, nargs="+", help="files of `parlay bench record`, or directories")
    replaying.add_argument(
        "--costs",
        nargs="+",
        help="cost tables: presets by name, or JSON files (default: every preset, or what --measure finds)",
    )
    replaying.add_argument("--measure", metavar="MODEL", help="time the passes of a model here for a cost table")
    replaying.add_argument("--batch-sizes", type=count, nargs="+", default=[1, 8], help="requests at once (1 and 8)")
    replaying.add_argument("--methods", nargs="+", help="proposers (default: those on the host, and all recorded)")
    replaying.add_argument(
        "--lengths", type=count, nargs="+", default=[1, 2, 3, 4, 6, 8, 12, 16], help="fixed ones to compare with"
    )
    replaying.set_defaults(run=_replay)


def _record(options: argparse.Namespace) -> int:
    from parlay.bench.recording import record
    from parlay.bench.traces import write
    from parlay.errors import ConfigError

    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"traces cannot be written: {error}") from None
    rows = []
    with progress() as tick:
        for trace in record(
            options.model,
            tuple(options.workloads or (() if options.dataset else _WORKLOADS)),
            tuple(options.temperatures),
            options.prompts,
            options.tokens,
            options.num_speculative_tokens,
            tick,
            options.dataset,
        ):
            path = options.output / f"{trace.workload}-{trace.temperature:g}.jsonl.gz"
            write(path, trace)
            rows.append(
                {
                    "file": str(path),
                    "requests": len(trace.requests),
                    "methods": " ".join(trace.methods),
                    "kilobytes": path.stat().st_size / 1e3,
                    "numerics": trace.numerics,
                }
            )
    columns: Columns = {
        "file": ("file", "{}"),
        "requests": ("requests", "{:d}"),
        "methods": ("chains of", "{}"),
        "kilobytes": ("kB", "{:.0f}"),
    }
    report(options, rows, columns)
    return 0


def _replay(options: argparse.Namespace) -> int:
    from parlay.bench import costs
    from parlay.bench.regret import measure
    from parlay.bench.traces import read_all

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
