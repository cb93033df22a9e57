"""`parlay bench peers`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from parlay.cli.drafts import add_draft_flag, given_drafts
from parlay.cli.report import Columns, count, progress, report

_COLUMNS: Columns = {
    "model": ("model", "{}"),
    "measured": ("measured", "{}"),
    "engine": ("engine", "{}"),
    "method": ("method", "{}"),
    "figure": ("figure", "{:,.2f}"),
    "ratio": ("parlay is", "{:.2f}x"),
    "interval": ("95 %", "{0[0]:.2f}-{0[1]:.2f}"),
}


def add_parser(kinds: Any) -> None:
    """Register the command."""
    parser = kinds.add_parser(
        "peers",
        help="parlay against llama.cpp, OpenVINO, transformers and vLLM on the same files",
        description="Measure parlay and other engines on the same files, in interleaved turns, each engine in a "
        "process and an environment of its own that this command makes. Figures are milliseconds of a step or "
        "prompt, tokens per second of completions, and perplexity; the next column says how many times as fast "
        "parlay was in the same turns.",
    )
    add = parser.add_argument
    add(
        "--model",
        action="append",
        required=True,
        metavar="[NAME=]PATH",
        help="a directory or GGUF file; may be given several times, for several forms of one model",
    )
    add(
        "--peers",
        nargs="+",
        default=[],
        metavar="NAME",
        help="llama.cpp, openvino, transformers, vllm (default: all)",
    )
    add(
        "--prompts",
        "--dataset",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="JSON lines to complete; repeatable",
    )
    add_draft_flag(parser)
    add("--rows", type=count, nargs="+", default=[1, 4, 8], help="of steps (default: 1 4 8)")
    add("--prefill", type=count, default=512, help="tokens of a prompt that is timed (default: 512)")
    add("--text", type=Path, metavar="FILE", help="plain text whose perplexity is compared")
    add("--temperatures", type=float, nargs="+", default=[0.0, 0.8], help="with speculation (default: 0 0.8)")
    add("--max-tokens", type=count, default=96, help="of a completion (default: 96)")
    add("--prefixes", type=count, help="use only this many prompts of each file")
    add("--batch-sizes", type=count, nargs="+", default=[], help="of completions side by side (default: none)")
    add("--turns", type=count, default=12, help="of steps and prompts (default: 12)")
    add("--max-model-len", type=count, default=2048, help="tokens that engines have room for (default: 2048)")
    add("--isa", choices=("avx2",), help="hold parlay and llama.cpp to this instruction set")
    add("--environments", type=Path, metavar="DIR", help="where peers are installed (default: the user's cache)")
    add("--output", type=Path, metavar="FILE.json", help="write rows here, and go on where a run has stopped")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from parlay.bench.peers import PeersOptions, measure

    asked = PeersOptions(
        models=dict(_named(model) for model in options.model),
        peers=tuple(options.peers),
        prompts=tuple(options.prompts),
        drafts=given_drafts(options),
        rows=tuple(options.rows),
        prefill=options.prefill,
        text=options.text,
        temperatures=tuple(options.temperatures),
        max_tokens=options.max_tokens,
        count=options.prefixes,
        batch_sizes=tuple(options.batch_sizes),
        turns=options.turns,
        length=options.max_model_len,
        environments=options.environments,
        isa=options.isa,
    )
    with progress() as tick:
        rows, missing = measure(asked, options.output, tick)
    report(options, rows, _COLUMNS, missing=missing)
    for who, why in missing.items():
        print(f"{who}: {why}", file=sys.stderr)
    return 0


def _named(model: str) -> tuple[str, str]:
    """Return a model's name in the table and its path."""
    name, equals, path = model.partition("=")
    return (name, path) if equals else (Path(model).name, model)
