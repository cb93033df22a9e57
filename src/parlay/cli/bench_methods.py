"""`parlay bench methods`."""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

from parlay.bench.options import MethodsOptions
from parlay.cli.bench_speed import add_plot_flag
from parlay.cli.drafts import add_draft_flag, given_drafts
from parlay.cli.flags import add_dequantize_flag, add_flags, add_model, given
from parlay.cli.page import check_page, write_page
from parlay.cli.report import Columns, count, progress, report
from parlay.config.speculative import TreeShape, parse_tree
from parlay.config.verification import COUPLED

_DEFAULT = MethodsOptions()

# All columns of a table; nine or ten of them fit a terminal of eighty.
_COLUMNS: Columns = {
    "model": ("model", "{}"),
    "workload": ("workload", "{}"),
    "batch": ("batch", "{:d}"),
    "temperature": ("temp", "{:g}"),
    "method": ("method", "{}"),
    "budget": ("budget", "{:d}"),
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
        aliases=["sweep"],
        help="plain decoding against every method, interleaved, on one or several models",
        description="Measure plain decoding against every method, in interleaved repetitions, until the ratios are "
        "known precisely enough; with several models and budgets of draft tokens, each of them. The exit status is 1 "
        "if a token differs.",
    )
    add = parser.add_argument
    add_model(parser, _DEFAULT.models[0])
    add("--models", nargs="+", default=[], metavar="MODEL", help="several models, in place of one")
    add_draft_flag(parser)
    add_dequantize_flag(parser)
    add_flags(parser, MethodsOptions, skip=("models", "drafts", "dequantize", "tree"))
    add(
        "--tree",
        type=_tree,
        default=_DEFAULT.tree,
        help="branches of drafts: auto, off, or for methods with weights a shape as JSON, such as "
        '\'{"width": 4, "depth": 6}\' (default: %(default)s)',
    )
    add("--turns", type=count, help=argparse.SUPPRESS)  # as --repetitions was called
    add(
        "--output",
        type=Path,
        metavar="FILE.json",
        help="write rows here after every case; with the same file a run goes on where it stopped",
    )
    add(
        "--report",
        type=Path,
        metavar="FILE.md",
        help="write the table here too, with what it was measured on: one page to attach",
    )
    add_plot_flag(parser)
    parser.set_defaults(run=_run)


def _tree(text: str) -> str | TreeShape:
    try:
        return parse_tree(json.loads(text) if text.startswith("{") else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _run(options: argparse.Namespace) -> int:
    if options.turns is not None:
        warnings.warn("--turns is called --repetitions now", DeprecationWarning, stacklevel=1)
        options.repetitions = options.turns
    values = given(MethodsOptions, vars(options))
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    own = {"models": tuple(options.models) or (options.model,), "drafts": given_drafts(options)}
    measured = MethodsOptions(**values | own)
    from parlay.bench.methods import measure
    from parlay.bench.plots import check_target, draw_ratios

    if options.plot is not None:
        check_target(options.plot)
    if options.report is not None:
        check_page(options.report)
    with progress() as tick:
        rows = measure(measured, options.output, tick)
    if options.plot is not None:
        draw_ratios(options.plot, f"parlay bench methods, {', '.join(Path(m).name for m in measured.models)}", rows)
    left_out = {
        "model": len(measured.models) == 1,
        "budget": not measured.budgets,
        "verification": measured.verifications == (COUPLED,),
        # Ten columns have to fit a terminal of eighty.
        "decode_speed_up": len(measured.models) > 1 or bool(measured.budgets),
    }
    columns = {key: column for key, column in _COLUMNS.items() if not left_out.get(key)}
    if options.report is not None:
        write_page(options.report, "parlay bench methods", rows, _COLUMNS)
    report(options, [dict(row) for row in rows], columns)
    return 1 if any(row["same_tokens"] is False for row in rows) else 0
