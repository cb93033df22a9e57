"""A proposer may be switched off and on again within a request, or lose it: the tokens stay the same."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from asking import accepted, assert_same, assert_same_so_far, assert_whole, half_repeating, run
from conftest import DTYPES, MakeLLM, Plain, check_accepted, drafts
from crossing import crossed

from parlay.drafting.drafting import Drafting
from parlay.drafting.state import Drafted
from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.proposers.select import proposers

DRAFTING = [name for name in proposers.names() if drafts(name)]
TEMPERATURES = (0.0, 0.7, 1.3)


Limit = Callable[[Drafting, Drafted], int]


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int, int, int], int]], Callable[..., None]]:
    """A way to decide before every step how long drafts may be, given step, request and the usual length."""
    usual: Limit = Drafting.limit

    def install(choose: Callable[[int, int, int], int]) -> Callable[..., None]:
        step = [0]

        def limit(drafting: Drafting, request: Drafted, *emitting: Any) -> int:
            return choose(step[0], request.request_id, usual(drafting, request))

        monkeypatch.setattr(Drafting, "limit", limit)
        steps = count()
        return lambda *_: step.__setitem__(0, next(steps))

    return install


@crossed(method=DRAFTING, dtype=DTYPES, temperature=TEMPERATURES)
def test_off_and_on_again(
    make_llm: MakeLLM, plain: Plain, switch: Any, method: str, dtype: str, temperature: float
) -> None:
    before = switch(lambda step, request, usual: usual if (step // 3 + request) % 2 else 0)
    for options in ({}, {"max_num_batched_tokens": 48, "block_size": 4}):
        answers = run(make_llm(method, 4, dtype=dtype, **options), half_repeating(temperature), before)
        assert_same(answers, plain(dtype, half_repeating(temperature)))
        check_accepted(method, accepted(answers))


@pytest.mark.parametrize("method", DRAFTING)
def test_lengths_that_change_with_every_step(make_llm: MakeLLM, plain: Plain, switch: Any, method: str) -> None:
    before = switch(lambda step, request, usual: min(usual, (5 * step + 3 * request) % 7))
    answers = run(make_llm(method, 6), half_repeating(0.7), before)
    assert_same(answers, plain("float32", half_repeating(0.7)))
    check_accepted(method, accepted(answers))


@pytest.mark.parametrize("method", DRAFTING)
def test_a_budget_of_nothing(make_llm: MakeLLM, plain: Plain, switch: Any, method: str) -> None:
    before = switch(lambda step, request, usual: 0)
    answers = run(make_llm(method, 4), half_repeating(0.7), before)
    assert_same(answers, plain("float32", half_repeating(0.7)))
    assert all(answer.metrics.drafted == 0 for answer in answers)


@pytest.mark.parametrize("method", DRAFTING)
def test_requests_that_are_given_up(make_llm: MakeLLM, plain: Plain, method: str) -> None:
    steps = count()

    def give_up(engine: Engine, requests: list[Request]) -> None:
        step = next(steps)
        if step % 2 and step // 2 * 3 < len(requests):
            engine.abort(requests[step // 2 * 3])

    llm = make_llm(method, 4, block_size=4)
    answers = run(llm, half_repeating(0.7), give_up)
    expected = plain("float32", half_repeating(0.7))
    assert_whole(llm.engine)
    assert sum(answer.finish_reason == "abort" for answer in answers) > 3
    assert_same_so_far(answers, expected)
    again = run(llm, half_repeating(0.7))  # what they left behind harms nobody
    assert_same(again, expected)
