"""Plain decoding against every proposer, by the evaluation protocol, interleaved."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from parlay.bench.contenders import engines
from parlay.bench.protocol import TEMPERATURES, Prefix, load_prefixes, params_for, repeated_share
from parlay.bench.workloads import workload
from parlay.engine.stats import EngineStats, Reliability
from parlay.llm import LLM
from parlay.types.output import CompletionOutput

_ROUND = 16  # prefixes that each method completes before the next has its turn


@dataclass
class _Run:
    """One method's results under one batch size and temperature."""

    outputs: list[CompletionOutput] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # a round
    per_token: list[float] = field(default_factory=list)  # a request: seconds a token after the first


def measure(
    model: str,
    workloads: tuple[str, ...],
    batch_sizes: tuple[int, ...],
    prefixes: int | None,
    length: int | None,
    lengths: str,
    tick: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Yield one row a workload, batch size, temperature and method; `parlay.bench.contenders` says which.

    Methods take turns every few prefixes, so that drift of the machine hits all alike; a speed-up is the median of
    the rounds' ratios.

    Args:
        model: the target: `tiny-code`, or a model with its vocabulary.
        workloads: names of `parlay.bench.workloads.WORKLOADS`.
        batch_sizes: how many prompts run at once.
        prefixes: use only this many of each workload, for a quick look.
        length: nodes a draft; None takes each proposer's default.
        lengths: see `SpeculativeConfig`.
        tick: called with a label before every round.
    """
    for name in workloads:
        chosen = workload(name, prefixes)
        for batch_size in batch_sizes:
            for temperature in TEMPERATURES:
                case = {"workload": name, "batch": batch_size, "temperature": temperature}
                for row in _case(model, length, lengths, chosen, batch_size, temperature, tick):
                    yield case | row


def _case(
    model: str,
    length: int | None,
    lengths: str,
    chosen: list[Prefix],
    batch_size: int,
    temperature: float,
    tick: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Yield one row a method. Engines are new: a proposer may remember what it was asked before."""
    tick(f"batch {batch_size}, temperature {temperature:g}: loading")
    llms = engines(model, length, batch_size, lengths)
    plain = next(iter(llms))
    runs = {name: _Run() for name in llms}
    nonsense = [Prefix(p.number, p.tokens[::-1]) for p in load_prefixes(8)]  # which teaches nothing about the rest
    for llm in llms.values():
        _complete(llm, nonsense, batch_size, temperature)  # warm-up
        llm.engine.stats.reset()
    for start in range(0, len(chosen), _ROUND):
        for name, llm in llms.items():
            tick(f"batch {batch_size}, temperature {temperature:g}: {name}")
            began = perf_counter()
            outputs = _complete(llm, chosen[start : start + _ROUND], batch_size, temperature)
            runs[name].seconds.append(perf_counter() - began)
            runs[name].outputs += outputs
            runs[name].per_token += [
                (o.metrics.finished - o.metrics.first_token) / (o.metrics.emitted - 1) for o in outputs
            ]
    for name, run in runs.items():
        row = _row(run, runs[plain], llms[name].engine.stats)
        yield {"method": "plain" if name == plain else name, "numerics": llms[name].numerics_id} | row


def _complete(llm: LLM, prefixes: list[Prefix], batch_size: int, temperature: float) -> list[CompletionOutput]:
    outputs = []
    for start in range(0, len(prefixes), batch_size):
        batch = prefixes[start : start + batch_size]
        results = llm.generate([p.tokens for p in batch], [params_for(p, temperature) for p in batch], use_tqdm=False)
        outputs += [r.outputs[0] for r in results]
    return outputs


def _row(run: _Run, plain: _Run, stats: EngineStats) -> dict[str, Any]:
    metrics = [o.metrics for o in run.outputs]
    drafted, accepted = sum(m.drafted for m in metrics), sum(m.accepted for m in metrics)
    depth = max(len(m.accepted_per_position) for m in metrics)
    rounds = zip(plain.seconds, run.seconds, strict=True)
    return {
        "tokens_per_s": sum(m.emitted for m in metrics) / sum(run.seconds),
        "speed_up": median(p / own for p, own in rounds),
        "ms_per_token": 1e3 * median(run.per_token),
        "decode_speed_up": median(p / own for p, own in zip(plain.per_token, run.per_token, strict=True)),
        "acceptance_length": sum(m.emitted for m in metrics) / sum(m.steps for m in metrics),
        "acceptance_rate": accepted / drafted if drafted else None,
        "accepted_per_position": [
            sum(m.accepted_per_position[i] for m in metrics if i < len(m.accepted_per_position)) for i in range(depth)
        ],
        "calibration": _calibration(stats.reliability),
        "drafts": sum(m.drafts for m in metrics),
        "same_tokens": [o.token_ids for o in run.outputs] == [o.token_ids for o in plain.outputs],
        "repeated_8_grams": repeated_share([o.token_ids for o in run.outputs]),
        "step_ms": {
            "forward": 1e3 * stats.forward / stats.steps,
            "propose": 1e3 * stats.propose / stats.steps,
            "outside": 1e3 * (stats.verify + stats.schedule) / stats.steps,
        },
    }


def _calibration(found: Reliability) -> dict[str, Any] | None:
    """Return how well the probabilities of judged nodes foretold what became of them; None if there were none."""
    nodes = sum(found.judged)
    if not nodes:
        return None
    return {
        "nodes": nodes,
        "expected": sum(found.expected) / nodes,
        "accepted": sum(found.accepted) / nodes,
        "error": found.error,
    }
