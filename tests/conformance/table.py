"""The table of the same-tokens suite: how engines speculate, under which conditions they run, which cells are run.

A proposer joins by its name in the registry; another configuration or another condition is one line.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, product
from typing import Any, NamedTuple

import pytest
from asking import Ask, Meddle, meddle_at_random
from conftest import DTYPES, Pair, Plain, drafts, guesses_on_random_texts, proposer_options
from fitting import fitted, variants
from switching import any_choices, any_times, every_method, expensive_rows, free_rows, limited_drafts
from workload import CHANGES, four_each, mixed, parametrised, predicted, some, wishing

from parlay import CompletionOutput
from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.proposers.select import proposers, weightless

METHODS = list(proposers.names())
DRAFTING = [name for name in METHODS if drafts(name)]
WITH_WEIGHTS = [name for name in DRAFTING if name not in weightless()]
TEMPERATURES = (0.0, 0.7, 1.3)

Answers = list[CompletionOutput]

# ------------------------------------------------------------------------------------------------------- conditions


class Condition(NamedTuple):
    """What happens to an engine and its requests.

    Attributes:
        options: of the engine, another of these in each cell.
        asks: makes the requests, given what decodes plainly, dtype and temperature.
        runs: how often they run on one engine; the last time in reverse order.
        alone: whether they run one after another.
        meddle: makes what is done before every step.
        patch: replaces what decides.
        lengths: how lengths of drafts are chosen.
        right: whether drafts are right at times; None if that cannot be known.
        arose: whether the condition arose, from the answers of each run.
        aborts: whether requests may be aborted.
    """

    options: Sequence[dict[str, Any]] = ({},)
    asks: Callable[[Plain, str, float], list[Ask]] = mixed
    runs: int = 1
    alone: bool = False
    meddle: Callable[[], Meddle | None] = lambda: None
    patch: Callable[[pytest.MonkeyPatch], None] = lambda monkeypatch: None
    lengths: str | None = None
    right: bool | None = True
    arose: Callable[..., bool] = lambda *runs: True
    aborts: bool = False


def preempt_in_turn() -> Meddle:
    """Return what preempts one of the running requests in every third step."""
    steps = count()

    def preempt(engine: Engine, requests: list[Request]) -> None:
        running, step = [r for r in requests if r.table.blocks], next(steps)
        if step % 3 == 2 and running:
            engine.preempt(running[step % len(running)])

    return preempt


def abort_in_turn() -> Meddle:
    """Return what aborts every third request, one in each step; whoever comes later is left alone."""
    steps = count()

    def abort(engine: Engine, requests: list[Request]) -> None:
        place = 3 * next(steps)
        if place < len(requests):
            engine.abort(requests[place])

    return abort


def were_preempted(run: Answers) -> bool:
    return sum(answer.metrics.preemptions for answer in run) >= 3


def were_cached(first: Answers, second: Answers) -> bool:
    before, after = (sum(answer.metrics.cached_tokens for answer in run) for run in (first, second))
    return before == 0 < after


def were_aborted(first: Answers, second: Answers) -> bool:
    before, after = (sum(answer.finish_reason == "abort" for answer in run) for run in (first, second))
    return before > 2 and after == 0


def were_foreseen(run: Answers, tokens: int = 0) -> bool:
    """Whether predictions were accepted, and nothing was drafted where speculation is off."""
    off = CHANGES.index({"logprobs": 1, "speculative": {"enabled": False}})
    return sum(answer.sources.count("prediction") for answer in run) > tokens and run[off].metrics.drafts == 0


def were_drafted(run: Answers) -> bool:
    """A proposer has drafted; the last request's grammar forces tokens, which are drafted too."""
    return any(answer.metrics.drafted for answer in run[:-1])


def hardly_drafted(run: Answers) -> bool:
    """The first step knows no better, and a proposer on the device has drafted for the second.

    The last request's grammar forces tokens, which are drafted too.
    """
    return sum(answer.metrics.drafted for answer in run[:-1]) <= 2 * len(run)


def at_random(preempted: float, aborted: float = 0.0) -> Callable[[], Meddle]:
    return lambda: meddle_at_random(random.Random(4), preempted, aborted)


SMALL = (
    {"max_num_batched_tokens": 7},
    {"max_num_batched_tokens": 33, "block_size": 5},
    {"block_size": 1},
    {"max_num_batched_tokens": 48, "block_size": 4},
    {"block_size": 64, "max_num_seqs": 3},
)
CROWDED = ({"max_model_len": 72, "block_size": 4, "num_blocks": 20},)
UNCACHED = {"enable_prefix_caching": False}
BLOCKS_OF_8 = ({"block_size": 8}, {"block_size": 8, **UNCACHED})

CONDITIONS = {
    "together": Condition(),
    "alone": Condition((UNCACHED,), some, alone=True),
    "small-steps": Condition(SMALL),
    "one-row-steps": Condition(({"max_num_batched_tokens": 1},), some, right=False),
    "cached": Condition(BLOCKS_OF_8[:1], runs=2, arose=were_cached),
    "preempted": Condition(BLOCKS_OF_8, meddle=preempt_in_turn, arose=were_preempted),
    "out-of-blocks": Condition(CROWDED, arose=were_preempted),
    "aborted": Condition(({"block_size": 4},), runs=2, meddle=abort_in_turn, arose=were_aborted, aborts=True),
    "four-each": Condition(asks=four_each),
    "parameters": Condition(({"max_num_batched_tokens": 96},), parametrised),
    "three-threads": Condition(patch=lambda monkeypatch: monkeypatch.setenv("PARLAY_THREADS", "3")),
    "predicted": Condition(asks=predicted, arose=partial(were_foreseen, tokens=50)),
    # Greedy answers that are foreseen leave a few tokens to draft, of which not every random head has one right.
    "predicted-small-steps": Condition((*SMALL, *CROWDED), predicted, right=None, arose=were_foreseen),
    "predicted-preempted": Condition(BLOCKS_OF_8, predicted, meddle=preempt_in_turn, arose=were_preempted),
}
OF_DRAFTS = {
    # In three steps of few rows heads catch up for hardly any request; of what they draft often nothing is right.
    "off-and-on": Condition(
        SMALL[2:],
        right=None,
        arose=were_drafted,
        patch=limited_drafts(lambda step, of, usual: usual * ((step // 3 + of) % 2)),
    ),
    "any-length": Condition(patch=limited_drafts(lambda step, of, usual: min(usual, (5 * step + 3 * of) % 7))),
    "off": Condition(patch=limited_drafts(lambda step, of, usual: 0), right=False),
    "any-times": Condition(SMALL, patch=any_times, lengths="goodput", right=None),
    "any-trouble": Condition(
        ({"block_size": 4},), meddle=at_random(0.3, 0.02), lengths="goodput", right=None, aborts=True
    ),
    "free-rows": Condition(patch=free_rows, lengths="goodput"),
    "expensive-rows": Condition(patch=expensive_rows, lengths="goodput", right=None, arose=hardly_drafted),
}
OF_KINDS = {  # of a method's weights, each of which keeps something of its own
    name: (CONDITIONS | OF_DRAFTS)[name]
    for name in ("together", "small-steps", "cached", "preempted", "out-of-blocks", "off-and-on", "any-trouble")
}
OF_TREES = {
    "trees": Condition(({}, *SMALL)),
    "trees-and-trouble": Condition(
        ({"block_size": 4, "num_blocks": 60},), meddle=at_random(0.3, 0.02), right=None, aborts=True
    ),
}
OF_MANY = {
    "fixed": Condition(lengths="fixed"),
    "latency": Condition(lengths="latency", right=None),
    "any-choices": Condition(({}, *SMALL), wishing, meddle=at_random(0.1), patch=any_choices, lengths="goodput"),
}
OF_LISTS = {"lists": Condition(({"max_num_batched_tokens": 400},))}

# --------------------------------------------------------------------------------------------------- configurations


class Configuration(NamedTuple):
    """How an engine speculates.

    Attributes:
        config: its speculative config, given target and draft model, and what a cell adds to it.
        conditions: under which it is run.
        more: what is added, another of these in each cell.
        right: whether drafts are right at times on a random target's texts; None if that cannot be known.
        in_turn: whether configurations of this kind take turns at the conditions in the suite.
    """

    config: Callable[..., Any]
    conditions: dict[str, Condition]
    more: Sequence[dict[str, Any]] = ({},)
    right: bool | None = True
    in_turn: bool = False


def one(method: str, pair: Pair, **more: Any) -> dict[str, Any]:
    return {"method": method, **proposer_options(method, pair), **more}


def another(method: str, variant: str, pair: Pair, **more: Any) -> dict[str, Any]:
    return {"method": method, "model": str(fitted(method, pair.target, variant)), **more}


def several(method: str | None, pair: Pair, **more: Any) -> list[dict[str, Any]]:
    return every_method(pair, method, **more)


def listed(method: str, pair: Pair, **more: Any) -> list[dict[str, Any]]:
    return [one(name, pair, tree={"width": 2, "depth": 3}, **more) for name in ("suffix", "ngram", method)]


LENGTHS = [{"num_speculative_tokens": k} for k in (5, 1, 3, 8, 2)]
SHAPES = [{"width": 2}, {"width": 4, "depth": 4}, {"width": 16, "depth": 2}, {"width": 3, "depth": 1}]

CONFIGURATIONS = {
    "none": Configuration(partial(one, "none"), CONDITIONS, right=False),
    **{
        name: Configuration(
            partial(one, name), CONDITIONS | OF_DRAFTS, LENGTHS, guesses_on_random_texts(name) or None
        )
        for name in DRAFTING
    },
    **{
        f"{name}-branching": Configuration(partial(one, name), OF_TREES, [{"tree": shape} for shape in SHAPES])
        for name in WITH_WEIGHTS
    },
    **{
        f"{name}-{variant}": Configuration(partial(another, name, variant), OF_KINDS, LENGTHS)
        for name in DRAFTING
        for variant in variants(name)
    },
    **{
        f"{name}-{variant}-branching": Configuration(
            partial(another, name, variant),
            {"trees-and-trouble": OF_TREES["trees-and-trouble"]},
            [{"tree": SHAPES[1]}],
        )
        for name in DRAFTING
        for variant in variants(name)
    },
    "auto": Configuration(partial(several, None), OF_MANY),
    **{f"auto-and-{name}": Configuration(partial(several, name), OF_MANY, in_turn=True) for name in WITH_WEIGHTS},
    **{f"suffix-ngram-and-{name}": Configuration(partial(listed, name), OF_LISTS) for name in WITH_WEIGHTS},
}


class Cell(NamedTuple):
    """One entry of the table, with everything chosen."""

    configuration: str
    condition: str
    dtype: str
    temperature: float
    options: dict[str, Any]
    more: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.configuration}-{self.condition}-{self.dtype}-{self.temperature}"


def cells() -> Iterator[tuple[Cell, bool]]:
    """Yield every cell, and whether the suite runs it.

    It runs each configuration under each of its conditions once, or in turn under one. Dtype and temperature, the
    engine's options and what is added to the configuration take turns, so that different ones meet; `make soak` runs
    all of the former.
    """
    common = list(product(DTYPES, TEMPERATURES))
    for i, (configuration, how) in enumerate(CONFIGURATIONS.items()):
        for j, (condition, circumstances) in enumerate(how.conditions.items()):
            for turn in range(len(common)):
                n = i + j + turn
                options = circumstances.options[(i + turn) % len(circumstances.options)]
                cell = Cell(configuration, condition, *common[n % len(common)], options, how.more[n % len(how.more)])
                yield cell, turn == 0 and (not how.in_turn or i % len(how.conditions) == j)
