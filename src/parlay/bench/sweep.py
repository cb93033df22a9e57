"""Plain decoding against every method with every budget, on several models: `parlay.bench.methods` many times over.

A method with a budget is a separate contender in a case's interleaved turns, so that plain decoding is run once a
turn for all budgets, and their ratios can be compared with one another too.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from parlay.bench.contenders import budgeted
from parlay.bench.methods import Tick, gather, measure_cases, question_of
from parlay.bench.options import MethodsOptions, SweepOptions
from parlay.bench.record import SWEEP, Record
from parlay.bench.workloads import usual_workloads
from parlay.checkpoints.find import find_model
from parlay.text.tokenizer import TextCodec

_OF_A_MODEL = ("model", "methods", "num_speculative_tokens")  # conditions that differ among models


def measure(options: SweepOptions, output: Path | None, tick: Tick) -> list[dict[str, Any]]:
    """Return the rows of `parlay.bench.methods.measure` for each model in turn, with `model` and `budget`.

    Args:
        options: what to measure.
        output: a file that rows are written to after every case; what it has already is not measured again, and a
            later run may add models.
        tick: called with a label before every contender's part of a turn.

    Raises:
        CapacityError, ConfigError, ModelError: as `parlay.bench.methods.measure` does; errors of any of the models
        are raised before the first one is measured.
    """
    each = _settled(options)
    asked = {one.model: gather(one) for one in each}
    chosen = {one.model: budgeted(one.model, options.budgets, one.methods, one.drafts) for one in each}
    question = {name: value for name, value in question_of(options.each).items() if name not in _OF_A_MODEL}
    digests = {f"{one.name} for {model}": one.digest for model, workloads in asked.items() for one in workloads}
    methods = {model: list(contenders) for model, contenders in chosen.items()}
    record = Record(
        output, question | {"budgets": options.budgets}, {"workloads": digests, "methods": methods}, SWEEP
    )
    for one in each:
        measure_cases(
            one,
            asked[one.model],
            chosen[one.model],
            record,
            partial(_say, tick, Path(one.model).name),
            model=one.model,
        )
    return record.rows


def _settled(options: SweepOptions) -> list[MethodsOptions]:
    """Return what to measure of each model; all are asked the same, or a map of them would compare nothing."""
    each = options.each
    if not each.workloads and not each.prompts:
        each = replace(each, workloads=usual_workloads([TextCodec(find_model(model)) for model in options.models]))
    return [replace(each, model=model) for model in options.models]


def _say(tick: Tick, name: str, label: str) -> None:
    tick(f"{name}: {label}")
