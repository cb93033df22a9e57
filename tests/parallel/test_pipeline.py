"""Stages: which layers each has, and what they hand each other."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import in_stages
from torch import Tensor

from parlay.errors import RankError
from parlay.kernels.exchange import SharedRing, make_ring
from parlay.parallel.gloo import GlooRing, connect_ranks, connect_store, make_store
from parlay.parallel.group import Group, RankPosition
from parlay.parallel.pipeline import Channel, Pipeline, split_evenly

HOST = "127.0.0.1"
PATIENCE = 0.2


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 40), st.integers(0, 60))
def test_every_stage_has_layers_of_about_its_share(sizes: list[int], parts: int, ends: int) -> None:
    parts = min(parts, len(sizes))
    bounds = split_evenly(sizes, parts, ends)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(sizes), parts + 1)
    assert all(a < b for a, b in itertools.pairwise(bounds))
    if ends == 0 and len(set(sizes)) == 1:
        assert max(b - a for a, b in itertools.pairwise(bounds)) <= -(-len(sizes) // parts)


def test_the_first_stage_has_fewer_layers_for_the_ends_of_the_model() -> None:
    assert split_evenly([10] * 8, 2) == [0, 4, 8]
    assert split_evenly([10] * 8, 2, 20) == [0, 3, 8]
    assert split_evenly([10] * 3, 3, 1000) == [0, 1, 2, 3]
    assert [Pipeline(stage, 2).share([10] * 8, 20) for stage in (0, 1)] == [(0, 3), (3, 8)]


def pass_on(channel: Channel, stage: int, stages: int) -> list[Tensor]:
    """Send as many messages of several sizes through the ring as there are stages; each stage adds its number."""
    shapes, found = [(2, 3, 4), (2, 1, 4), (3, 50, 4)], []
    for turn in range(6):
        shape = shapes[turn % 3]
        for way in range(stages):
            states = torch.full(shape, float(10 * turn + way))
            if stage > 0:
                channel.receive(states)
            channel.send(states + 100 * stage)
            states.fill_(-1)  # what was sent is sent
        for _ in range(stages if stage == 0 else 0):
            out = torch.empty(shape)
            channel.receive(out)
            found.append(out)
    return found


def expected(stages: int) -> list[float]:
    more = sum(100 * stage for stage in range(stages))
    return [float(10 * turn + way + more) for turn in range(6) for way in range(stages)]


@pytest.mark.parametrize("stages", [2, 3])
def test_messages_arrive_in_order(stages: int) -> None:
    def work(group: Group) -> list[Tensor]:
        assert group.pipeline.channel is not None
        return pass_on(group.pipeline.channel, group.pipeline.stage, stages)

    found = in_stages(stages, 1, work)[0]
    assert [one.unique().tolist() for one in found] == [[value] for value in expected(stages)]


@pytest.mark.parametrize("stages", [2, 3])
def test_messages_over_the_network_too(stages: int) -> None:
    store = make_store(HOST)

    def work(rank: int) -> list[Tensor]:
        own = store if rank == 0 else connect_store(HOST, store.port)
        exchange, ring, drafts = connect_ranks(own, HOST, RankPosition(rank, stages), 20.0)
        assert exchange is drafts is None
        assert isinstance(ring, GlooRing)
        found = pass_on(ring, rank, stages)
        done.wait(20)  # what was sent last may not be there yet
        return found

    done = threading.Barrier(stages)
    with ThreadPoolExecutor(stages) as pool:
        found = next(iter(pool.map(work, range(stages))))
    assert [one.unique().tolist() for one in found] == [[value] for value in expected(stages)]


def lone_ring(patience: float, places: int = 2) -> SharedRing:
    return SharedRing(make_ring(2, places, 64), 0, 2, places, 64, patience)


def test_a_stage_that_does_not_come_is_given_up() -> None:
    ring, states = lone_ring(PATIENCE), torch.zeros(4)
    with pytest.raises(RankError, match="stage 1 of this engine has not come"):
        ring.receive(states)
    with pytest.raises(RankError):  # for good
        ring.receive(states)


def test_a_sender_waits_only_where_no_place_is_free() -> None:
    ring = lone_ring(PATIENCE, places=3)
    for _ in range(3):
        ring.send(torch.zeros(4))
    with pytest.raises(RankError, match="stage 1 of this engine has not come"):
        ring.send(torch.zeros(4))


def test_who_waits_for_a_stage_that_ended_hears_of_it() -> None:
    ring = lone_ring(60.0)
    threading.Timer(PATIENCE, ring.abandon).start()
    with pytest.raises(RankError, match="has ended; start the engine again"):
        ring.receive(torch.zeros(4))


def test_a_message_that_does_not_fit_is_refused() -> None:
    for move in (lone_ring(1.0).send, lone_ring(1.0).receive):
        with pytest.raises(ValueError, match="larger than what ranks may hand over"):
            move(torch.zeros(40))


def test_seats() -> None:
    seats = [RankPosition(rank, 6, 2, 2 if rank < 2 else 0) for rank in range(6)]
    assert [(one.stage, one.tp_rank) for one in seats] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    group = seats[5].group(None, None)
    assert (group.rank, group.size) == (1, 2)
    assert group.pipeline == Pipeline(2, 3)
    assert group.pipeline.last
    assert not group.pipeline.first
