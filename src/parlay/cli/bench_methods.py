"""`parlay bench methods`."""

import argparse
from pathlib import Path
from typing import Any

from parlay.bench.options import MethodsOptions
from parlay.cli.bench_serving import add_plot_flag
from parlay.cli.report import count, progress, report
from parlay.config.speculative import LENGTHS
from parlay.errors import ConfigError

_DEFAULT = MethodsOptions()


def add_parser(kinds: Any) -> None:
    """Register the command."""
    parser = kinds.add_parser(
        "methods",
        help="plain decoding against every method, in interleaved turns",
        description="Measure plain decoding against every method, in interleaved turns, until the ratios are known "
        "precisely enough. The exit status is 1 if a token differs. The last line of the output is JSON.",
    )
    add = parser.add_argument
    add("--model", default=_DEFAULT.model, help="the target: a directory, a GGUF file, a name (default: %(default)s)")
    add(
        "--workloads",
        nargs="+",
        default=[],
        metavar="NAME",
        help="what to ask: completion, edit, agent, random; the first two need tiny-code's vocabulary (default: "
        "completion with that, agent and random without, none with --prompts)",
    )
    add(
        "--prompts",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="ask these prompts: JSON lines with 'turns', 'messages' or 'prompt', .jsonl or .jsonl.gz; may be given "
        "several times",
    )
    add("--methods", nargs="+", default=[], metavar="NAME", help="compare only these (default: all, and auto)")
    add(
        "--draft",
        action="append",
        default=[],
        type=_draft,
        metavar="METHOD=PATH",
        help="the checkpoint of a method for this target; may be given several times",
    )
    add("--batch-sizes", type=count, nargs="+", default=list(_DEFAULT.batch_sizes), help="prompts that run at once")
    add("--temperatures", type=float, nargs="+", default=list(_DEFAULT.temperatures), help="of sampling")
    add("--max-tokens", type=count, default=_DEFAULT.max_tokens, help="after each prompt of a file")
    add("--prefixes", type=count, help="use only this many prompts of each workload and file")
    add("--num-speculative-tokens", type=count, help="nodes a draft (default: each method's own)")
    add("--lengths", choices=LENGTHS, default=_DEFAULT.lengths, help="of drafts (default: %(default)s)")
    add(
        "--precision",
        type=float,
        default=_DEFAULT.precision,
        help="go on with a case until every interval is within this share of its ratio (default: %(default)s)",
    )
    add("--turns", type=count, default=_DEFAULT.turns, help="at most so many a case (default: %(default)s)")
    add("--minutes", type=float, default=_DEFAULT.minutes, help="at most so long a case (default: %(default)g)")
    add(
        "--output",
        type=Path,
        metavar="FILE.json",
        help="write rows here after every case; with the same file a run goes on where it stopped",
    )
    add_plot_flag(parser)
    parser.set_defaults(run=_run)


def _draft(text: str) -> tuple[str, str]:
    method, _, path = text.partition("=")
    if not method or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not METHOD=PATH")
    return method, path


def _run(options: argparse.Namespace) -> int:
    asked = MethodsOptions(
        model=options.model,
        workloads=tuple(options.workloads),
        prompts=tuple(options.prompts),
        methods=tuple(options.methods),
        drafts=dict(options.draft),
        lengths=options.lengths,
        num_speculative_tokens=options.num_speculative_tokens,
        batch_sizes=tuple(options.batch_sizes),
        temperatures=tuple(options.temperatures),
        max_tokens=options.max_tokens,
        prefixes=options.prefixes,
        precision=options.precision,
        turns=options.turns,
        minutes=options.minutes,
    )
    if len(asked.drafts) < len(options.draft):
        raise ConfigError("--draft names a method twice; give one checkpoint each")
    if options.plot is not None:
        from parlay.bench.plot import check_target

        check_target(options.plot)
    from parlay.bench.methods import measure

    with progress() as tick:
        rows = measure(asked, options.output, tick)
    if options.plot is not None:
        from parlay.bench.heatmap import draw_heatmap

        draw_heatmap(options.plot, f"parlay bench methods, {Path(options.model).name}", rows)
    report(  # ten columns that fit a terminal of eighty
        [dict(row) for row in rows],
        {
            "workload": ("asked", "{}"),
            "batch": ("batch", "{:d}"),
            "temperature": ("temp", "{:g}"),
            "method": ("method", "{}"),
            "tokens_per_s": ("tok/s", "{:,.0f}"),
            "speed_up": ("ratio", "{:.2f}"),
            "interval": ("95 %", "{0[0]:.2f}-{0[1]:.2f}"),
            "decode_speed_up": ("later", "{:.2f}"),
            "acceptance_length": ("accept", "{:.2f}"),
            "same_tokens": ("same", "{}"),
        },
    )
    return 0 if all(row["same_tokens"] for row in rows) else 1
