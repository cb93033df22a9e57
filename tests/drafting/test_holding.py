"""A head of pairs that is off holds states and runs nothing; later it makes of them what it would have made."""

import random
from typing import Any

import pytest
from asking import Ask, assert_same, half_repeating, meddle_at_random, run, with_params
from conftest import MakeLLM, Pair, Plain, proposer_options

from parlay.drafting import device
from parlay.drafting.controller import Controller
from parlay.engine.engine import Engine
from parlay.engine.request import Request

METHODS = ("eagle", "eagle3")


def asks(count: int = 16, **more: Any) -> list[Ask]:
    return [with_params(ask, **more) for ask in half_repeating(0.7)[:count]]


@pytest.fixture
def switched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of a device proposer's next drafts, as a list with one number that tests change."""
    length = [0]
    monkeypatch.setattr(Controller, "next_length", lambda self, most, *of, **more: min(most, length[0]))
    monkeypatch.setattr(Controller, "asks", lambda self, *of: True)
    monkeypatch.setattr(
        Controller, "choose", lambda self, chances, *of, **more: [list(range(len(own))) for own in chances]
    )
    monkeypatch.setattr(Controller, "device_gain", 9.0)
    monkeypatch.setattr(Controller, "saving", lambda self, *of: 1e9)
    monkeypatch.setattr(Controller, "hopeful", True)
    return length


def held(llm: Any) -> dict[int, int]:
    found: dict[int, int] = llm.engine._worker._proposer._held.counts
    return found


def passes(monkeypatch: pytest.MonkeyPatch, llm: Any) -> list[int]:
    """Note how many pairs run."""
    counts: list[int] = []
    proposer = llm.engine._worker._proposer
    keep = proposer._keep

    def watched(batch: Any, *of: Any) -> Any:
        counts.append(len(batch.tokens))
        return keep(batch, *of)

    monkeypatch.setattr(proposer, "_keep", watched)
    return counts


def config(method: str, models: dict[str, Pair]) -> dict[str, Any]:
    return {"method": method, "lengths": "goodput", "tree": "off", **proposer_options(method, models["float32"])}


@pytest.mark.parametrize("method", METHODS)
def test_nothing_runs_while_it_is_off(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    plain: Plain,
    switched: list[int],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    llm = make_llm(speculative_config=config(method, models))
    counts = passes(monkeypatch, llm)
    most = [0]

    def look(engine: Engine, requests: list[Request]) -> None:
        most[0] = max(most[0], len(held(llm)))

    assert_same(run(llm, asks(), look), plain("float32", asks()))
    assert counts == []
    assert most[0] == 16
    run(llm, asks(1))
    assert len(held(llm)) <= 1  # of who ended in the last step, until the next one


@pytest.mark.parametrize(
    "options", [{}, {"max_num_batched_tokens": 9, "block_size": 4}, {"enable_prefix_caching": False}]
)
@pytest.mark.parametrize("method", METHODS)
def test_what_was_held_is_as_good(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    plain: Plain,
    switched: list[int],
    method: str,
    options: dict[str, Any],
) -> None:
    """Off for a while and on again: the same guesses as if it had been on all the time."""
    several = asks(3, max_tokens=40, temperature=0.0, ignore_eos=True)

    def guesses(first: int) -> dict[tuple[int, int], Any]:
        llm = make_llm(speculative_config=config(method, models), **options)
        found: dict[tuple[int, int], Any] = {}

        def look(engine: Engine, requests: list[Request]) -> None:
            switched[0] = 3 if max(len(request.output_tokens) for request in requests) >= first else 0
            for request in requests:
                if request.drafting.pending.tokens:
                    found[request.request_id, len(request.tokens)] = request.drafting.pending.tokens

        assert_same(run(llm, several, look), plain("float32", several))
        return found

    always, late = guesses(0), guesses(15)
    common = always.keys() & late.keys()
    assert {request_id for request_id, _ in common} == {0, 1, 2}
    # How long a draft may be depends on the rows that others have taken, so the shorter one counts.
    assert all(own == other for at in common for own, other in zip(always[at], late[at], strict=False))


@pytest.mark.parametrize("method", METHODS)
def test_off_and_on_at_random(
    make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, switched: list[int], method: str
) -> None:
    rng = random.Random(6)
    meddle = meddle_at_random(rng, 0.1)

    def switch(engine: Engine, requests: list[Request]) -> None:
        if rng.random() < 0.3:
            switched[0] = rng.choice((0, 0, 2, 4))
        meddle(engine, requests)

    accepted = 0
    for options in ({}, {"max_num_batched_tokens": 24, "block_size": 4}):
        llm = make_llm(speculative_config=config(method, models), **options)
        for _ in range(2):  # the second time from cached prefixes
            answers = run(llm, asks(), switch)
            assert_same(answers, plain("float32", asks()))
            accepted += sum(answer.metrics.accepted for answer in answers)
    assert accepted > 10


@pytest.mark.parametrize("method", METHODS)
def test_beyond_the_bound_states_are_dropped_and_computed_once_more(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    plain: Plain,
    switched: list[int],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    monkeypatch.setattr(device, "MOST_HELD", 30)
    llm = make_llm(speculative_config=config(method, models))
    most = [0]

    def look(engine: Engine, requests: list[Request]) -> None:
        switched[0] = 4 if any(len(r.output_tokens) > 30 for r in requests) else 0
        most[0] = max([most[0], *held(llm).values()])

    answers = run(llm, asks(4, max_tokens=45), look)
    assert_same(answers, plain("float32", asks(4, max_tokens=45)))
    assert 20 < most[0] <= 30 + device.THINKS
    assert sum(answer.metrics.accepted for answer in answers) > 0, "and the head guesses all the same"
