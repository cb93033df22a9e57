"""One rank with all threads against several that share them, interleaved; and the time of an exchange between them.

With stages, each has a plan under way, and so as many times the requests.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.common import start
from parlay import env
from parlay.bench.repetitions import Repetitions, StopRule
from parlay.cli.flags import add_dequantize_flag, add_model
from parlay.cli.report import Columns, count, progress, report, table
from parlay.errors import ConfigError
from parlay.kernels.exchange import SharedMemory, make_memory
from parlay.kernels.select import select_kernels
from parlay.llm import LLM
from parlay.models.select import describe_model
from parlay.types.params import SamplingParams

Tick = Callable[[str], None]
_PROMPT = 8  # tokens: what counts is decoding
_KILOBYTES = (1, 4, 16, 64, 256)
_EXCHANGES = 2000
_PATIENCE = 60.0
_DRAFT, _DRAFT_REPETITIONS = 4, 12  # tokens per draft, and repetitions of each draft model
_COLUMNS: Columns = {
    "batch": ("batch", "{:d}"),
    "ranks": ("ranks", "{:d}"),
    "stages": ("stages", "{:d}"),
    "threads": ("threads each", "{:d}"),
    "tokens_per_s": ("tokens/s", "{:,.1f}"),
    "ratio": ("of one rank", "{:.3f}x"),
    "interval": ("95 %", "{0[0]:.3f} to {0[1]:.3f}"),
    "repetitions": ("repetitions", "{:d}"),
    "same_tokens": ("same", "{}"),
}
_EXCHANGE_COLUMNS: Columns = {
    "ranks": ("ranks", "{:d}"),
    "kilobytes": ("kB each", "{:d}"),
    "shared_memory_us": ("shared memory, us", "{:.1f}"),
    "gloo_us": ("gloo, us", "{:.1f}"),
}
_DRAFT_COLUMNS: Columns = {
    "ranks": ("target's ranks", "{:d}"),
    "draft_ranks": ("draft's ranks", "{:d}"),
    "us_per_token": ("us a draft token", "{:.0f}"),
}


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "tiny-code")
    add_dequantize_flag(parser)
    add = parser.add_argument
    add("--ranks", type=count, nargs="+", default=[2], help="numbers of ranks to compare with one (default: 2)")
    add("--stages", type=count, nargs="+", default=[], help="numbers of stages to compare with one rank")
    add("--batch-sizes", type=count, nargs="+", default=[1, 8], help="requests that run at once, in each plan")
    add("--max-tokens", type=count, default=64, help="tokens of each answer (default: 64)")
    add("--precision", type=float, default=0.02, help="share of a ratio that its interval may span (default: 0.02)")
    add("--repetitions", type=count, default=100, help="at most so many a batch size (default: 100)")
    add("--minutes", type=float, default=3.0, help="at most so long a batch size (default: 3)")
    add("--draft", metavar="MODEL", help="measure a draft model too, on one rank and on several")


def _run(options: argparse.Namespace) -> int:
    if min(*options.ranks, *options.stages, 2) < 2:
        raise ConfigError("--ranks and --stages must be at least 2: one rank is what they are compared with")
    with progress() as tick:
        exchanges = [row for size in options.ranks for row in measure_exchanges(size, tick)]
        rows = measure(options, tick)
        drafts = measure_drafts(options, tick) if options.draft else []
    table(exchanges, _EXCHANGE_COLUMNS)
    if drafts:
        table(drafts, _DRAFT_COLUMNS)
    report(options, rows, _COLUMNS, exchanges=exchanges, drafts=drafts)
    return 0 if all(row["same_tokens"] for row in rows) else 1


def measure(options: argparse.Namespace, tick: Tick) -> list[dict[str, Any]]:
    """Return a row for each batch size and number of ranks or stages, one rank first."""
    llms: dict[str, LLM] = {}
    for ranks, stages in [(1, 1), *((n, 1) for n in options.ranks), *((1, n) for n in options.stages)]:
        name = f"{ranks} ranks, {stages} stages"
        tick(f"loading {name}")
        llms[name] = LLM(
            options.model,
            tensor_parallel_size=ranks,
            pipeline_parallel_size=stages,
            dequantize=options.dequantize,
            max_model_len=_PROMPT + options.max_tokens,
            max_num_seqs=max(options.batch_sizes) * stages,
            speculative_config=None,
            use_tqdm_on_load=False,
        )
    rows = [row for batch in options.batch_sizes for row in _measure(options, llms, batch, tick)]
    for llm in llms.values():
        llm.engine.close()
    return rows


def _measure(options: argparse.Namespace, llms: Mapping[str, LLM], batch: int, tick: Tick) -> list[dict[str, Any]]:
    rule = StopRule(options.precision, options.repetitions, 60 * options.minutes)
    repetitions, same = Repetitions(tuple(llms)), dict.fromkeys(llms, True)
    first = repetitions.names[0]
    for llm in llms.values():
        _complete(options, llm, batch, -1)
    began = perf_counter()
    while not rule.spent(len(repetitions), perf_counter() - began):
        number = len(repetitions)
        parts = {name: partial(_complete, options, llm, batch, number) for name, llm in llms.items()}
        found = repetitions.run(parts, tick, f"batch {batch}: repetition {number + 1},")
        for name, answers in found.items():
            same[name] &= answers[:batch] == found[first]
        if rule.precise(map(repetitions.estimate, repetitions.names[1:]), len(repetitions)):
            break
    rows = []
    for name, llm in llms.items():
        config, ratio = llm.engine.config, repetitions.estimate(name)
        stages = config.pipeline_parallel_size
        rows.append(
            {
                "batch": batch,
                "ranks": config.tensor_parallel_size,
                "stages": stages,
                "threads": _threads(config.ranks),
                "tokens_per_s": stages * batch * options.max_tokens / median(repetitions.seconds[name]),
                "ratio": stages * ratio.median,
                "interval": ratio.interval and [stages * end for end in ratio.interval],
                "repetitions": len(repetitions),
                "same_tokens": same[name],
                "numerics": llm.numerics_id,
            }
        )
    return rows


def _threads(ranks: int) -> int:
    return max(1, env.threads() // ranks)


def _complete(options: argparse.Namespace, llm: LLM, batch: int, repetition: int) -> list[tuple[int, ...]]:
    # The number of threads is the process's, not an engine's: each engine sets it before it runs.
    config = llm.engine.config
    select_kernels().set_threads(_threads(config.ranks))
    torch.set_num_threads(_threads(config.ranks))
    random, vocab = torch.Generator().manual_seed(repetition + 1), describe_model(options.model).vocab_size
    requests = config.pipeline_parallel_size * batch
    prompts = [torch.randint(0, vocab, (_PROMPT,), generator=random).tolist() for _ in range(requests)]
    params = SamplingParams(temperature=0, max_tokens=options.max_tokens, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def measure_drafts(options: argparse.Namespace, tick: Tick) -> list[dict[str, Any]]:
    """Return the time of a draft model's token, on one rank and on as many as the target has."""
    rows = []
    for size in options.ranks:
        llms = {}
        for drafters in (1, size):
            how = {"model": options.draft, "draft_tensor_parallel_size": drafters, "lengths": "fixed", "tree": "off"}
            llms[drafters] = LLM(
                options.model,
                tensor_parallel_size=size,
                max_model_len=_PROMPT + options.max_tokens,
                speculative_config={**how, "num_speculative_tokens": _DRAFT},
                use_tqdm_on_load=False,
            )
        times: dict[int, list[float]] = {drafters: [] for drafters in llms}
        for repetition in range(_DRAFT_REPETITIONS):
            for drafters, llm in llms.items():
                tick(f"{size} ranks, draft on {drafters}: repetition {repetition + 1}")
                stats = llm.engine.stats
                before = stats.propose, stats.draft_stats.drafted
                _complete(options, llm, options.batch_sizes[0], repetition)
                if repetition:  # the first records passes
                    times[drafters].append((stats.propose - before[0]) / (stats.draft_stats.drafted - before[1]))
        for drafters, llm in llms.items():
            llm.engine.close()
            rows.append({"ranks": size, "draft_ranks": drafters, "us_per_token": 1e6 * median(times[drafters])})
    return rows


def measure_exchanges(size: int, tick: Tick) -> list[dict[str, Any]]:
    """Return the microseconds of ranks' exchanges of rows, through shared memory and through gloo, by their size."""
    rows, context = [], get_context("spawn")
    for kilobytes in _KILOBYTES:
        tick(f"{size} ranks, {kilobytes} kB each")
        memory = make_memory(size, 1024 * kilobytes)
        with tempfile.TemporaryDirectory() as folder:
            shared = (size, kilobytes, f"/proc/{os.getpid()}/fd/{memory}", folder)
            others = [context.Process(target=_exchange, args=(rank, *shared)) for rank in range(1, size)]
            for other in others:
                other.start()
            by_memory, by_gloo = _exchange(0, *shared)
            for other in others:
                other.join()
        os.close(memory)
        rows.append({"ranks": size, "kilobytes": kilobytes, "shared_memory_us": by_memory, "gloo_us": by_gloo})
    return rows


def _exchange(rank: int, size: int, kilobytes: int, memory: str, folder: str) -> tuple[float, float]:
    """Take part as one of the ranks; returns the microseconds of an exchange through shared memory and gloo."""
    torch.set_num_threads(1)
    bounds = tuple(256 * kilobytes * i for i in range(size + 1))
    with Path(memory).open("r+b") as file:
        exchange = SharedMemory(file.fileno(), rank, size, 1024 * kilobytes, _PATIENCE)
    own, out = torch.zeros(1, bounds[1]), torch.zeros(1, bounds[-1])
    shared = _time(lambda: exchange.gather(own, out, bounds))
    env.adopt({"GLOO_SOCKET_IFNAME": "lo"})
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    parts = list(torch.split(out, bounds[1], dim=1))
    gloo = _time(lambda: torch.distributed.all_gather(parts, own))
    torch.distributed.destroy_process_group()
    return shared, gloo


def _time(exchange: Callable[[], object]) -> float:
    """Return the microseconds of one of many."""
    times = []
    for _ in range(_EXCHANGES):
        began = perf_counter()
        exchange()
        times.append(perf_counter() - began)
    return 1e6 * median(times)


main = partial(start, "ranks", __doc__, _add_flags, _run)  # its exit status is 1 if a token differs

if __name__ == "__main__":
    sys.exit(main())
