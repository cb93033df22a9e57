"""Each kind of step against what the machine allows: its floor, its time, and where the time goes.

Kinds of steps alternate, so that drift affects all alike, and each is between two measurements of the machine's
rates, since other load may halve these from one second to the next. Drafts to verify are random tokens: the cost of a
step does not depend on how much of its draft is accepted.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.common import start
from benchmarks.machine import Machine, Rates
from benchmarks.rig import RandomDrafts, Rig, Sample
from benchmarks.timed_kernels import TimedKernels
from parlay import env
from parlay.cli.flags import add_dequantize_flag, add_model
from parlay.cli.report import count, progress, report, table
from parlay.cli.serving import read_speculation
from parlay.config import SpeculativeConfig
from parlay.config.speculative import plain
from parlay.errors import ConfigError
from parlay.explain.work import Work, linear_names
from parlay.kernels.select import select_kernels
from parlay.kernels.tuning import tune
from parlay.models.select import CausalModel, describe_model, load_model, resolve_dtype
from parlay.proposers.base import TargetInfo
from parlay.proposers.select import make_proposer, resolve_methods
from parlay.runner.graphs import MOST_ROWS

_DRAFTS = (4, 8, 16)  # draft tokens
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


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "tiny-code")
    add_dequantize_flag(parser)
    add = parser.add_argument
    add("--context", type=count, default=128, help="tokens before a step (default: 128)")
    add("--prompt", type=count, default=2048, help="tokens of a prefill (default: 2048)")
    add("--temperature", type=float, default=0.0, help="temperature of sampling (default: 0)")
    add("--rounds", type=count, default=20, help="steps of each kind; a prefill has a fifth of them (default: 20)")
    add("--speculative-config", metavar="JSON", help="a method to measure too, with its drafting")


def _run(options: argparse.Namespace) -> int:
    with progress() as tick:
        result = measure(options, tick)
    rows = result["rows"]
    table(
        result["machine"],
        {"rate": ("all threads", "{}"), "best": ("best, G/s", "{:,.1f}"), "median": ("median, G/s", "{:,.1f}")},
    )
    shares = [
        {"component": name} | {row["step"]: row["components"][name]["share"] for row in rows}
        for name in rows[0]["components"]
    ]
    table(shares, {"component": ("share", "{}")} | {row["step"]: (row["step"], "{:.1%}") for row in rows})
    columns = {
        "step": ("step", "{}"),
        "rows": ("rows", "{:g}"),
        "ms": ("ms", "{:,.3f}"),
        "floor_ms": ("floor", "{:,.3f}"),
        "floor_share": ("floor / ms", "{:.0%}"),
        "ratio": ("to plain", "{:.2f}x"),
    }
    report(options, rows, columns, machine=result["machine"], kernels=result["kernels"])
    return 0


def measure(options: argparse.Namespace, tick: Callable[[str], None]) -> dict[str, Any]:
    """Measure every kind of step.

    Returns:
        `rows`, one a kind of step; `machine`, the rates that the floors were made of; `kernels`, their name.

    Raises:
        ConfigError: no native kernels, a context beyond the model's, or options that do not fit together.
        ModelError: a model cannot be found, read or served.
    """
    model, context, prompt, temperature = options.model, options.context, options.prompt, options.temperature
    config = replace(describe_model(model), storage="plain" if options.dequantize else "stored")
    longest = min(config.max_position, max(prompt + 1, context + _ROOM))
    if context + 2 * max(_DRAFTS) + 4 > longest:
        raise ConfigError(f"--context {context} leaves no room within the model's {longest} positions; lower it")
    dtype = resolve_dtype("auto", config)
    target = TargetInfo(config, dtype, longest)
    given = options.speculative_config
    speculative = None if given is None else _one(SpeculativeConfig.parse(read_speculation(given)))
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
    recorded = prompt <= MOST_ROWS  # and checked when they are used for the second time
    for kind in kinds:
        for _ in range(1 if kind.every == 1 else 2 * recorded):
            tick(f"warm-up: {kind.name}")
            kind.run()
    measured: dict[str, list[_Measured]] = {kind.name: [] for kind in kinds}
    rates = [machine.rates()]
    for i in range(options.rounds):
        plain = None
        for kind in kinds:
            if i % kind.every:
                continue
            tick(f"round {i + 1} of {options.rounds}: {kind.name}")
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
    model: CausalModel, kernels: TimedKernels, target: TargetInfo, context: int, prompt: int, temperature: float
) -> Iterator[_Kind]:
    """Yield the kinds of steps that every model has, plain decoding first and prefill last."""
    room = _room(target, context)
    none = make_proposer(plain(), target)
    yield _Kind("plain", Rig(model, kernels, none, 0, 1, context, room, temperature).decode)
    for length in _DRAFTS:
        drafts = RandomDrafts(target.config.vocab_size)
        yield _Kind(f"{length} drafted", Rig(model, kernels, drafts, length, 1, context, room, temperature).decode)
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


main = partial(start, "roofline", __doc__, _add_flags, _run)

if __name__ == "__main__":
    sys.exit(main())
