"""`parlay bench methods`, and what `parlay bench sweep` shares with it."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parlay.bench.options import MethodsOptions
from parlay.cli.bench_serving import add_plot_flag
from parlay.cli.drafts import add_draft_flag, given_drafts
from parlay.cli.flags import add_dequantize_flag, add_model
from parlay.cli.report import Columns, count, progress, report
from parlay.config.speculative import LENGTHS, TreeShape, parse_tree
from parlay.config.verification import COUPLED, VERIFICATIONS

_DEFAULT = MethodsOptions()

# All columns of a table; nine or ten of them fit a terminal of eighty.
COLUMNS: Columns = {
    "model": ("model", "{}"),
    "workload": ("workload", "{}"),
    "batch": ("batch", "{:d}"),
    "temperature": ("temp", "{:g}"),
    "method": ("method", "{}"),
    "budget": ("nodes", "{:d}"),
    "verification": ("verified", "{}"),
    "tokens_per_s": ("tok/s", "{:,.0f}"),
    "speed_up": ("ratio", "{:.2f}"),
    "interval": ("95 %", "{0[0]:.2f}-{0[1]:.2f}"),
    "decode_speed_up": ("decode", "{:.2f}"),
    "acceptance_length": ("accept", "{:.2f}"),
    "same_tokens": ("same", "{}"),
}


def add_parser(kinds: Any) -> None:
    """Register the command."""
    parser = kinds.add_parser(
        "methods",
        help="plain decoding against every method, in interleaved turns",
        description="Measure plain decoding against every method, in interleaved turns, until the ratios are known "
        "precisely enough. The exit status is 1 if a token differs.",
    )
    add = parser.add_argument
    add_model(parser, _DEFAULT.model)
    add("--num-speculative-tokens", type=count, help="nodes a draft (default: each method's own)")
    add(
        "--verifications",
        nargs="+",
        choices=VERIFICATIONS,
        default=[COUPLED],
        help="methods with weights take part once with each (default: coupled); only coupled keeps a seed's tokens",
    )
    add_case_flags(parser)
    parser.set_defaults(run=_run)


def add_case_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of one model's measurement: what is asked, and for how long."""
    add = parser.add_argument
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
        "--dataset",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="ask these prompts: JSON lines with 'turns', 'messages' or 'prompt', .jsonl or .jsonl.gz; may be given "
        "several times",
    )
    add(
        "--methods",
        nargs="+",
        default=[],
        metavar="NAME",
        help="compare only these (default: all, and auto); "
        "suffix+eagle3 for two whose drafts become one, auto+eagle3 for auto with weights",
    )
    add_draft_flag(parser)
    add_dequantize_flag(parser)
    add("--batch-sizes", type=count, nargs="+", default=list(_DEFAULT.batch_sizes), help="prompts that run at once")
    add("--temperatures", type=float, nargs="+", default=list(_DEFAULT.temperatures), help="of sampling")
    add("--max-tokens", type=count, default=_DEFAULT.max_tokens, help="after each prompt of a file")
    add("--prefixes", type=count, help="use only this many prompts of each workload and file")
    add("--lengths", choices=LENGTHS, default=_DEFAULT.lengths, help="of drafts (default: %(default)s)")
    add(
        "--tree",
        type=_tree,
        default=_DEFAULT.tree,
        help="branches of drafts: auto, off, or for methods with weights a shape as JSON, such as "
        '\'{"width": 4, "depth": 6}\' (default: %(default)s)',
    )
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


def _tree(text: str) -> str | TreeShape:
    try:
        return parse_tree(json.loads(text) if text.startswith("{") else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def case_options(options: argparse.Namespace, **own: Any) -> MethodsOptions:
    """Return the values of `add_case_flags`' flags, and a command's own options.

    Raises:
        ConfigError: one of them is out of range, or two contradict each other.
    """
    return MethodsOptions(
        workloads=tuple(options.workloads),
        prompts=tuple(options.prompts),
        methods=tuple(options.methods),
        drafts=given_drafts(options),
        lengths=options.lengths,
        tree=options.tree,
        dequantize=options.dequantize,
        batch_sizes=tuple(options.batch_sizes),
        temperatures=tuple(options.temperatures),
        max_tokens=options.max_tokens,
        prefixes=options.prefixes,
        precision=options.precision,
        turns=options.turns,
        minutes=options.minutes,
        **own,
    )


def show(
    options: argparse.Namespace,
    measure: Callable[[Callable[[str], None]], list[dict[str, Any]]],
    draw: Callable[[Path, Sequence[dict[str, Any]]], None],
    without: Sequence[str],
) -> int:
    """Measure, draw if a plot was asked for, print, and return the exit status: 1 if a token differs.

    Args:
        options: of the command line.
        measure: is given a progress function, and returns rows.
        draw: writes them as a plot.
        without: keys of `COLUMNS` that the table leaves out.

    Raises:
        ConfigError: a plot cannot be written; nothing was measured then.
    """
    if options.plot is not None:
        from parlay.bench.plot import check_target

        check_target(options.plot)
    with progress() as tick:
        rows = measure(tick)
    if options.plot is not None:
        draw(options.plot, rows)
    columns = {key: column for key, column in COLUMNS.items() if key not in without}
    report(options, [dict(row) for row in rows], columns)
    return 1 if any(row["same_tokens"] is False for row in rows) else 0


def _run(options: argparse.Namespace) -> int:
    asked = case_options(
        options,
        model=options.model,
        num_speculative_tokens=options.num_speculative_tokens,
        verifications=tuple(options.verifications),
    )

    def measure(tick: Callable[[str], None]) -> list[dict[str, Any]]:
        from parlay.bench import methods

        return methods.measure(asked, options.output, tick)

    def draw(path: Path, rows: Sequence[dict[str, Any]]) -> None:
        from parlay.bench.heatmap import draw_heatmap

        draw_heatmap(path, f"parlay bench methods, {Path(options.model).name}", rows)

    usual = asked.verifications == (COUPLED,)
    return show(options, measure, draw, without=("model", "budget", *(("verification",) if usual else ())))
