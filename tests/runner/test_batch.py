"""Flattening, and what rows see: a node's logits are those of the chain that leads to it, bit for bit."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import write_llama
from conftest import DTYPES
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.runner.batch import Segment, flatten
from parlay.runner.runner import ModelRunner
from parlay.types.draft import ROOT, Draft
from parlay.types.draft_tree import depths, paths
from parlay.types.plan import Span, Verdict

SIZE = 4
BLOCKS = 64


@pytest.fixture(scope="module")
def paths_by_dtype(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("runner")
    return {name: write_llama(base / name, dtype=getattr(torch, name), num_hidden_layers=2) for name in DTYPES}


def runner_of(path: Path, dtype: str) -> ModelRunner:
    kernels = select_kernels()
    return ModelRunner(
        load_model(describe_model(str(path)), getattr(torch, dtype), 128, kernels), kernels, BLOCKS, SIZE
    )


def logits(runner: ModelRunner, *segments: Segment) -> list[Tensor]:
    """Return the logits of all rows, one tensor a segment."""
    batch = flatten(segments, SIZE)
    rows = runner.logits(runner.forward(batch), range(batch.offsets[-1]))
    return [rows[a:b] for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]


def random_tree(rng: random.Random, size: int) -> Draft:
    parents = tuple(rng.randint(ROOT, node - 1) for node in range(size))
    return Draft(tuple(rng.randrange(257) for _ in range(size)), parents, ("test",) * size)


def spread(rng: random.Random, count: int, taken: set[int]) -> tuple[int, ...]:
    """Return block ids in random order that nobody has."""
    blocks = rng.sample([b for b in range(BLOCKS) if b not in taken], count)
    taken.update(blocks)
    return tuple(blocks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(6))
def test_nodes_are_the_chains_that_lead_to_them(paths_by_dtype: dict[str, Path], dtype: str, seed: int) -> None:
    rng = random.Random(seed)
    runner = runner_of(paths_by_dtype[dtype], dtype)
    taken: set[int] = set()
    prompts = [[rng.randrange(257) for _ in range(rng.randint(2, 13))] for _ in range(3)]
    trees = [random_tree(rng, rng.randint(1, 12)), Draft.chain([1, 2, 3], "test"), random_tree(rng, 5)]
    blocks = [spread(rng, 8, taken) for _ in prompts]
    # The prompts first, all but their roots; then roots and trees in one batch beside a stranger's chunk.
    logits(runner, *(Segment(p[:-1], 0, b) for p, b in zip(prompts, blocks, strict=True)))
    segments = [Segment(p[-1:], len(p) - 1, b, t) for p, b, t in zip(prompts, blocks, trees, strict=True)]
    found = logits(runner, *segments[:2], Segment([5, 6, 7], 0, spread(rng, 1, taken)), segments[2])
    del found[2]
    for prompt, tree, rows in zip(prompts, trees, found, strict=True):
        assert len(rows) == 1 + len(tree)
        fresh = spread(rng, 8, set(taken))
        for node, path in enumerate([[], *paths(tree)]):
            chain = [*prompt, *(tree.tokens[n] for n in path)]
            [expected] = logits(runner, Segment(chain, 0, fresh))
            assert torch.equal(rows[node], expected[-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_keep_moves_what_was_accepted(paths_by_dtype: dict[str, Path], dtype: str) -> None:
    """After moving, the text goes on as if it had been computed token by token."""
    rng = random.Random(1)
    runner = runner_of(paths_by_dtype[dtype], dtype)
    taken: set[int] = set()
    for _ in range(20):
        prompt = [rng.randrange(257) for _ in range(rng.randint(1, 9))]
        tree = random_tree(rng, 10)
        blocks = spread(rng, 6, taken)
        path = tuple(rng.choice(paths(tree)))
        logits(runner, Segment(prompt, 0, blocks, tree))
        span = Span(
            request_id=0,
            tokens=tuple(prompt),
            start=0,
            blocks=blocks,
            seed=0,
            params=None,
            draft=tree,  # type: ignore[arg-type]
        )
        runner.move_accepted([span], [Verdict((0,) * (len(path) + 1), path)])
        text = [*prompt, *(tree.tokens[node] for node in path)]
        [found] = logits(runner, Segment([9, 8], len(text), blocks))
        [expected] = logits(runner, Segment([*text, 9, 8], 0, spread(rng, 6, taken)))
        assert torch.equal(found, expected[-2:])
        taken.clear()


def test_positions_and_slots_of_a_tree() -> None:
    #        root(9) -> a -> b
    #                \-> c
    tree = Draft((1, 2, 3), (ROOT, 0, ROOT), ("t",) * 3)
    batch = flatten([Segment([7, 9], 5, (10, 20, 30), tree)], SIZE)
    assert batch.tokens.tolist() == [7, 9, 1, 2, 3]
    assert batch.positions.tolist() == [5, 6, 7, 8, 7]
    assert batch.slots.tolist() == [81, 82, 83, 120, 121]
    assert batch.view.last.tolist() == [6, 7, 7, 7, 7]
    assert batch.view.extra_offsets.tolist() == [0, 0, 0, 1, 3, 4]
    assert batch.view.extra_slots.tolist() == [83, 83, 120, 121]
    assert batch.offsets == (0, 5)


def test_a_chain_needs_no_lists() -> None:
    batch = flatten([Segment([7], 3, (1, 2), Draft.chain([4, 5], "t"))], SIZE)
    assert batch.view.last.tolist() == [4, 5, 6]
    assert len(batch.view.extra_slots) == 0


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=4), st.data()
)
def test_offsets_and_requests(shapes: list[tuple[int, int, int]], data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 99)))
    segments = [
        Segment([1] * known, start, tuple(range(i * 8, i * 8 + 8)), random_tree(rng, nodes))
        for i, (known, start, nodes) in enumerate(shapes)
    ]
    batch = flatten(segments, SIZE)
    assert np.diff(batch.offsets).tolist() == [known + nodes for known, _, nodes in shapes]
    for i, segment in enumerate(segments):
        own = slice(batch.offsets[i], batch.offsets[i + 1])
        end = segment.start + len(segment.tokens)
        assert set(batch.view.row_request[own].tolist()) == {i}
        assert batch.positions[own].tolist() == [
            *range(segment.start, end),
            *(end - 1 + depth for depth in depths(segment.draft)),
        ]
    assert len(set(batch.slots.tolist())) == len(batch.slots), "every row has a slot of its own"
