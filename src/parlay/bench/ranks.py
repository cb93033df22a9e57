"""One rank with all threads against several that share them, in interleaved turns; and the time of an exchange."""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from parlay import env
from parlay.bench.paired import StopRule, Turns, estimate
from parlay.errors import ConfigError
from parlay.kernels.exchange import SharedMemory, make_memory
from parlay.kernels.select import select_kernels
from parlay.llm import LLM
from parlay.models.select import describe_model
from parlay.types.params import SamplingParams

_PROMPT = 8  # tokens: what counts is decoding
_KILOBYTES = (1, 4, 16, 64, 256)
_EXCHANGES = 2000
_PATIENCE = 60.0
_DRAFT, _DRAFTING_TURNS = 4, 12  # tokens a draft, and turns of each draft model

Gather = Callable[[torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksOptions:
    """What is measured.

    Attributes:
        model: a directory, a GGUF file, a name.
        ranks: numbers of ranks to compare with one.
        modes: how they split layers, see `tensor_parallel_mode`.
        stages: numbers of stages to compare with one rank too, each a rank.
        batch_sizes: requests that run at once; with stages, in each plan, and each stage has one.
        max_tokens: tokens of each answer.
        dequantize: see `EngineConfig`.
        precision, turns, minutes: when a batch size has been measured enough, see `StopRule`.
    """

    model: str = "tiny-code"
    ranks: tuple[int, ...] = (2,)
    modes: tuple[str, ...] = ("exact",)
    stages: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = (1, 8)
    max_tokens: int = 64
    dequantize: bool = False
    precision: float = 0.02
    turns: int = 100
    minutes: float = 3.0

    def __post_init__(self) -> None:
        for name in ("ranks", "stages"):
            least = min(getattr(self, name), default=2)
            if least < 2:
                raise ConfigError(f"{name} must be at least 2, not {least}: one rank is what they are compared with")


def measure(options: RanksOptions, tick: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each batch size and number of ranks, one rank first.

    Args:
        options: what is measured.
        tick: called with a label before every part of a turn.

    Raises:
        ConfigError, ModelError, CapacityError: an engine cannot be started.
        RankError: a rank is lost.
    """
    vocab = describe_model(options.model).vocab_size
    llms: dict[str, LLM] = {}
    splits = [(1, "exact", 1), *product(options.ranks, options.modes, (1,))]
    splits += [(1, "exact", stages) for stages in options.stages]
    for size, mode, stages in splits:
        name = f"{size} {mode}" if size > 1 else f"{stages} stages" if stages > 1 else "1"
        tick(f"loading, ranks: {name}")
        llms[name] = LLM(
            options.model,
            tensor_parallel_size=size,
            tensor_parallel_mode=mode,
            pipeline_parallel_size=stages,
            dequantize=options.dequantize,
            max_model_len=_PROMPT + options.max_tokens,
            max_num_seqs=max(options.batch_sizes) * stages,
            speculative_config=None,
            use_tqdm_on_load=False,
        )
    rows = []
    for batch in options.batch_sizes:
        rows += _measure(options, llms, batch, vocab, tick)
    for llm in llms.values():
        llm.engine.close()
    return rows


def _measure(
    options: RanksOptions, llms: Mapping[str, LLM], batch: int, vocab: int, tick: Callable[[str], None]
) -> list[dict[str, Any]]:
    rule = StopRule(options.precision, options.turns, 60 * options.minutes)
    turns, same = Turns(tuple(llms)), dict.fromkeys(llms, True)
    for llm in llms.values():
        _complete(options, llm, batch, vocab, -1)
    began = perf_counter()
    while not rule.spent(len(turns), perf_counter() - began):
        number = len(turns)
        parts = {name: partial(_complete, options, llm, batch, vocab, number) for name, llm in llms.items()}
        label = f"batch {batch}: turn {number + 1}, ranks"
        found = turns.take(parts, tick, label)
        for name, answers in found.items():
            same[name] &= answers[:batch] == found["1"]
        if rule.precise((estimate(turns.ratios(name)) for name in turns.names[1:]), len(turns)):
            break
    rows = []
    for name in turns.names:
        config = llms[name].engine.config
        ranks, stages = config.split
        ratio = estimate([stages * one for one in turns.ratios(name)])
        rows.append(
            {
                "batch": batch,
                "ranks": config.ranks,
                "mode": "stages" if stages > 1 else config.tensor_parallel_mode if ranks > 1 else "",
                "threads": _threads(config.ranks),
                "tokens_per_s": stages * batch * options.max_tokens / median(turns.seconds[name]),
                "ratio": ratio.median,
                "interval": ratio.interval,
                "turns": len(turns),
                "same_tokens": same[name] if config.tensor_parallel_mode == "exact" else None,
                "numerics": llms[name].numerics_id,
            }
        )
    return rows


def _threads(ranks: int) -> int:
    return max(1, env.threads() // ranks)


def _complete(options: RanksOptions, llm: LLM, batch: int, vocab: int, turn: int) -> list[tuple[int, ...]]:
    # The number of threads is the process's, not an engine's: each engine sets it before its turn.
    config = llm.engine.config
    threads = _threads(config.ranks)
    select_kernels().set_threads(threads)
    torch.set_num_threads(threads)
    random = torch.Generator().manual_seed(turn + 1)
    stages = config.pipeline_parallel_size
    prompts = [torch.randint(0, vocab, (_PROMPT,), generator=random).tolist() for _ in range(stages * batch)]
    params = SamplingParams(temperature=0, max_tokens=options.max_tokens, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def measure_drafts(options: RanksOptions, draft: str, tick: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return what a token of a draft model's takes on one rank, and on as many as the target has.

    Args:
        options: what is measured; of batch sizes the first.
        draft: directory or name of the draft model.
        tick: called with a label before every turn.

    Returns:
        Rows with the numbers of ranks and `us_per_token`, the median over all turns.
    """
    vocab, rows = describe_model(options.model).vocab_size, []
    for size in options.ranks:
        llms = {}
        for drafters in (1, size):
            how = {"model": draft, "draft_tensor_parallel_size": drafters, "lengths": "fixed", "tree": "off"}
            llms[drafters] = LLM(
                options.model,
                tensor_parallel_size=size,
                max_model_len=_PROMPT + options.max_tokens,
                speculative_config={**how, "num_speculative_tokens": _DRAFT},
                use_tqdm_on_load=False,
            )
        times: dict[int, list[float]] = {drafters: [] for drafters in llms}
        for turn in range(_DRAFTING_TURNS):
            for drafters, llm in llms.items():
                tick(f"{size} ranks, draft on {drafters}: turn {turn + 1}")
                stats = llm.engine.stats
                before = stats.propose, stats.guesses.drafted
                _complete(options, llm, options.batch_sizes[0], vocab, turn)
                if turn:  # the first records passes
                    times[drafters].append((stats.propose - before[0]) / (stats.guesses.drafted - before[1]))
        for drafters, llm in llms.items():
            llm.engine.close()
            rows.append({"ranks": size, "draft_ranks": drafters, "us_per_token": 1e6 * median(times[drafters])})
    return rows


def measure_exchanges(size: int, tick: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the time of ranks' exchanges of rows, through shared memory and through gloo.

    Args:
        size: ranks there are.
        tick: called with a label before every measurement.

    Returns:
        Rows with `kilobytes` of each rank's share, and the microseconds of an exchange in either way.
    """
    rows = []
    for kilobytes in _KILOBYTES:
        tick(f"{size} ranks, {kilobytes} kB each")
        memory = make_memory(size, 1024 * kilobytes)
        with tempfile.TemporaryDirectory() as folder:
            place = f"/proc/{os.getpid()}/fd/{memory}"
            context = get_context("spawn")
            others = [
                context.Process(target=_partner, args=(rank, size, kilobytes, place, folder))
                for rank in range(1, size)
            ]
            for other in others:
                other.start()
            shared, gloo = _partner(0, size, kilobytes, place, folder)
            for other in others:
                other.join()
        os.close(memory)
        rows.append({"ranks": size, "kilobytes": kilobytes, "shared_memory_us": shared, "gloo_us": gloo})
    return rows


def _partner(rank: int, size: int, kilobytes: int, memory: str, folder: str) -> tuple[float, float]:
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
