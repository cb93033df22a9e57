"""How many completions are open, and how many bytes bodies take."""

import asyncio
from typing import Any

import pytest

from parlay.server.admission import Admission, BodyBudget
from parlay.server.errors import ApiError

MIB = 1 << 20


def test_a_key_may_hold_as_many_bytes_as_are_free() -> None:
    budget = BodyBudget(64 * MIB)
    refusals: set[Any] = set()

    def fill(key: str) -> int:
        count = 0
        try:
            while True:
                budget.acquire(key, MIB)
                count += 1
        except ApiError as error:
            refusals.add((error.status, *error.headers))
        return count

    assert [fill(key) for key in ("alice", "bob", "carol", "dan")] == [32, 16, 8, 4]
    budget.release("alice", 32 * MIB)
    assert fill("dan") > 0
    for key, count in list(budget._of.items()):
        budget.release(key, count)
    assert budget.used == 0
    assert not budget._of
    assert refusals == {(429, "Retry-After")}


def test_a_seat_is_widened_and_given_back() -> None:
    admission = Admission(8, 4)
    with admission.admit("a") as seat:
        assert admission.open == 1
        admission.widen(seat, 4)
        assert admission.open == 4
        with pytest.raises(ApiError) as told, admission.admit("a"):
            pass
        assert told.value.status == 429
        for count, status in ((5, 400), (9, 400)):
            with pytest.raises(ApiError) as told:
                admission.widen(seat, count)
            assert told.value.status == status
        with admission.admit("b") as other, admission.admit("c") as third:
            admission.widen(third, 3)
            with pytest.raises(ApiError) as told:
                admission.widen(other, 2)
            assert told.value.status == 429
        assert admission.open == 4
        closing = admission.close(0.001)
        asyncio.run(closing)
        admission.widen(seat, 4)  # what is admitted goes on
        with pytest.raises(ApiError) as told, admission.admit("d"):
            pass
        assert told.value.status == 503
    assert admission.open == 0
    assert not admission._per_key
