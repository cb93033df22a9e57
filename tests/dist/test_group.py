"""Groups of ranks: a smoke test with two of them on this machine, and the order of the sum without any."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed
from torch import Tensor

from parlay.dist.group import ALONE, Group
from parlay.kernels.select import select_kernels
from parlay.models.context import Buffers
from parlay.models.layers import ColumnParallelLinear, RowParallelLinear
from parlay.weights.weight import Weight

ROWS, WIDTH, INNER = 5, 48, 64


def tensors(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (ROWS, WIDTH), (INNER, WIDTH), (INNER, WIDTH), (WIDTH, INNER)
    x, gate, up, down = (torch.randn(shape, generator=generator) for shape in shapes)
    return x.to(dtype), gate.to(dtype), up.to(dtype), (down / 8).to(dtype)


def through_a_pair(group: Group, dtype: torch.dtype) -> Tensor:
    """Run rows through two fused column-parallel weights and one row-parallel one."""
    kernels = select_kernels()
    x, gate, up, down = tensors(dtype)
    column = ColumnParallelLinear(kernels, [Weight.of(gate), Weight.of(up)], group)
    row = RowParallelLinear(kernels, Weight.of(down), group)
    buffers = Buffers(ROWS, dtype)
    a, b = column(x, buffers, "gate_up").chunk(2, dim=-1)
    return row((a * b).contiguous(), buffers, "down")


def _rank(rank: int, path: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=2)
    group = Group(rank, 2, torch.distributed.group.WORLD)
    results = {str(dtype): through_a_pair(group, dtype) for dtype in (torch.float32, torch.bfloat16)}
    results["sum"] = group.all_reduce(torch.full((3,), 10.0**rank))
    torch.save(results, f"{path}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_ranks_give_what_one_does(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first), "ranks must agree to the bit"
    assert first["sum"].tolist() == [11.0] * 3
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        alone = through_a_pair(ALONE, dtype)
        assert alone.float().std() > 0.5
        torch.testing.assert_close(first[str(dtype)], alone, atol=tolerance, rtol=tolerance)


def test_the_sum_is_in_rank_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large, one, minus large: only from left to right the one is lost."""
    values = [2.0**30, 1.0, -(2.0**30)]

    def gather(parts: list[Tensor], x: Tensor, group: object) -> None:
        for part, value in zip(parts, values, strict=True):
            part.fill_(value)

    monkeypatch.setattr(torch.distributed, "all_gather", gather)
    assert Group(1, 3).all_reduce(torch.zeros(2)).tolist() == [0.0, 0.0]
    values.sort()
    assert Group(1, 3).all_reduce(torch.zeros(2)).tolist() == [0.0, 0.0]
    values[:] = [2.0**30, -(2.0**30), 1.0]
    assert Group(1, 3).all_reduce(torch.zeros(2)).tolist() == [1.0, 1.0]


def test_alone_nothing_is_copied() -> None:
    x = torch.ones(4, 4)
    assert ALONE.all_reduce(x) is x
    assert ALONE.shard(x, 0) is x


def test_shards_are_equal_and_complete() -> None:
    weight = torch.arange(24.0).reshape(4, 6)
    for dim, size in ((0, 2), (1, 3), (1, 6)):
        shards = [Group(rank, size).shard(weight, dim) for rank in range(size)]
        assert torch.equal(torch.cat(shards, dim), weight)
        assert all(shard.is_contiguous() for shard in shards)


@pytest.mark.parametrize(("dim", "size"), [(0, 3), (1, 4), (0, 8)])
def test_what_does_not_divide_is_refused(dim: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"among {size} ranks"):
        Group(0, size).shard(torch.zeros(4, 6), dim)
