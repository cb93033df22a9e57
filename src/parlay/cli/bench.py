"""`parlay bench`: the commands behind every figure in the documents."""

import argparse
from pathlib import Path
from typing import Any

from parlay.cli import (
    bench_http,
    bench_load,
    bench_methods,
    bench_peers,
    bench_perplexity,
    bench_ranks,
    bench_replay,
    bench_serving,
    bench_sweep,
)
from parlay.cli.flags import add_dequantize_flag, add_model
from parlay.cli.report import add_json_flag
from parlay.cli.report import count as _count
from parlay.cli.report import progress as _progress
from parlay.cli.report import report as _report
from parlay.cli.report import table as _table


def add_parser(commands: Any) -> None:
    """Register the command and its own commands."""
    parser = commands.add_parser("bench", help="measure this machine: methods, latency, throughput, servers")
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    bench_methods.add_parser(kinds)
    bench_sweep.add_parser(kinds)
    bench_perplexity.add_parser(kinds)
    bench_ranks.add_parser(kinds)
    bench_peers.add_parser(kinds)
    structured = kinds.add_parser("structured", help="answers to JSON schemas, with and without speculation")
    add_model(structured, "tiny-code", "the target, of tiny-code's vocabulary or with --dataset")
    structured.add_argument(
        "--dataset",
        type=Path,
        metavar="FILE",
        help="ask these prompts: JSON lines with 'turns', 'messages' or 'prompt'",
    )
    structured.add_argument("--batch-sizes", type=_count, nargs="+", default=[1, 8], help="requests that run at once")
    structured.add_argument("--requests", type=_count, default=128, help="how many answers (default: 128)")
    structured.add_argument(
        "--num-speculative-tokens", type=_count, help="nodes a draft (default: each proposer's own)"
    )
    structured.set_defaults(run=_structured)
    bench_serving.add_parsers(kinds)
    bench_load.add_parser(kinds)
    bench_http.add_parser(kinds)
    bench_replay.add_parsers(kinds)
    peer = kinds.add_parser("transformers", help="plain decoding against transformers' generate")
    add_model(peer, "tiny-code", "the model, of tiny-code's vocabulary or with --dataset")
    peer.add_argument("--batch-sizes", type=_count, nargs="+", default=[1, 8], help="prefixes that run at once")
    peer.add_argument("--prefixes", type=_count, default=64, help="prefixes for each batch size (default: 64)")
    peer.add_argument(
        "--dataset",
        type=Path,
        metavar="FILE",
        help="complete these prompts, JSON lines, all cut to the shortest's length",
    )
    peer.add_argument("--prompt-length", type=_count, help="also compare one prompt of this many tokens")
    peer.set_defaults(run=_transformers)
    sampling = kinds.add_parser("sampling", help="choosing one token from a big vocabulary")
    sampling.add_argument("--vocab-size", type=_count, default=131072, help="tokens (default: 131072)")
    sampling.add_argument("--rounds", type=_count, default=100, help="draws of each kind (default: 100)")
    sampling.set_defaults(run=_sampling)
    startup = kinds.add_parser("startup", help="from the start of the process to the first token")
    add_model(startup, "tiny-code")
    startup.add_argument("--repeats", type=_count, default=5, help="starts that count (default: 5)")
    startup.add_argument(
        "--server", action="store_true", help="memory of `parlay serve` instead, idle and after a request"
    )
    startup.set_defaults(run=_startup)
    roofline = kinds.add_parser("roofline", help="each kind of step against what this machine allows")
    add_model(roofline, "tiny-code")
    add_dequantize_flag(roofline)
    roofline.add_argument("--context", type=_count, default=128, help="tokens before a step (default: 128)")
    roofline.add_argument("--prompt", type=_count, default=2048, help="tokens of a prefill (default: 2048)")
    roofline.add_argument("--temperature", type=float, default=0.0, help="of sampling (default: 0)")
    roofline.add_argument("--rounds", type=_count, default=20, help="turns of each kind of step (default: 20)")
    roofline.add_argument("--speculative-config", metavar="JSON", help="a method to measure too, with its drafting")
    roofline.set_defaults(run=_roofline)
    for one in kinds.choices.values():
        add_json_flag(one)


def _structured(options: argparse.Namespace) -> int:
    from parlay.bench.structured import measure

    sizes = tuple(options.batch_sizes)
    length, dataset = options.num_speculative_tokens, options.dataset
    with _progress() as tick:
        rows = list(measure(options.model, sizes, options.requests, length, tick, dataset))
    _report(
        options,
        rows,
        {
            "batch": ("batch", "{:d}"),
            "temperature": ("temp.", "{:g}"),
            "method": ("method", "{}"),
            "tokens_per_s": ("tok/s", "{:,.0f}"),
            "speed_up": ("ratio", "{:.2f}x"),
            "acceptance_length": ("accept", "{:.2f}"),
            "forced_share": ("forced", "{:.0%}"),
            "stopped": ("ended", "{:.0%}"),
            "grammar_us_per_token": ("grammar us/tok", "{0[median]:.0f}"),
            "same_tokens": ("same", "{}"),
        },
    )
    return 0 if all(row["same_tokens"] for row in rows) else 1


def _transformers(options: argparse.Namespace) -> int:
    from parlay.bench.peer import measure

    with _progress() as tick:
        rows = measure(
            options.model,
            tuple(options.batch_sizes),
            options.prefixes,
            options.prompt_length,
            tick,
            dataset=options.dataset,
        )
    _report(
        options,
        rows,
        {
            "batch": ("batch", "{:d}"),
            "prompt": ("prompt", "{:d}"),
            "new": ("new", "{:d}"),
            "parlay_tokens_per_s": ("parlay tok/s", "{:,.0f}"),
            "transformers_tokens_per_s": ("transformers tok/s", "{:,.0f}"),
            "speed_up": ("speed-up", "{:.2f}x"),
            "equal_texts": ("equal texts", "{:.0%}"),
        },
    )
    return 0


def _sampling(options: argparse.Namespace) -> int:
    from parlay.bench.sampling import measure

    with _progress() as tick:
        rows = measure(options.vocab_size, options.rounds, tick)
    _report(options, rows, {"logits": ("logits", "{}"), "way": ("way", "{}"), "ms": ("ms", "{:.3f}")})
    return 0


def _startup(options: argparse.Namespace) -> int:
    from parlay.bench.server_memory import measure as measure_memory
    from parlay.bench.startup import measure

    if options.server:
        memory = measure_memory(options.model)
        rows = [memory | {"idle_mb": memory["idle"] / 1e6, "after_mb": memory["after_a_request"] / 1e6}]
        _report(options, rows, {"idle_mb": ("idle, MB", "{:.0f}"), "after_mb": ("after a request, MB", "{:.0f}")})
        return 0
    with _progress() as tick:
        row = measure(options.model, options.repeats, tick)
    _report(
        options,
        [row],
        {"seconds_to_first_token": ("seconds to first token", "{:.2f}"), "repeats": ("repeats", "{:d}")},
    )
    return 0


def _roofline(options: argparse.Namespace) -> int:
    from parlay.bench.roofline import measure
    from parlay.cli.serving import read_speculation
    from parlay.config import SpeculativeConfig

    asked = options.speculative_config
    speculative = None if asked is None else SpeculativeConfig.parse(read_speculation(asked))
    with _progress() as tick:
        result = measure(
            options.model,
            options.context,
            options.prompt,
            options.temperature,
            options.rounds,
            speculative,
            tick,
            dequantize=options.dequantize,
        )
    rows = result["rows"]
    _table(
        result["machine"],
        {"rate": ("all threads", "{}"), "best": ("best, G/s", "{:,.1f}"), "median": ("median, G/s", "{:,.1f}")},
    )
    _table(
        [
            {"component": name} | {row["step"]: row["components"][name]["share"] for row in rows}
            for name in rows[0]["components"]
        ],
        {"component": ("share", "{}")} | {row["step"]: (row["step"], "{:.1%}") for row in rows},
    )
    _report(
        options,
        rows,
        {
            "step": ("step", "{}"),
            "rows": ("rows", "{:g}"),
            "ms": ("ms", "{:,.3f}"),
            "floor_ms": ("floor", "{:,.3f}"),
            "floor_share": ("floor / ms", "{:.0%}"),
            "ratio": ("to plain", "{:.2f}x"),
        },
        machine=result["machine"],
        kernels=result["kernels"],
    )
    return 0
