"""Groups of ranks: shares of dimensions, and what ranks hand each other."""

import threading
import time
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import together
from torch import Tensor

from parlay.errors import RankError
from parlay.kernels.exchange import SharedMemory, make_memory
from parlay.kernels.select import select_kernels
from parlay.parallel.group import ALONE, Group

PATIENCE = 0.2


@given(st.integers(1, 9), st.integers(0, 40), st.integers(1, 7))
def test_shares_are_whole_units_complete_and_nearly_equal(size: int, units: int, unit: int) -> None:
    bounds = Group(0, size).bounds(units * unit, unit)
    shares = [(end - begin) // unit for begin, end in pairwise(bounds)]
    assert bounds[0] == 0
    assert bounds[-1] == units * unit
    assert all(bound % unit == 0 for bound in bounds)
    assert max(shares) - min(shares) <= 1
    assert [Group(rank, size).share(bounds) for rank in range(size)] == list(pairwise(bounds))


@given(st.integers(1, 6), st.integers(1, 700))
def test_outputs_are_shared_in_whole_panels_where_there_are_enough(size: int, outputs: int) -> None:
    bounds = Group(0, size).output_bounds(outputs)
    assert bounds[0] == 0
    assert bounds[-1] == outputs
    assert list(bounds) == sorted(bounds)
    assert outputs < 32 * size or all(bound % 32 == 0 for bound in bounds[:-1])


def test_a_unit_is_never_cut() -> None:
    with pytest.raises(ValueError, match="not made of units of 4"):
        Group(0, 2).bounds(10, 4)


def shares_of(whole: Tensor, bounds: tuple[int, ...], rank: int) -> Tensor:
    return whole[:, bounds[rank] : bounds[rank + 1]].contiguous()


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=5).filter(any),
    st.integers(0, 40),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(36, 300),
)
def test_every_rank_gets_all_columns(widths: list[int], rows: int, dtype: torch.dtype, room: int) -> None:
    """In one piece or in many, whoever has how many columns; three times, since places are used again."""
    bounds = tuple(sum(widths[:i]) for i in range(len(widths) + 1))
    wholes = [torch.randn(rows, bounds[-1]).to(dtype) for _ in range(3)]

    def work(group: Group) -> list[Tensor]:
        found = []
        for whole in wholes:
            out = torch.zeros_like(whole)
            group.gather(shares_of(whole, bounds, group.rank), out, bounds)
            found.append(out)
        return found

    for found in together(len(widths), work, room):
        assert all(torch.equal(a, b) for a, b in zip(found, wholes, strict=True))


def test_recordings_exchange_what_is_new() -> None:
    """A replay that left out the exchange, or repeated what it saw, would have the values of the recording."""
    bounds = (0, 3, 5)

    def work(group: Group) -> list[Tensor]:
        kernels = select_kernels(force="native")
        begin, end = group.share(bounds)
        own, out, found = torch.zeros(4, end - begin), torch.zeros(4, 5), []
        run = kernels.record(lambda: group.gather(own, out, bounds))
        assert run is not None
        for value in (1.0, 2.0, 3.0):
            own.fill_(value * (1 + group.rank))
            run()
            found.append(out.clone())
        return found

    for found in together(2, work):
        for value, out in zip((1.0, 2.0, 3.0), found, strict=True):
            assert out.tolist() == [[value] * 3 + [2 * value] * 2] * 4


def test_what_does_not_fit_is_refused() -> None:
    def wrong_width(group: Group) -> None:
        group.gather(torch.zeros(2, 1), torch.zeros(2, 6), (0, 3, 6))

    def too_wide(group: Group) -> None:
        group.gather(torch.zeros(1, 100), torch.zeros(1, 200), (0, 100, 200))

    with pytest.raises(ValueError, match=r"shape \[2, 3\]"):
        together(2, wrong_width)
    with pytest.raises(ValueError, match="larger than what ranks may hand over"):
        together(2, too_wide, room=64)


def exchange_of_two(patience: float) -> SharedMemory:
    return SharedMemory(make_memory(2, 64), 0, 2, 64, patience)


def test_a_rank_that_does_not_come_is_given_up() -> None:
    exchange, out = exchange_of_two(PATIENCE), torch.zeros(1, 2)
    began = time.monotonic()
    with pytest.raises(RankError, match="rank 1 of this engine has not come"):
        exchange.gather(torch.zeros(1, 1), out, (0, 1, 2))
    assert time.monotonic() - began >= PATIENCE
    with pytest.raises(RankError):  # for good
        exchange.gather(torch.zeros(1, 1), out, (0, 1, 2))


def test_who_waits_for_a_rank_that_ended_hears_of_it() -> None:
    exchange = exchange_of_two(60.0)
    threading.Timer(PATIENCE, exchange.abandon).start()
    with pytest.raises(RankError, match="has ended; start the engine again"):
        exchange.gather(torch.zeros(1, 1), torch.zeros(1, 2), (0, 1, 2))


def test_alone_a_dimension_is_one_share() -> None:
    assert ALONE.bounds(7) == (0, 7)
    assert ALONE.share(ALONE.output_bounds(100)) == (0, 100)
    assert ALONE.recordable
