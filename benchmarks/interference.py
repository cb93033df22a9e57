"""How long requests that decode wait for their next token while a long prompt is read beside them.

With and without `max_prefill_slowdown`, in turn: the median time of a token before the prompt comes, the median and
the 99th percentile while it is read, and how long the prompt takes to its first token.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from benchmarks.common import start
from parlay import LLM, SamplingParams
from parlay.cli.flags import add_model
from parlay.cli.report import count, progress, report

_BEFORE = 24  # steps of the requests that decode before the prompt comes
_LENGTH = 16  # tokens of their prompts


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "smollm2")
    parser.add_argument("--prompt", type=count, default=2000, help="tokens of the prompt (default: 2000)")
    parser.add_argument("--requests", type=count, default=4, help="requests that decode (default: 4)")
    parser.add_argument("--slowdown", type=float, default=2.0, help="`max_prefill_slowdown` (default: 2)")
    parser.add_argument("--repetitions", type=count, default=5, help="of each (default: 5)")


def _run(options: argparse.Namespace) -> int:
    with progress() as tick:
        rows = measure(options, tick)
    columns = {
        "max_prefill_slowdown": ("max_prefill_slowdown", "{}"),
        "before_ms": ("ms a token before", "{:.1f}"),
        "median_ms": ("beside the prompt, median", "{:.1f}"),
        "p99_ms": ("99 %", "{:.1f}"),
        "first_token_s": ("prompt to first token, s", "{:.2f}"),
    }
    report(options, rows, columns)
    return 0


def measure(options: argparse.Namespace, tick: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return medians over the repetitions, for an engine without a bound and one with it."""
    bounds = (None, options.slowdown)
    engines = [
        LLM(options.model, max_prefill_slowdown=bound, enable_prefix_caching=False, speculative_config="none")
        for bound in bounds
    ]
    seen: list[list[tuple[float, ...]]] = [[] for _ in bounds]
    for i in range(options.repetitions + 1):
        for llm, of in zip(engines, seen, strict=True):
            tick(f"repetition {i} of {options.repetitions}")
            measured = _measure(llm, options.requests, options.prompt)
            if i:  # the first records passes, and learns what they take
                of.append(measured)
    names = ("before_ms", "median_ms", "p99_ms", "first_token_s")
    return [
        {"max_prefill_slowdown": bound, **dict(zip(names, map(median, zip(*of, strict=True)), strict=True))}
        for bound, of in zip(bounds, seen, strict=True)
    ]


def _measure(llm: LLM, requests: int, length: int) -> tuple[float, ...]:
    engine = llm.engine
    params = SamplingParams(max_tokens=length * 2, temperature=0, ignore_eos=True)
    others = [engine.add([7 + i] * _LENGTH, params)[0] for i in range(requests)]
    for _ in range(4):
        engine.step()
    before = [_step(engine) for _ in range(_BEFORE)]
    began = perf_counter()
    prompt = engine.add([3 + i % 50 for i in range(length)], SamplingParams(max_tokens=1, temperature=0))[0]
    beside = []
    while prompt.finish_reason is None:
        beside.append(_step(engine))
    took = perf_counter() - began
    for request in others:
        engine.abort(request)
    last = quantiles(beside, n=100)[-1] if len(beside) > 1 else beside[0]
    return 1e3 * median(before), 1e3 * median(beside), 1e3 * last, took


def _step(engine: Any) -> float:
    began = perf_counter()
    engine.step()
    return perf_counter() - began


main = partial(start, "interference", __doc__, _add_flags, _run)

if __name__ == "__main__":
    sys.exit(main())
