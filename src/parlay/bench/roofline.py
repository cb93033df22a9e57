"""Each kind of step against what the machine allows: its floor, its time, and where the time goes.

Kinds of steps take turns, each turn between two measurements of the machine's rates, so that drift hits all alike.
Drafts to verify are guesses at random: what a step costs does not depend on how much of its draft is accepted.
"""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from statistics import median
from typing import Any

import torch

from parlay import env
from parlay.bench.probe import Machine, Rates
from parlay.bench.rig import Guesser, Rig, Sample
from parlay.bench.timing import TimedKernels
from parlay.bench.work import Work, linear_names
from parlay.config import SpeculativeConfig
from parlay.errors import ConfigError
from parlay.kernels.select import select_kernels
from parlay.models.select import Model, describe_model, load_model, resolve_dtype
from parlay.proposers.base import TargetInfo
from parlay.proposers.select import make_proposer

_NODES = (4, 8, 16)
_BATCH = 8
_ROOM = 256  # tokens that a request emits before another takes its place
_PREFILL_EVERY = 5  # rounds: a prefill takes as long as dozens of other steps


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    run: Callable[[], Sample]
    every: int = 1  # rounds


@dataclass(frozen=True, slots=True)
class _Turn:
    """What was measured in one round: the machine, and steps by kind."""

    rates: Rates
    samples: dict[str, Sample]


def measure(
    model: str,
    context: int,
    prompt: int,
    temperature: float,
    rounds: int,
    speculative: SpeculativeConfig | None,
    tick: Callable[[str], None],
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

    Returns:
        `rows`, one a kind of step; `machine`, the rates that the floors were made of; `kernels`, their name.

    Raises:
        ConfigError: no native kernels, a context beyond the model's, or options that do not fit together.
        ModelError: a model cannot be found, read or served.
    """
    config = describe_model(model)
    longest = min(config.max_position, max(prompt + 1, context + _ROOM))
    if context + 2 * max(_NODES) + 4 > longest:
        raise ConfigError(f"context={context} leaves no room within the model's {longest} positions; lower it")
    dtype = resolve_dtype("auto", config)
    machine = Machine()
    torch.set_num_threads(env.threads())
    kernels = TimedKernels(select_kernels(), linear_names(config))
    kernels.set_threads(env.threads())
    loaded = load_model(config, dtype, longest, kernels)
    kinds = list(_kinds(loaded, kernels, longest, context, prompt, temperature, speculative))
    for kind in kinds:
        if kind.every == 1:
            tick(f"warm-up: {kind.name}")
            kind.run()
    turns = []
    for i in range(rounds):
        tick(f"round {i + 1} of {rounds}: the machine")
        before, samples = machine.rates(), {}
        for kind in kinds:
            if i % kind.every == 0:
                tick(f"round {i + 1} of {rounds}: {kind.name}")
                samples[kind.name] = kind.run()
        turns.append(_Turn(_best([before, machine.rates()]), samples))
    every = [turn.rates for turn in turns]
    return {
        "rows": [{"step": kind.name} | _row(kind.name, kinds[0].name, turns, dtype) for kind in kinds],
        "machine": [
            {"rate": field.name, "best": getattr(_best(every), field.name) / 1e9}
            | {"median": median(getattr(r, field.name) for r in every) / 1e9}
            for field in fields(Rates)
        ],
        "kernels": kernels.name,
    }


def _kinds(
    model: Model,
    kernels: TimedKernels,
    longest: int,
    context: int,
    prompt: int,
    temperature: float,
    speculative: SpeculativeConfig | None,
) -> Iterator[_Kind]:
    """Yield the kinds of steps, plain decoding first."""
    target = TargetInfo(model.config, model.dtype, longest)
    room = min(longest - context, _ROOM)
    none = make_proposer(SpeculativeConfig(), target)
    yield _Kind("plain", Rig(model, kernels, none, 0, 1, context, room, temperature).decode)
    for nodes in _NODES:
        guesser = Guesser(model.config.vocab_size)
        yield _Kind(f"verify {nodes}", Rig(model, kernels, guesser, nodes, 1, context, room, temperature).decode)
    yield _Kind(f"batch {_BATCH}", Rig(model, kernels, none, 0, _BATCH, context, room, temperature).decode)
    if speculative is not None:
        own = make_proposer(speculative, target)
        length = speculative.num_speculative_tokens or own.default_length
        yield _Kind(speculative.method, Rig(model, kernels, own, length, 1, context, room, temperature).decode)
    prompt = min(prompt, longest - 1)
    yield _Kind(f"prefill {prompt}", Rig(model, kernels, none, 0, 1, prompt, 1, temperature).prefill, _PREFILL_EVERY)


def _best(rates: list[Rates]) -> Rates:
    return Rates(*map(max, zip(*map(astuple, rates), strict=True)))


def _row(name: str, plain: str, turns: list[_Turn], dtype: torch.dtype) -> dict[str, Any]:
    """Return the medians over the turns that `name` had, ratios being taken within a turn."""
    turns = [turn for turn in turns if name in turn.samples]
    own = [turn.samples[name] for turn in turns]

    def floors(component: str | None) -> list[float]:
        """Return each turn's floor of a component, or of the whole step."""
        works = [sum(s.work.values(), Work()) if component is None else s.work[component] for s in own]
        return [turn.rates.seconds(w.size, w.flops, dtype) for turn, w in zip(turns, works, strict=True)]

    totals, least = [s.total for s in own], floors(None)
    medians = {component: median(s.seconds[component] for s in own) for component in own[0].seconds}
    return {
        "rows": median(s.rows for s in own),
        "ms": 1e3 * median(totals),
        "floor_ms": 1e3 * median(least),
        "floor_share": median(f / t for f, t in zip(least, totals, strict=True)),
        "ratio": median(t / turn.samples[plain].total for t, turn in zip(totals, turns, strict=True)),
        "components": {
            component: {
                "ms": 1e3 * seconds,
                "share": seconds / sum(medians.values()),
                "floor_ms": 1e3 * median(floors(component)) if component in own[0].work else None,
            }
            for component, seconds in medians.items()
        },
    }
