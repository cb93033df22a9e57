"""Plain decoding against every method, on workloads and files of prompts, for several models and budgets.

A method with a budget is a contender of its own in a case's interleaved repetitions, so that plain decoding runs once
a repetition for all budgets, and their ratios can be compared with one another too.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

from parlay.bench.contenders import budgeted, complete, engines, method_of, verified
from parlay.bench.options import MethodsOptions
from parlay.bench.prompts import name_of, read_prompts
from parlay.bench.record import METHODS, Record
from parlay.bench.repetitions import Repetitions, StopRule, estimate
from parlay.bench.tally import Tally
from parlay.bench.workloads import (
    REMEMBERED,
    TOKENS,
    TOKENS_OF_FILES,
    WORKLOADS,
    Prefix,
    Workload,
    usual_workloads,
    workload,
)
from parlay.checkpoints.find import find_model
from parlay.config import SpeculativeConfig
from parlay.config.verification import COUPLED
from parlay.errors import ConfigError, nearest, shown
from parlay.llm import LLM
from parlay.models.select import describe_model
from parlay.text.tokenizer import TextCodec
from parlay.types.output import CompletionOutput

PLAIN = "plain"
_LEAST_SECONDS = 0.5  # of plain decoding's part of a repetition, about: shorter ones are mostly jitter
_WARM_UP = 8  # prompts, and two batches at least: the first one of an engine is slower
_WARM_UP_SECONDS = 2.0  # after two batches more would only take time from the repetitions of an expensive model
_WARM_UP_TOKENS = 32
# Options that decide which cases there are, but not what a case is; prompts and methods are compared by model.
_CHOOSES_CASES = ("models", "methods", "workloads", "prompts", "batch_sizes", "temperatures")

Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Case:
    """One model's workload at one batch size and temperature."""

    model: str
    workload: Workload
    batch: int
    temperature: float

    def __str__(self) -> str:
        return f"{self.workload.name}, batch {self.batch}, temperature {self.temperature:g}"

    @property
    def key(self) -> dict[str, Any]:
        """The values that distinguish its rows from other cases'."""
        return {
            "model": self.model,
            "workload": self.workload.name,
            "batch": self.batch,
            "temperature": self.temperature,
        }


def measure(options: MethodsOptions, output: Path | None, tick: Tick) -> list[dict[str, Any]]:
    """Return a row for each model, workload, batch size, temperature, method and budget, plain decoding first.

    Args:
        options: what to measure.
        output: a file that rows are written to after every case; what it has already is not measured again, and a
            later run may add models, workloads, batch sizes and temperatures.
        tick: called with a label before every method's part of a repetition.

    Raises:
        ConfigError: options, prompts or the file's rows do not fit, or are not what they should be; for any of the
            models this is raised before the first one is measured.
        ModelError: see `contenders`.
        CapacityError: the engines of a model do not fit into memory side by side.
    """
    if not options.workloads and not options.prompts:
        # All models get the same, or their ratios could not be compared.
        codecs = [TextCodec(find_model(model)) for model in options.models]
        options = replace(options, workloads=usual_workloads(codecs))
    workloads = {model: gather(options, model) for model in options.models}
    chosen = {
        model: verified(budgeted(model, options.budgets, options.methods, options.drafts), options.verifications)
        for model in options.models
    }
    question = {name: value for name, value in asdict(options).items() if name not in _CHOOSES_CASES}
    digests = {f"{one.name} for {model}": one.digest for model, own in workloads.items() for one in own}
    methods = {model: list(contenders) for model, contenders in chosen.items()}
    record = Record(output, question, {"workloads": digests, "methods": methods}, METHODS)
    for model in options.models:
        cases = [_Case(model, *one) for one in product(workloads[model], options.batch_sizes, options.temperatures)]
        for i, case in enumerate(cases):
            if record.rows_of(**case.key):
                continue
            left = (len(cases) - i) * options.minutes
            place = f"{Path(model).name}: case {i + 1} of {len(cases)}, at most {left:,.3g} min left"
            case_run = _CaseRun(options, case, chosen[model], partial(_labelled, tick, place))
            record.add(case_run.run(partial(record.check_numerics, model=model)))
    return record.rows


def _labelled(tick: Tick, place: str, label: str) -> None:
    tick(f"{place}: {label}")


def gather(options: MethodsOptions, model: str) -> list[Workload]:
    """Return the workloads of all prompts, in a model's tokens.

    Raises:
        ConfigError: a workload or file of prompts that is none, does not fit the model, or is too small for a batch.
        ModelError: the model cannot be found or read.
    """
    config, codec = describe_model(model), TextCodec(find_model(model))
    found: dict[str, Workload] = {}
    for name in options.workloads:
        if name not in WORKLOADS:
            raise ConfigError(f"unknown workload {shown(name)}{nearest(name, WORKLOADS)}")
        prompts, tokens = tuple(workload(name, options.prefixes, codec)), options.max_tokens or TOKENS
        found[name] = Workload(name, prompts, tokens, in_order=name in REMEMBERED)
    most = options.max_tokens or TOKENS_OF_FILES
    for path in options.prompts:
        name = name_of(path)
        if name in found or name in WORKLOADS:
            raise ConfigError(f"{path} would be called {name!r} like another workload; rename the file")
        prompts = tuple(read_prompts(path, codec, config.max_position - most, options.prefixes))
        found[name] = Workload(name, prompts, most, ignore_eos=False)
    for one in found.values():
        if one.longest > config.max_position:
            raise ConfigError(
                f"{one.name} needs {one.longest} tokens, {model} has room for {config.max_position}; "
                "leave it out, or lower --max-tokens"
            )
        if len(one.prompts) < max(options.batch_sizes):
            raise ConfigError(
                f"{one.name} has {len(one.prompts)} prompts, too few for a batch of {max(options.batch_sizes)}; "
                "lower --batch-sizes, or give more prompts"
            )
    return list(found.values())


class _CaseRun:
    """A case while it is measured.

    Engines are new in every case, and again each time that all prompts have been run: a proposer may remember earlier
    prompts, and a repeated one would flatter it.
    """

    def __init__(
        self, options: MethodsOptions, case: _Case, chosen: Mapping[str, SpeculativeConfig], tick: Tick
    ) -> None:
        self._options, self._case, self._chosen, self._tick = options, case, chosen, tick
        self._rule = StopRule(options.precision, options.repetitions, 60 * options.minutes)
        self._began = perf_counter()
        self._passes = 0  # through all prompts
        self._prompts = 0  # that have been run
        self._batches = 1  # per repetition
        self._whole = not case.workload.in_order  # whether all of the workload was run
        self._numerics = ""
        self._repetitions = Repetitions(tuple(chosen))
        self._tallies = {name: Tally() for name in chosen}

    def run(self, check: Callable[[str], None]) -> list[dict[str, Any]]:
        """Return one row per method; `check` is given the numerics id before anything is measured."""
        while True:
            self._tick(f"{self._case}: loading")
            llms = engines(
                self._case.model,
                self._chosen,
                self._case.batch,
                lengths=self._options.lengths,
                tree=self._options.tree,
                dequantize=self._options.dequantize,
                device=self._options.device,
                max_model_len=self._case.workload.longest,
            )
            self._numerics = next(iter(llms.values())).numerics_id
            check(self._numerics)
            stop = self._pass(llms)
            del llms  # to make room for the next ones
            gc.collect()
            if stop:
                return [self._row(name) for name in self._chosen]

    def _pass(self, llms: Mapping[str, LLM]) -> bool:
        """Repeat until all prompts have been run; whether it is enough."""
        self._tick(f"{self._case}: warm-up")
        seconds = [_warm_up(llm, self._case) for llm in llms.values()]
        work = self._case.workload
        if not self._passes:
            most = len(work.prompts) // self._case.batch
            self._batches = max(1, min(ceil(_LEAST_SECONDS / seconds[0]), most))
        # Where later prompts depend on earlier ones, the first repetitions of a pass alone would be another workload.
        first = 0 if work.in_order else self._prompts
        spent = False
        for prompts in pieces_of(work.prompts, self._batches * self._case.batch, first):
            self._repeat(llms, prompts)
            spent = self._rule.spent(len(self._repetitions), perf_counter() - self._began)
            if spent or (not work.in_order and self._precise()):
                break
        else:
            self._whole = True
        for name, llm in llms.items():
            self._tallies[name].stats.append(llm.engine.stats)
        self._passes += 1
        return spent or self._precise()

    def _precise(self) -> bool:
        estimates = map(self._repetitions.estimate, self._repetitions.names[1:])
        return self._rule.precise(estimates, len(self._repetitions))

    def _repeat(self, llms: Mapping[str, LLM], prompts: list[Prefix]) -> None:
        label = f"{self._case}: repetition {len(self._repetitions) + 1},"
        parts = {name: partial(_complete, llm, self._case, prompts, self._passes) for name, llm in llms.items()}
        for name, outputs in self._repetitions.run(parts, self._tick, label).items():
            self._tallies[name].add(outputs)
        self._prompts += len(prompts)

    def _row(self, name: str) -> dict[str, Any]:
        plain, case = self._repetitions.names[0], self._case
        tally, whole = self._tallies[name], self._repetitions.estimate(name)
        ratios = tally.after_first_ratios(self._tallies[plain])
        later = estimate(ratios) if ratios else None
        how = self._chosen[name]
        return {
            **case.key,
            "method": PLAIN if name == plain else method_of(name),
            "budget": how.num_speculative_tokens,
            "verification": how.verification,
            "speed_up": whole.median,
            "interval": whole.interval,
            "precise": self._whole and self._rule.precise([whole], len(self._repetitions)),
            "decode_speed_up": later.median if later else None,
            "decode_interval": later.interval if later else None,
            "repetitions": len(self._repetitions),
            "passes": self._passes,
            "seconds": [round(seconds, 6) for seconds in self._repetitions.seconds[name]],
            **tally.row(self._repetitions.seconds[name], self._tallies[plain]),
            **({} if how.verification == COUPLED or not case.temperature else {"same_tokens": None}),
            "numerics": self._numerics,  # the target's; the verification is said above
        }


def pieces_of(prompts: Sequence[Prefix], size: int, first: int) -> Iterator[list[Prefix]]:
    """Yield the prompts of each repetition of a pass, every prompt at most once and in order.

    What is left at the end of a pass is less than a repetition's; the next pass begins with it.

    Args:
        prompts: the workload's prompts.
        size: prompts per repetition.
        first: prompts that were run before this pass.
    """
    for start in range(first, first + len(prompts) - size + 1, size):
        yield [prompts[i % len(prompts)] for i in range(start, start + size)]


def _warm_up(llm: LLM, case: _Case) -> float:
    """Complete unrelated prompts with an engine; return the seconds that a batch is likely to take."""
    prompts, limit = case.workload.prompts, min(_WARM_UP_TOKENS, case.workload.max_tokens)
    count = max(2, ceil(_WARM_UP / case.batch)) * case.batch
    nonsense = [Prefix(i, prompts[i % len(prompts)].tokens[::-1]) for i in range(count)]
    short = replace(case, workload=Workload("warm-up", tuple(nonsense), limit))
    start = perf_counter()
    for batch in range(0, count, case.batch):
        began = perf_counter()
        if batch >= 2 * case.batch and began - start > _WARM_UP_SECONDS:
            break
        _complete(llm, short, nonsense[batch : batch + case.batch], 0)
        seconds = perf_counter() - began
    llm.engine.stats.reset()
    return seconds * case.workload.max_tokens / limit


def _complete(llm: LLM, case: _Case, prompts: list[Prefix], passes: int) -> list[CompletionOutput]:
    how = partial(case.workload.params, temperature=case.temperature, passes=passes)
    return complete(llm, prompts, case.batch, how)
