"""What a draft token costs with the target's whole output layer, and with the rows of the commonest tokens alone."""

import argparse
import sys
from functools import partial
from statistics import median
from typing import Any

from benchmarks.common import start
from parlay import LLM, SamplingParams
from parlay.cli.flags import add_threads_flag
from parlay.cli.report import count, progress, report
from parlay.proposers.draft_output import COMMON

_DEPTH = 8  # draft tokens per step


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="a target with a layer for further tokens")
    parser.add_argument("--method", default="mtp", help="a method with draft_vocab_size (default: mtp)")
    parser.add_argument("--draft-vocab-size", type=count, default=COMMON, help=f"rows (default: {COMMON})")
    parser.add_argument("--repetitions", type=count, default=11, help="interleaved repetitions (default: 11)")
    parser.add_argument("--max-tokens", type=count, default=16, help="of each answer (default: 16)")
    add_threads_flag(parser)


def _run(options: argparse.Namespace) -> int:
    with progress() as tick:
        rows = measure(options, tick)
    columns = {"rows": ("rows", "{:,}"), "ms": ("ms a draft token", "{:.2f}"), "step_ms": ("ms a step", "{:.1f}")}
    report(options, rows, columns)
    return 0


def measure(options: argparse.Namespace, tick: Any) -> list[dict[str, Any]]:
    """Return a row for each size of the draft vocabulary, with medians of milliseconds over the repetitions."""
    engines: dict[int, LLM] = {}
    for size in (0, options.draft_vocab_size):
        tick("loads the model")
        speculative = {"method": options.method, "lengths": "fixed", "num_speculative_tokens": _DEPTH}
        llm = LLM(
            options.model,
            max_model_len=256,
            max_num_seqs=1,
            enable_prefix_caching=False,
            speculative_config=speculative | {"draft_vocab_size": size or sys.maxsize},
        )
        engines[size or llm.engine.vocab_size] = llm
    times: dict[int, list[tuple[float, float]]] = {size: [] for size in engines}
    params = SamplingParams(temperature=0, max_tokens=options.max_tokens, ignore_eos=True)
    for repetition in range(options.repetitions + 1):
        tick(f"repetition {repetition} of {options.repetitions}")
        for size, llm in engines.items():
            stats = llm.engine.stats
            steps, drafting, forward = stats.steps, stats.propose, stats.forward
            (answer,) = llm.generate([[*range(1, 33)]], params, use_tqdm=False)
            drafted = answer.outputs[0].metrics.drafted
            if repetition:  # the first is a warm-up
                own = (stats.propose - drafting) / drafted, (stats.forward - forward) / (stats.steps - steps)
                times[size].append(own)
    medians = {size: [1e3 * median(part) for part in zip(*own, strict=True)] for size, own in times.items()}
    return [{"rows": size, "ms": ms, "step_ms": step_ms} for size, (ms, step_ms) in medians.items()]


main = partial(start, "draft_vocabulary", __doc__, _add_flags, _run)

if __name__ == "__main__":
    sys.exit(main())
