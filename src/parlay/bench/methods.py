"""Plain decoding against every method, on the protocol's workloads and on files of prompts, in interleaved turns."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

from parlay.bench.contenders import contenders, engines, method_of, verified
from parlay.bench.options import MethodsOptions
from parlay.bench.paired import StopRule, Turns, estimate
from parlay.bench.prompts import name_of, read_prompts
from parlay.bench.protocol import Prefix
from parlay.bench.record import Record
from parlay.bench.tally import Tally
from parlay.bench.workloads import REMEMBERED, WORKLOADS, Workload, usual_workloads, workload
from parlay.checkpoints.find import find_model
from parlay.config import SpeculativeConfig
from parlay.config.verification import COUPLED
from parlay.errors import ConfigError, nearest, shown
from parlay.llm import LLM
from parlay.models.select import describe_model
from parlay.text.tokenizer import TextCodec
from parlay.types.output import CompletionOutput

PLAIN = "plain"
_TURN = 0.5  # seconds of plain decoding's part of a turn, about: shorter ones are mostly jitter
_WARM_UP = 8  # prompts, and two batches at least: the first one of an engine is slower
_WARM_UP_SECONDS = 2.0  # after two batches more would only take time from the turns of an expensive model
_WARM_UP_TOKENS = 32
# Options that decide which cases there are, but not what a case is; prompts are compared by digest.
_CHOOSES_CASES = ("workloads", "prompts", "batch_sizes", "temperatures")

Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Case:
    """One workload at one batch size and temperature."""

    workload: Workload
    batch: int
    temperature: float

    def __str__(self) -> str:
        return f"{self.workload.name}, batch {self.batch}, temperature {self.temperature:g}"


def measure(options: MethodsOptions, output: Path | None, tick: Tick) -> list[dict[str, Any]]:
    """Return a row for each workload, batch size, temperature and method, plain decoding first.

    Args:
        options: what to measure.
        output: a file that rows are written to after every case; what it has already is not measured again.
        tick: called with a label before every method's part of a turn.

    Raises:
        ConfigError: options, prompts or the file's rows do not fit, or are not what they should be.
        ModelError: as `contenders` does.
        CapacityError: the engines do not fit into memory side by side.
    """
    asked = gather(options)
    found = contenders(options.model, options.num_speculative_tokens, options.methods, options.drafts)
    chosen = verified(found, options.verifications)
    question = question_of(options) | {"methods": list(chosen)}
    record = Record(output, question, {"workloads": {one.name: one.digest for one in asked}})
    measure_cases(options, asked, chosen, record, tick)
    return record.rows


def question_of(options: MethodsOptions) -> dict[str, Any]:
    """Return the conditions that all cases share."""
    return {name: value for name, value in asdict(options).items() if name not in _CHOOSES_CASES}


def measure_cases(
    options: MethodsOptions,
    asked: Sequence[Workload],
    chosen: Mapping[str, SpeculativeConfig],
    record: Record,
    tick: Tick,
    **part: Any,
) -> None:
    """Measure each workload, batch size and temperature that a record does not have yet, and add it there.

    Args:
        options: what to measure.
        asked: by which prompts.
        chosen: the contenders, plain decoding first.
        record: earlier rows, and where new ones go.
        tick: as for `measure`.
        part: further keys of these rows, which rows of other models lack.

    Raises:
        CapacityError, ConfigError, ModelError: as `measure` does.
    """
    cases = list(product(asked, options.batch_sizes, options.temperatures))
    for i, (one, batch, temperature) in enumerate(cases, start=1):
        most = (len(cases) - i + 1) * options.minutes
        place = f"case {i} of {len(cases)}, at most {most:,.3g} min left: "
        if record.rows_of(**part, workload=one.name, batch=batch, temperature=temperature):
            continue
        measurement = _Measurement(options, _Case(one, batch, temperature), chosen, partial(_labelled, tick, place))
        record.add([part | row for row in measurement.run(partial(record.check_numerics, **part))])


def _labelled(tick: Tick, place: str, label: str) -> None:
    tick(place + label)


def gather(options: MethodsOptions) -> list[Workload]:
    """Return the workloads of all prompts, in the model's tokens.

    Raises:
        ConfigError: a workload or file of prompts that is none, does not fit the model, or is too small for a batch.
        ModelError: the model cannot be found or read.
    """
    config, codec = describe_model(options.model), TextCodec(find_model(options.model))
    names = options.workloads or (() if options.prompts else usual_workloads([codec]))
    found: dict[str, Workload] = {}
    for name in names:
        if name not in WORKLOADS:
            raise ConfigError(f"unknown workload {shown(name)}{nearest(name, WORKLOADS)}")
        found[name] = Workload(name, tuple(workload(name, options.prefixes, codec)), in_order=name in REMEMBERED)
    longest = config.max_position - options.max_tokens
    for path in options.prompts:
        name = name_of(path)
        if name in found or name in WORKLOADS:
            raise ConfigError(f"{path} would be called {name!r} like another workload; rename the file")
        prompts = tuple(read_prompts(path, codec, longest, options.prefixes))
        found[name] = Workload(name, prompts, options.max_tokens, ignore_eos=False)
    for one in found.values():
        if one.longest > config.max_position:
            raise ConfigError(
                f"{one.name} needs {one.longest} tokens, {options.model} has room for {config.max_position}; "
                "leave it out, or lower --max-tokens for a file"
            )
        if len(one.prompts) < max(options.batch_sizes):
            raise ConfigError(
                f"{one.name} has {len(one.prompts)} prompts, too few for a batch of {max(options.batch_sizes)}; "
                "lower --batch-sizes, or give more prompts"
            )
    return list(found.values())


class _Measurement:
    """A case while it is measured.

    Engines are new in every case, and again each time that all prompts have been asked: a proposer may remember
    earlier prompts, and a repeated one would flatter it.
    """

    def __init__(
        self,
        options: MethodsOptions,
        case: _Case,
        chosen: Mapping[str, SpeculativeConfig],
        tick: Tick,
    ) -> None:
        self._options, self._case, self._chosen, self._tick = options, case, chosen, tick
        self._rule = StopRule(options.precision, options.turns, 60 * options.minutes)
        self._began = perf_counter()
        self._passes = 0
        self._asked = 0  # prompts
        self._batches = 1  # a turn
        self._whole = not case.workload.in_order  # whether all of the workload was asked
        self._numerics: dict[str, str] = {}
        self._turns = Turns(tuple(chosen))
        self._tallies: dict[str, Tally] = {}

    def run(self, check: Callable[[str], None]) -> list[dict[str, Any]]:
        """Return one row a method; `check` sees the numerics id before anything is measured."""
        while True:
            self._tick(f"{self._case}: loading")
            llms = engines(
                self._options.model,
                self._chosen,
                self._case.batch,
                lengths=self._options.lengths,
                tree=self._options.tree,
                dequantize=self._options.dequantize,
                max_model_len=self._case.workload.longest,
            )
            self._numerics = {name: llm.numerics_id for name, llm in llms.items()}
            check(next(iter(self._numerics.values())))
            stop = self._pass(llms)
            del llms  # to make room for the next ones
            gc.collect()
            if stop:
                return [self._row(name) for name in self._turns.names]

    def _pass(self, llms: Mapping[str, LLM]) -> bool:
        """Take turns until all prompts have been asked; whether it is enough."""
        self._tick(f"{self._case}: warm-up")
        seconds = [_warm_up(llm, self._case) for llm in llms.values()]
        if not self._passes:
            self._turns = Turns(tuple(llms))
            self._tallies = {name: Tally() for name in llms}
            most = len(self._case.workload.prompts) // self._case.batch
            self._batches = max(1, min(ceil(_TURN / seconds[0]), most))
        asked = self._case.workload
        # Where later prompts depend on earlier ones, the first turns of a pass alone would be another workload.
        first = 0 if asked.in_order else self._asked
        spent = False
        for work in turns_of(asked.prompts, self._batches * self._case.batch, first):
            self._turn(llms, work)
            spent = self._rule.spent(len(self._turns), perf_counter() - self._began)
            if spent or (not asked.in_order and self._precise()):
                break
        else:
            self._whole = True
        for name, llm in llms.items():
            self._tallies[name].add_stats(llm.engine.stats)
        self._passes += 1
        return spent or self._precise()

    def _precise(self) -> bool:
        estimates = (estimate(self._turns.ratios(name)) for name in self._turns.names[1:])
        return self._rule.precise(estimates, len(self._turns))

    def _turn(self, llms: Mapping[str, LLM], work: list[Prefix]) -> None:
        label = f"{self._case}: turn {len(self._turns) + 1}"
        parts = {name: partial(_complete, llm, self._case, work, self._passes) for name, llm in llms.items()}
        for name, outputs in self._turns.take(parts, self._tick, f"{label},").items():
            self._tallies[name].add(outputs)
        self._asked += len(work)

    def _row(self, name: str) -> dict[str, Any]:
        plain, case = self._turns.names[0], self._case
        tally, whole = self._tallies[name], estimate(self._turns.ratios(name))
        ratios = tally.after_first_ratios(self._tallies[plain])
        later = estimate(ratios) if ratios else None
        how = self._chosen[name]
        return {
            "workload": case.workload.name,
            "batch": case.batch,
            "temperature": case.temperature,
            "method": PLAIN if name == plain else method_of(name),
            "budget": how.num_speculative_tokens,
            "verification": how.verification,
            "speed_up": whole.median,
            "interval": whole.interval,
            "precise": self._whole and self._rule.precise([whole], len(self._turns)),
            "decode_speed_up": later.median if later else None,
            "decode_interval": later.interval if later else None,
            "turns": len(self._turns),
            "passes": self._passes,
            "seconds": [round(seconds, 6) for seconds in self._turns.seconds[name]],
            **tally.row(self._turns.seconds[name], self._tallies[plain]),
            **({} if how.verification == COUPLED or not case.temperature else {"same_tokens": None}),
            "numerics": self._numerics[plain],  # the target's; the verification is said above
        }


def turns_of(prompts: Sequence[Prefix], size: int, asked: int) -> Iterator[list[Prefix]]:
    """Yield the prompts of each turn of a pass, every prompt at most once and in order.

    What is left at the end of a pass is less than a turn; the next pass begins with it.

    Args:
        prompts: of the workload.
        size: of a turn.
        asked: prompts that were asked before this pass.
    """
    for first in range(asked, asked + len(prompts) - size + 1, size):
        yield [prompts[i % len(prompts)] for i in range(first, first + size)]


def _warm_up(llm: LLM, case: _Case) -> float:
    """Have an engine complete unrelated prompts; returns the seconds that a batch is likely to take."""
    prompts, limit = case.workload.prompts, min(_WARM_UP_TOKENS, case.workload.max_tokens)
    count = max(2, ceil(_WARM_UP / case.batch)) * case.batch
    nonsense = [Prefix(i, prompts[i % len(prompts)].tokens[::-1]) for i in range(count)]
    short = _Case(Workload("warm-up", tuple(nonsense), limit), case.batch, case.temperature)
    start = perf_counter()
    for batch in range(0, count, case.batch):
        began = perf_counter()
        if batch >= 2 * case.batch and began - start > _WARM_UP_SECONDS:
            break
        _complete(llm, short, nonsense[batch : batch + case.batch], 0)
        seconds = perf_counter() - began
    llm.engine.stats.reset()
    return seconds * case.workload.max_tokens / limit


def _complete(llm: LLM, case: _Case, work: list[Prefix], passes: int) -> list[CompletionOutput]:
    outputs = []
    for first in range(0, len(work), case.batch):
        batch = work[first : first + case.batch]
        params = [case.workload.params(prompt, case.temperature, passes) for prompt in batch]
        for result in llm.generate([prompt.tokens for prompt in batch], params, use_tqdm=False):
            if result.error is not None:
                raise result.error
            outputs.append(result.outputs[0])
    return outputs
