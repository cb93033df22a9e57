"""Record a model's answers, and what each of its proposers drafts after every token of the answers.

One file for each workload and temperature; `python -m benchmarks.replay` reads them.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import start
from benchmarks.replays.recording import record
from benchmarks.replays.traces import write
from parlay.cli.flags import add_model
from parlay.cli.report import Columns, count, progress, report
from parlay.errors import ConfigError

_WORKLOADS = ("completion", "edit", "agent", "random")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    return start("record", __doc__, _add_flags, _record, arguments)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "tiny-code", "the target, of tiny-code's vocabulary or with --dataset")
    parser.add_argument(
        "--workloads",
        nargs="+",
        help="what to ask (default: completion, edit, agent and random, none with --dataset)",
    )
    parser.add_argument(
        "--dataset",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="ask these prompts: JSON lines with 'turns', 'messages' or 'prompt'; may be given several times",
    )
    parser.add_argument(
        "--temperatures", type=float, nargs="+", default=[0.0, 0.8], help="of sampling (default: 0 and 0.8)"
    )
    parser.add_argument("--prompts", type=count, default=48, help="of each workload (default: 48)")
    parser.add_argument("--tokens", type=count, default=64, help="of each answer (default: 64)")
    parser.add_argument("--num-speculative-tokens", type=count, default=8, help="of a chain (default: 8)")
    parser.add_argument("--output", type=Path, required=True, help="directory to write the traces to")


def _record(options: argparse.Namespace) -> int:
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


if __name__ == "__main__":
    sys.exit(main())
