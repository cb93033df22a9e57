"""Each kind of step against what the machine allows: its floor, its time, and where the time goes.

Kinds of steps take turns, so that drift affects all alike, and each is between two measurements of the machine's
rates, since other load may halve these from one second to the next. Drafts to verify are random tokens: the cost of a
step does not depend on how much of its draft is accepted.
"""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from statistics import median
from typing import Any

import torch

from parlay import env
from parlay.bench.probe import Machine, Rates
from parlay.bench.rig import Guesser, Rig, Sample
from parlay.bench.timing import TimedKernels
from parlay.bench.work import Work, linear_names
from parlay.config import SpeculativeConfig
from parlay.config.speculative import plain
from parlay.errors import ConfigError
from parlay.kernels.select import select_kernels
from parlay.kernels.tuning import tune
from parlay.models.select import CausalModel as Model
from parlay.models.select import describe_model, load_model, resolve_dtype
from parlay.proposers.base import TargetInfo
from parlay.proposers.select import make_proposer, resolve_methods

_NODES = (4, 8, 16)
_BATCH = 8
_ROOM = 256
_PREFILL_EVERY = 5  # rounds: a prefill takes as long as dozens of other steps


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    run: Callable[[], Sample]
    every: int = 1  # rounds


@dataclass(frozen=True, slots=True)
class _Measured:
    """A step, the best rates measured just before and after it, and the seconds of the round's plain step."""

    sample: Sample
    rates: Rates
    plain: float

    def floor(self, work: Work, dtype: torch.dtype) -> float:
        return self.rates.seconds(work.size, work.flops, dtype)


def measure(
    model: str,
    context: int,
    prompt: int,
    temperature: float,
    rounds: int,
    speculative: SpeculativeConfig | None,
    tick: Callable[[str], None],
    *,
    dequantize: bool = False,
) -> dict[str, Any]:
    """Measure every kind of step in turn.

    Args:
        model: name or directory of the target.
        context: tokens before the steps that count, except in a prefill.
        prompt: tokens of a prefill, if the model allows as many.
        temperature: of sampling.
        rounds: turns; a prefill has one in five.
        speculative: a method to measure too, with its own drafting.
        tick: called with a label before every step.
        dequantize: see `EngineConfig`.

    Returns:
        `rows`, one a kind of step; `machine`, the rates that the floors were made of; `kernels`, their name.

    Raises:
        ConfigError: no native kernels, a context beyond the model's, or options that do not fit together.
        ModelError: a model cannot be found, read or served.
    """
    config = replace(describe_model(model), storage="plain" if dequantize else "stored")
    longest = min(config.max_position, max(prompt + 1, context + _ROOM))
    if context + 2 * max(_NODES) + 4 > longest:
        raise ConfigError(f"context={context} leaves no room within the model's {longest} positions; lower it")
    dtype = resolve_dtype("auto", config)
    target = TargetInfo(config, dtype, longest)
    speculative = speculative and _one(speculative)
    proposer = None if speculative is None else make_proposer(speculative, target)
    machine = Machine()
    torch.set_num_threads(env.threads())
    kernels = TimedKernels(select_kernels(), linear_names(config))
    kernels.inner.set_threads(env.threads())
    tune(kernels.inner, env.threads())
    loaded = load_model(config, dtype, longest, kernels.kernels)
    kinds = list(_kinds(loaded, kernels, target, context, prompt, temperature))
    if speculative is not None and proposer is not None:
        length = speculative.num_speculative_tokens or proposer.default_length
        rig = Rig(loaded, kernels, proposer, length, 1, context, _room(target, context), temperature)
        kinds.insert(-1, _Kind(str(speculative.method), rig.decode))
    for kind in kinds:
        if kind.every == 1:
            tick(f"warm-up: {kind.name}")
            kind.run()
    measured: dict[str, list[_Measured]] = {kind.name: [] for kind in kinds}
    rates = [machine.rates()]
    for i in range(rounds):
        plain = None
        for kind in kinds:
            if i % kind.every:
                continue
            tick(f"round {i + 1} of {rounds}: {kind.name}")
            sample = kind.run()
            rates.append(machine.rates())
            plain = plain or sample.total
            measured[kind.name].append(_Measured(sample, _best(rates[-2:]), plain))
    return {
        "rows": [{"step": name} | _row(own, dtype) for name, own in measured.items()],
        "machine": [
            {"rate": field.name, "best": getattr(_best(rates), field.name) / 1e9}
            | {"median": median(getattr(r, field.name) for r in rates) / 1e9}
            for field in fields(Rates)
        ],
        "kernels": kernels.inner.name,
    }


def _kinds(
    model: Model, kernels: TimedKernels, target: TargetInfo, context: int, prompt: int, temperature: float
) -> Iterator[_Kind]:
    """Yield the kinds of steps that every model has, plain decoding first and prefill last."""
    room = _room(target, context)
    none = make_proposer(plain(), target)
    yield _Kind("plain", Rig(model, kernels, none, 0, 1, context, room, temperature).decode)
    for nodes in _NODES:
        guesser = Guesser(target.config.vocab_size)
        yield _Kind(f"{nodes} nodes", Rig(model, kernels, guesser, nodes, 1, context, room, temperature).decode)
    yield _Kind(f"batch {_BATCH}", Rig(model, kernels, none, 0, _BATCH, context, room, temperature).decode)
    prompt = min(prompt, target.max_model_len - 1)
    yield _Kind("prefill", Rig(model, kernels, none, 0, 1, prompt, 1, temperature).prefill, _PREFILL_EVERY)


def _one(config: SpeculativeConfig) -> SpeculativeConfig:
    """Return the config of the one proposer that a config names."""
    found = resolve_methods(config)
    if len(found) > 1:
        raise ConfigError(
            f"a roofline has room for one method; name one of {', '.join(str(m.method) for m in found)}"
        )
    return found[0]


def _room(target: TargetInfo, context: int) -> int:
    """Return how many tokens a request may emit before another takes its place."""
    return min(target.max_model_len - context, _ROOM)


def _best(rates: list[Rates]) -> Rates:
    return Rates(*map(max, zip(*map(astuple, rates), strict=True)))


def _row(measured: list[_Measured], dtype: torch.dtype) -> dict[str, Any]:
    """Return medians over the rounds; ratios are taken within a round."""
    samples = [m.sample for m in measured]
    floors = [m.floor(sum(m.sample.work.values(), Work()), dtype) for m in measured]
    medians = {name: median(s.seconds[name] for s in samples) for name in samples[0].seconds}
    return {
        "rows": median(s.rows for s in samples),
        "ms": 1e3 * median(s.total for s in samples),
        "floor_ms": 1e3 * median(floors),
        "floor_share": median(floor / s.total for floor, s in zip(floors, samples, strict=True)),
        "ratio": median(m.sample.total / m.plain for m in measured),
        "components": {
            name: {
                "ms": 1e3 * seconds,
                "share": seconds / sum(medians.values()),
                "floor_ms": 1e3 * median(m.floor(m.sample.work[name], dtype) for m in measured)
                if name in samples[0].work
                else None,
            }
            for name, seconds in medians.items()
        },
    }
