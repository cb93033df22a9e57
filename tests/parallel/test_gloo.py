"""Ranks that hand each other columns over the network."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from parlay.errors import RankError
from parlay.parallel.gloo import Gloo, connect_ranks, connect_store, make_store
from parlay.parallel.group import RankPosition

HOST = "127.0.0.1"


def together(
    size: int, work: Callable[[int, Gloo], Tensor], patience: float = 20.0, late: float = 0.0
) -> list[Tensor]:
    """Have every rank of a group, each a thread, do `work`."""
    store = make_store(HOST)

    def one(rank: int) -> Tensor:
        time.sleep(late * rank)
        own = store if rank == 0 else connect_store(HOST, store.port)
        return work(rank, Gloo(own, rank, size, HOST, patience))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bounds", [(0, 3, 8), (0, 0, 5), (0, 4, 4, 9)])
def test_every_rank_gets_all_columns(dtype: torch.dtype, bounds: tuple[int, ...]) -> None:
    whole = torch.randn((5, bounds[-1]), generator=torch.Generator().manual_seed(0)).to(dtype)

    def work(rank: int, exchange: Gloo) -> Tensor:
        out = torch.zeros_like(whole)
        for _ in range(3):
            exchange.gather(whole[:, bounds[rank] : bounds[rank + 1]].contiguous(), out, bounds)
        return out

    assert all(torch.equal(found, whole) for found in together(len(bounds) - 1, work))


def test_a_rank_that_does_not_come_is_given_up() -> None:
    def work(rank: int, exchange: Gloo) -> Tensor:
        if rank == 1:
            time.sleep(1.5)
            return torch.empty(0)
        with pytest.raises(RankError, match="a rank of this engine is lost"):
            exchange.gather(torch.zeros(1, 2), torch.zeros(1, 4), (0, 2, 4))
        return torch.empty(0)

    together(2, work, patience=0.5)


def test_a_rank_may_take_longer_to_come_at_first() -> None:
    """It loads torch, and looks up names."""

    def work(rank: int, exchange: Gloo) -> Tensor:
        out = torch.zeros(1, 4)
        exchange.gather(torch.full((1, 2), float(rank)), out, (0, 2, 4))
        return out

    assert [out.tolist() for out in together(2, work, patience=0.5, late=1.0)] == [[[0, 0, 1, 1]]] * 2


def test_a_group_that_is_never_complete() -> None:
    with pytest.raises(RankError, match="cannot connect to each other"):
        Gloo(make_store(HOST), 0, 2, HOST, 0.3, 0.3)


def test_a_stage_that_does_not_come_is_given_up() -> None:
    store, given_up = make_store(HOST), threading.Event()

    def one(rank: int) -> None:
        own = store if rank == 0 else connect_store(HOST, store.port)
        ring = connect_ranks(own, HOST, RankPosition(rank, 2), 0.5)[1]
        assert ring is not None
        if rank == 1:
            assert given_up.wait(60)
            return
        with pytest.raises(RankError, match="a rank of this engine is lost"):
            ring.receive(torch.zeros(2))
        given_up.set()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, range(2)))
