"""Draws and log-probabilities, row by row."""

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parlay import SamplingParams
from parlay.kernels.select import select_kernels
from parlay.sampling.sampler import (
    draw,
    filter_tensors,
    process,
    seed_tensor,
    temperature_tensor,
    token_logprobs,
)
from parlay.sampling.seeds import mix, signed

MIXED = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3, top_k=4),
    SamplingParams(temperature=0.7, top_p=0.6),
    SamplingParams(temperature=0.0, top_p=0.6),
    SamplingParams(temperature=2.0, min_p=0.2),
]


def logits(rows: int = len(MIXED), vocab: int = 70) -> torch.Tensor:
    return 2 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kernels", ["reference", None])
def test_a_mixed_batch_draws_what_the_oracle_chooses(kernels: str | None) -> None:
    seeds = [0, 1, (1 << 64) - 1, 1 << 63, 12345, 7]
    positions = [0, 1, 5, 1000, 1 << 31, 1 << 33]
    expected = [
        oracle.choose(row.numpy(), p, seed, position)
        for row, p, seed, position in zip(logits(), MIXED, seeds, positions, strict=True)
    ]
    drawn = draw(
        select_kernels(force=kernels),
        logits(),
        temperature_tensor(MIXED),
        seed_tensor(seeds),
        torch.tensor(positions),
        filter_tensors(MIXED),
    )
    assert drawn.tolist() == expected


@pytest.mark.parametrize("kernels", ["reference", None])
def test_each_row_is_processed_by_its_own_parameters(kernels: str | None) -> None:
    before = logits()
    processed = process(select_kernels(force=kernels), before, MIXED)
    assert torch.equal(before, logits()), "the logits are the caller's"
    for row, p in enumerate(MIXED):
        alone = process(select_kernels(force=kernels), before[row : row + 1], [p])[0]
        assert torch.equal(processed[row], alone)
        kept = int((alone > -torch.inf).sum())
        assert kept == 1 if p.temperature == 0 else (kept < 70) == p.filters


def test_rows_that_keep_all_need_no_filters() -> None:
    assert filter_tensors([p for p in MIXED if not p.filters]) is None
    assert not MIXED[4].filters, "nothing is filtered at temperature 0"
    filters = filter_tensors(MIXED)
    assert filters is not None
    assert filters.first(3).top_k.tolist() == [0, 0, 4]


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_signed_keeps_the_bits(seed: int) -> None:
    assert signed(seed) % (1 << 64) == seed % (1 << 64)
    assert -(1 << 63) <= signed(seed) < 1 << 63
    assert seed_tensor([mix(seed, 0)]).item() == signed(seed)


def test_mix_is_splitmix64() -> None:
    """The published first outputs of SplitMix64 at seed 1234567."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [mix(1234567, i) for i in (1, 2, 3, 4)] == known


def test_token_logprobs() -> None:
    row = torch.tensor([0.0, 2.0, 2.0, -1.0])
    kernels = select_kernels()
    expected = torch.empty((1, 4))
    kernels.log_softmax(row[None], expected)
    assert torch.allclose(expected[0], torch.log_softmax(row, dim=-1))
    expected = expected[0]
    entry = token_logprobs(kernels, row, 2, 3)
    assert entry.logprob == expected[2].item()
    assert entry.rank == 2, "of equal tokens the lower id is first"
    assert entry.top == tuple((t, expected[t].item()) for t in (1, 2, 0))
    assert token_logprobs(kernels, row, 3, 0).top == ()
    assert len(token_logprobs(kernels, row, 3, 9).top) == 4
