"""`parlay bench perplexity`."""

import argparse
from pathlib import Path
from typing import Any, get_args

from parlay.cli.flags import add_model, given
from parlay.cli.report import Columns, count, progress, report
from parlay.config.engine import Device
from parlay.types.cache import KVCacheDtype
from parlay.types.storage import Storage

_COLUMNS: Columns = {
    "storage": ("weights", "{}"),
    "kv_cache_dtype": ("KV cache", "{}"),
    "weights_mb": ("MB", "{:,.0f}"),
    "perplexity": ("perplexity", "{:.4f}"),
    "error": ("±", "{:.4f}"),
    "same_top": ("same top token", "{:.1%}"),
    "tokens_per_s": ("tokens/s", "{:,.0f}"),
}


def add_parser(kinds: Any) -> None:
    """Register the command."""
    parser = kinds.add_parser(
        "perplexity",
        help="what quantisation costs: perplexity of a text with weights as stored, unpacked, in eight or four bits",
        description="Measure what quantisation costs a model: the perplexity of a text in windows of equal length, "
        "of which the second half counts, and the share of tokens whose likeliest one is that of the last row.",
    )
    add_model(parser, "tiny-code")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="plain text, UTF-8")
    parser.add_argument(
        "--storages",
        nargs="+",
        choices=get_args(Storage),
        default=["stored", "plain"],
        help="forms of the matrices: as they are stored, plain numbers, int8 or int4 (default: stored and plain)",
    )
    parser.add_argument(
        "--kv-cache-dtypes",
        nargs="+",
        choices=get_args(KVCacheDtype),
        default=["auto"],
        help="dtypes of the KV cache, each with each of these (default: auto)",
    )
    parser.add_argument("--context", type=count, default=512, help="tokens of a window (default: 512)")
    parser.add_argument("--windows", type=count, help="at most so many (default: the whole text)")
    parser.add_argument(
        "--device", choices=get_args(Device), default="cpu", help="what computes (default: cpu; cuda is a GPU)"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from parlay.bench.perplexity import PerplexityOptions, measure

    values = given(PerplexityOptions, vars(options))
    values |= {name: tuple(getattr(options, name)) for name in ("storages", "kv_cache_dtypes")}
    with progress() as tick:
        rows = measure(PerplexityOptions(**values), tick)
    report(options, rows, _COLUMNS)
    return 0
