"""PARLAY_CHECK_KERNELS: a wrong offset is an error that names it, right ones change nothing."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("parlay.kernels._native")

from parlay import ConfigError
from parlay.kernels.base import AttentionMetadata
from parlay.kernels.checked import CheckedKernels
from parlay.kernels.cpu import NativeKernels
from parlay.kernels.select import select_kernels

from .helpers import ints, random

BLOCKS, BLOCK, HEADS, DIM = 3, 4, 2, 8
SLOTS = BLOCKS * BLOCK
CACHE = random(BLOCKS, HEADS, BLOCK, DIM)
# Two rows of one request, the second behind a draft token, and one of another; what no row sees is no block.
VIEW = AttentionMetadata(
    tables=torch.tensor([[1, 2, -1], [-1, 0, 99]], dtype=torch.int32),
    row_request=ints(0, 0, 1),
    first=ints(0, 0, 4),
    last=ints(5, 5, 8),
    extra_offsets=ints(0, 1, 3, 3),
    extra_slots=ints(9, 9, 10),
)


def longs(*values: int) -> Tensor:
    return torch.tensor(values)


def attend(kernels: NativeKernels, window: int = 0, **changes: Tensor) -> Tensor:
    out = torch.zeros(3, HEADS * DIM)
    kernels.attention(random(3, HEADS, DIM, seed=1), CACHE, CACHE, replace(VIEW, **changes), 0.3, out, window)
    return out


def store(kernels: NativeKernels, positions: Tensor, slots: Tensor) -> Tensor:
    cache = CACHE.clone()
    qkv = random(2, 3 * HEADS * DIM, seed=2)
    kernels.rotary_store(
        qkv, positions, slots, random(6, DIM, seed=3), torch.empty(2, HEADS, DIM), cache, cache.clone()
    )
    return cache


def embed(kernels: NativeKernels, tokens: Tensor) -> Tensor:
    out = torch.zeros(2, 8)
    kernels.embed(random(5, 8), tokens, out)
    return out


def embed_packed(kernels: NativeKernels, tokens: Tensor) -> Tensor:
    out = torch.zeros(2, 8)
    kernels.embed_packed(kernels.pack_head(random(5, 8).half()), tokens, out)
    return out


def add_embedding(kernels: NativeKernels, index: Tensor) -> Tensor:
    x = random(2, 8)
    kernels.add_embedding(x, random(5, 8, seed=1), index)
    return x


def experts(kernels: NativeKernels, chosen: Tensor) -> Tensor:
    out = torch.zeros(2, 4)
    kernels.expert_linear(random(2, 8), chosen, [kernels.pack_linear(random(4, 8, seed=i)) for i in range(3)], out)
    return out


def copy(kernels: NativeKernels, src: Tensor, dst: Tensor) -> Tensor:
    cache = CACHE.clone()
    kernels.copy_slots(src, dst, cache, cache.clone())
    return cache


def excess(kernels: NativeKernels, ids: Tensor) -> Tensor:
    mass = torch.zeros(1, dtype=torch.float64)
    scores = torch.log_softmax(random(1, 8), -1)
    kernels.excess(scores, scores[:, :2].contiguous(), torch.ones(1, dtype=torch.float64), mass, None, ids)
    return mass


@pytest.mark.parametrize(
    "work",
    [
        attend,
        # Only block 2 of the first request is seen through the window.
        lambda k: attend(k, window=2, tables=torch.tensor([[-1, 2, -1], [-1, 0, 0]], dtype=torch.int32)),
        lambda k: store(k, ints(0, 5), longs(SLOTS - 1, -1)),
        lambda k: embed(k, longs(0, 4)),
        lambda k: embed_packed(k, longs(0, 4)),
        lambda k: add_embedding(k, ints(0, 4)),
        lambda k: experts(k, ints(0, 2)),
        lambda k: copy(k, longs(0, SLOTS - 1), longs(1, 5)),
        lambda k: excess(k, longs(0, 7)),
    ],
)
def test_right_offsets_change_nothing(work: Callable[[NativeKernels], Tensor]) -> None:
    assert torch.equal(work(CheckedKernels()), work(NativeKernels()))


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda k: embed(k, longs(0, 5)), r"embed: tokens\[1\] is 5, not from 0 to 4"),
        (lambda k: embed(k, longs(-1, 0)), r"embed: tokens\[0\] is -1, not from 0 to 4"),
        (lambda k: embed_packed(k, longs(0, 5)), r"embed_packed: tokens\[1\] is 5"),
        (lambda k: add_embedding(k, ints(5, 0)), r"add_embedding: index\[0\] is 5"),
        (lambda k: store(k, ints(0, 6), longs(0, 1)), r"rotary_store: positions\[1\] is 6, not from 0 to 5"),
        (lambda k: store(k, ints(0, 1), longs(0, SLOTS)), r"rotary_store: slots\[1\] is 12, not below 12"),
        (lambda k: experts(k, ints(0, 3)), r"expert_linear: experts\[1\] is 3"),
        (lambda k: copy(k, longs(0, SLOTS), longs(1, 2)), r"copy_slots: src_slots\[1\] is 12"),
        (lambda k: copy(k, longs(0, 1), longs(-1, 2)), r"copy_slots: dst_slots\[0\] is -1"),
        (lambda k: excess(k, longs(0, 8)), r"excess: ids\[1\] is 8"),
        (lambda k: attend(k, row_request=ints(0, 0, 2)), r"attention: row_request\[2\] is 2, not from 0 to 1"),
        (lambda k: attend(k, first=ints(0, -1, 4)), r"attention: first\[1\] is -1, not from 0 to 12"),
        (lambda k: attend(k, last=ints(5, 13, 8)), r"attention: last\[1\] is 13, not from 0 to 12"),
        (lambda k: attend(k, last=ints(5, 5, 3)), r"attention: last\[2\] is 3, not from 4 to 12"),
        (lambda k: attend(k, last=ints(5, 5, 9)), r"attention: tables\[row_request\]\[2, 2\] is 99, not from 0 to 2"),
        (lambda k: attend(k, extra_offsets=ints(0, 2, 1, 3)), r"attention: extra_offsets\[1\] is 1, not from 2 to 3"),
        (lambda k: attend(k, extra_offsets=ints(0, 1, 3, 4)), r"attention: extra_offsets\[3\] is 4, not from 0 to 3"),
        (lambda k: attend(k, extra_slots=ints(9, 9, SLOTS)), r"attention: extra_slots\[2\] is 12, not from 0 to 11"),
    ],
)
def test_a_wrong_offset(work: Callable[[NativeKernels], Tensor], message: str) -> None:
    with pytest.raises(IndexError, match=message):
        work(CheckedKernels())


def test_a_recording_checks_what_it_is_run_with() -> None:
    kernels, weight, tokens, out = CheckedKernels(), random(5, 8), longs(0, 1), torch.zeros(2, 8)
    replay = kernels.record(lambda: kernels.embed(weight, tokens, out))
    tokens.copy_(longs(4, 2))
    replay()
    assert torch.equal(out, weight[[4, 2]])
    tokens[1] = 5
    with pytest.raises(IndexError, match=r"tokens\[1\] is 5"):
        replay()


def test_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, kind in {"": NativeKernels, "0": NativeKernels, "1": CheckedKernels}.items():
        monkeypatch.setenv("PARLAY_CHECK_KERNELS", value)
        assert type(select_kernels(force="native")) is kind
    monkeypatch.setenv("PARLAY_CHECK_KERNELS", "yes")
    with pytest.raises(ConfigError, match="PARLAY_CHECK_KERNELS must be 0 or 1, not 'yes'"):
        select_kernels(force="native")
