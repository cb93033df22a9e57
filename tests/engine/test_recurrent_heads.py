"""Heads that pair tokens with the states of a target with recurrent layers, which no token runs through twice."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from asking import (
    Ask,
    accepted,
    assert_same,
    preempt_every_third_step,
    run,
    with_params,
)
from crossing import crossed
from families import write_family
from mtp_layers import MODELS, write_mtp
from pieces import random_tokens
from recurrent import alone, asks, write_random_head
from switching import any_choices

from parlay import LLM, SamplingParams

FAMILIES = ("qwen3_5", "lfm2", "nemotronh-experts", "falconh1")
METHODS = ("eagle", "eagle3", "mtp", "dflash")
WHERE = {"mtp": MODELS, "dflash": ("qwen3_5",)}
PAIRS = [(name, method) for name in FAMILIES for method in METHODS if name in WHERE.get(method, FAMILIES)]
FIXED = {"lengths": "fixed", "num_speculative_tokens": 3}
TREE = {"lengths": "fixed", "num_speculative_tokens": 16, "tree": {"width": 8, "depth": 2}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        make = write_mtp if name in MODELS else write_family
        return make(tmp_path_factory.mktemp("models") / name, name, seed=2, calm=0.3)

    return cache(write)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda method: write_random_head(tmp_path_factory.mktemp("heads") / method, method))


@pytest.fixture
def engine(model: Callable[[str], Path], head: Callable[[str], Path]) -> Callable[..., LLM]:
    """Return what makes an engine of a family with a head, or without one."""

    def make(name: str, method: str | None, more: dict[str, Any] | None = None, **options: Any) -> LLM:
        head_of = None if method is None else {"method": method}
        if head_of is not None and method != "mtp":
            head_of["model"] = str(head(method))
        spec = head_of and head_of | (FIXED if more is None else more)
        given = {"dtype": "float32", "max_model_len": 256, "block_size": 8, **options}
        return LLM(str(model(name)), speculative_config=spec, **given)

    return make


@pytest.fixture(scope="module")
def plainly(model: Callable[[str], Path]) -> Callable[[str], list[Any]]:
    return cache(lambda name: alone(model(name), asks()))


@crossed(pair=PAIRS, shape=("chains", "trees"))
def test_same_tokens(
    engine: Callable[..., LLM], plainly: Callable[[str], list[Any]], pair: tuple[str, str], shape: str
) -> None:
    """In chunks and in company, then from the cache, then preempted at every third step."""
    name, method = pair
    llm = engine(name, method, TREE if shape == "trees" else FIXED, max_num_batched_tokens=40)
    for meddle in (None, None, preempt_every_third_step()):
        found = run(llm, asks(), meddle)
        assert_same(found, plainly(name))
        assert sum(one.metrics.drafted for one in found) > 100
    assert shape == "chains" or accepted(found) > 0  # chains of a random head are hardly ever right


@pytest.mark.usefixtures("forked_ranks")
@crossed(method=METHODS, split=("tensor_parallel_size", "pipeline_parallel_size"))
def test_ranks(engine: Callable[..., LLM], plainly: Callable[[str], list[Any]], method: str, split: str) -> None:
    assert_same(run(engine("qwen3_5", method, **{split: 2}), asks()), plainly("qwen3_5"))


def drafts(llm: LLM, ask: Ask) -> tuple[list[Any], int]:
    """Return a completion's tokens, its rejected draft tokens, what each step drafted, and how much was cached."""
    (found,) = run(llm, [with_params(ask, return_rejected=True)])
    return [found.token_ids, found.rejected, found.metrics.per_step], found.metrics.cached_tokens


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_drafts_do_not_depend_on_the_cache(engine: Callable[..., LLM], name: str, method: str) -> None:
    """A head's pairs of a prefix are found with it, and the pair behind it has the state that a checkpoint keeps."""
    llm = engine(name, method)
    ask = Ask(tuple(random_tokens(61)), SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True))
    first, none = drafts(llm, ask)
    again, cached = drafts(llm, ask)
    assert (none, cached) == (0, 56)
    assert again == first
    answer = Ask((*ask.prompt, *first[0], 5, 6), ask.params)
    found, cached = drafts(llm, answer)
    assert cached > 72
    assert found == drafts(engine(name, method, enable_prefix_caching=False), answer)[0]


@pytest.mark.parametrize("method", METHODS)
def test_a_head_begins_anew_where_it_lacks_pairs(engine: Callable[..., LLM], method: str) -> None:
    """The prefix was computed while it was off; it goes on from the state before the first token all the same."""
    ask = Ask(tuple(random_tokens(61)), SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True))
    off, other = engine("qwen3_5", method), engine("qwen3_5", method)
    (expected,) = run(off, [with_params(ask, speculative={"enabled": False})])
    assert expected.metrics.drafted == 0
    drafts(other, ask)
    other.engine._pool._valid.clear()  # as if its pairs had never been
    anew, cached = drafts(off, ask)
    assert cached == 56
    assert len(anew[2]) > 5
    assert anew[0] == expected.token_ids
    assert drafts(other, ask)[0] == anew
    assert drafts(other, ask)[0] == anew  # pairs that see none before them are not shared


@pytest.mark.parametrize(("name", "method"), [("qwen3_5", "mtp"), ("lfm2", "eagle"), ("nemotronh-experts", "eagle3")])
def test_lengths_chosen_at_random(
    engine: Callable[..., LLM],
    plainly: Callable[[str], list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    method: str,
) -> None:
    """The head is switched off and on in the middle of requests."""
    any_choices(monkeypatch)
    llm = engine(name, method, {})
    for _ in range(2):
        assert_same(run(llm, asks()), plainly(name))


def test_rows_before_are_part_of_the_memory(engine: Callable[..., LLM]) -> None:
    plain, more = engine("lfm2", None).engine.memory, engine("lfm2", "eagle3").engine.memory
    room = more.room
    assert plain.room == room
    assert more.states - plain.states == 3 * 64 * 4 * (room.slots + room.places)
