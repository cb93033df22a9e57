"""Models whose layers several ranks share: the bits of one rank, whatever the shape."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_llama
from crossing import crossed
from families import FAMILIES, OTHERS, write_family
from families_in_turn import in_turn
from gguf_files import write_gguf
from pieces import random_tokens
from ranks import in_stages, together
from torch import Tensor

from parlay import ConfigError
from parlay.kernels.select import select_kernels
from parlay.models.export.gguf import Form, export
from parlay.models.select import check_ranks, describe_model, load_embed_and_lm_head, load_model
from parlay.parallel.group import ALONE, Group
from parlay.runner.batch import Batch, Segment, flatten
from parlay.runner.orders import Forward, Move, decode, encode
from parlay.runner.runner import ModelRunner
from parlay.types.cache import StateCapacity
from parlay.types.draft import ROOT, Draft
from parlay.types.plan import StateUse
from parlay.types.storage import Storage

SIZE, BLOCKS = 8, tuple(range(11, -1, -1))
TREE = Draft((5, 6, 7, 8), (ROOT, 0, ROOT, 2), ("test",) * 4)
STAGED = tuple(name for name in FAMILIES if name != "opt")
EAGER = 70  # rows of a prompt that is too long for a recording


def batches(*, recurrent: bool) -> list[Batch]:
    """A prompt, single rows which are recorded and replayed, and a draft with branches, twice."""
    tokens = random_tokens(80)
    cuts = (0, EAGER, EAGER + 1, EAGER + 2, EAGER + 3)
    made = [
        Segment(tokens[a:b], a, BLOCKS, states=StateUse(i % 2 if i else -1, stores=((b - a, 1 - i % 2),)))
        for i, (a, b) in enumerate(pairwise(cuts))
    ]
    states = StateUse(0, (), ((1, 1),), (0, 1, 2, 3)), StateUse(1, (2, 3), ((2, 2), (3, 0)), (4, 5, 6, 7))
    made += [Segment(tokens[-1:], EAGER + 3 + i, BLOCKS, TREE, states=own) for i, own in enumerate(states)]
    return [flatten([segment], SIZE, recurrent=recurrent) for segment in made]


def tapped_runner(
    path: Path, dtype: torch.dtype, group: Group, storage: Storage = "stored", kernels: str | None = None
) -> ModelRunner:
    """Return what runs a model, or a share of it, and keeps the states after its first and last layer."""
    config, chosen = replace(describe_model(str(path)), storage=storage), select_kernels(force=kernels)
    model, room = load_model(config, dtype, 128, chosen, group), StateCapacity(slots=3, places=8)
    runner = ModelRunner(model, chosen, len(BLOCKS), SIZE, group, room=room)
    if config.architecture != "OPTForCausalLM":
        runner.tap((1, config.num_layers))
    return runner


def pass_through(
    path: Path, dtype: torch.dtype, group: Group, storage: Storage = "stored", kernels: str | None = None
) -> list[Tensor]:
    """Return hidden states, logits and states between layers of a few passes on one rank."""
    runner, found = tapped_runner(path, dtype, group, storage, kernels), []
    for batch in batches(recurrent=runner.recurrent):
        hidden = runner.forward(decode(encode(Forward.of(batch))).batch)  # as ranks are told
        found += [hidden.clone(), runner.tapped.clone(), runner.logits(hidden, range(len(hidden))).clone()]
        runner.move(Move((8,), (9,)))
    return found


def assert_as_alone(path: Path, dtype: torch.dtype, size: int, storage: Storage = "stored", **more: Any) -> None:
    expected = pass_through(path, dtype, ALONE, storage, **more)
    for rank, found in enumerate(together(size, lambda group: pass_through(path, dtype, group, storage, **more))):
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), f"rank {rank} of {size}, result {i}"


@in_turn(tuple(FAMILIES), size=[3, 4], dtype=[torch.float32, torch.bfloat16])
def test_every_family(checkpoint: Callable[[str], Path], name: str, size: int, dtype: torch.dtype) -> None:
    """With two key heads, ranks three and four have none."""
    assert_as_alone(checkpoint(name), dtype, size)


@in_turn(tuple(FAMILIES), pairs=True, turn=30, dtype=[torch.bfloat16, torch.float32])
def test_two_ranks_of_every_family(checkpoint: Callable[[str], Path], name: str, dtype: torch.dtype) -> None:
    assert_as_alone(checkpoint(name), dtype, 2)


@crossed(form=["f16", "int8"], size=[2, 3], dtype=[torch.float32, torch.bfloat16])
def test_heads_in_the_order_of_files(tmp_path: Path, form: Form, size: int, dtype: torch.dtype) -> None:
    """GGUF files of Qwen3.5 have the first value head of each key head first."""
    heads = {"linear_num_key_heads": 3, "linear_key_head_dim": 32, "linear_value_head_dim": 32}
    model = write_family(tmp_path / "model", "qwen3_5", **heads)
    file = export(model, tmp_path / "model.gguf", form).path
    assert_as_alone(file, dtype, size)


@in_turn(STAGED, turn=60, dtype=[torch.float32, torch.bfloat16], sharing=[1, 2])
def test_every_family_in_stages(
    checkpoint: Callable[[str], Path], name: str, dtype: torch.dtype, sharing: int
) -> None:
    """The ranks of the first stage end with what one rank has, though all passes are under way at once."""
    path = checkpoint(name)

    def work(group: Group) -> list[Tensor]:
        runner = tapped_runner(path, dtype, group)
        made, found = batches(recurrent=runner.recurrent), list[Tensor]()
        for first in range(0, len(made), 2):  # as many as there are stages
            some = made[first : first + 2]
            for batch in some:
                runner.start(batch)
            for _ in some if group.pipeline.first else ():
                hidden = runner.finish()
                found += [hidden, runner.tapped, runner.logits(hidden, range(len(hidden))).clone()]
        return found

    alone, expected = tapped_runner(path, dtype, ALONE), list[Tensor]()
    for batch in batches(recurrent=alone.recurrent):
        hidden = alone.forward(batch)
        expected += [x.clone() for x in (hidden, alone.tapped, alone.logits(hidden, range(len(hidden))))]
    for rank, found in enumerate(in_stages(2, sharing, work)[:sharing]):
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), f"rank {rank}, result {i}"


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_heads_that_do_not_divide(tmp_path: Path, size: int) -> None:
    """Nine query heads on three key heads, as SmolLM2 has them, and widths that are no multiples of anything."""
    shape = {"hidden_size": 72, "intermediate_size": 101, "num_attention_heads": 9, "num_key_value_heads": 3}
    path = write_llama(tmp_path, dtype=torch.bfloat16, **shape, head_dim=8, tie_word_embeddings=True)
    assert_as_alone(path, torch.bfloat16, size)


@crossed(kind=["Q8_0", "Q4_K", "Q5_1", "Q6_K", "IQ4_NL", "F16"], size=[2, 3], tied=[False, True])
def test_quantised_weights(tmp_path: Path, kind: str, size: int, tied: bool) -> None:
    """Blocks of inputs are never cut: an embedding of one block of 256 lies on one rank."""
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
    file = write_gguf(write_llama(tmp_path / "model", **shape, tie_word_embeddings=tied), tmp_path / "m.gguf", kind)
    assert_as_alone(file, torch.float32, size)


@pytest.mark.parametrize("storage", ["int8", "int4"])
def test_weights_quantised_when_read(tmp_path: Path, storage: Storage) -> None:
    path = write_llama(tmp_path, hidden_size=64, intermediate_size=96, tie_word_embeddings=True)
    assert_as_alone(path, torch.float32, 3, storage)


def test_the_slow_twins(tmp_path: Path) -> None:
    assert_as_alone(write_llama(tmp_path), torch.float32, 2, kernels="reference")


def test_both_ends_whole(checkpoint: Callable[[str], Path]) -> None:
    """What proposers on rank 0 borrow is what all ranks have together."""
    for name in ("qwen3", "gemma2", "opt", "llama-biases"):
        config, kernels = describe_model(str(checkpoint(name))), select_kernels()
        whole = load_model(config, torch.float32, 128, kernels)
        hidden = torch.randn(3, config.hidden_size)
        assert torch.equal(
            load_embed_and_lm_head(config, torch.float32, kernels).logits(hidden), whole.logits(hidden)
        )


def test_models_of_another_library_stay_whole(tmp_path: Path) -> None:
    path = write_family(tmp_path, next(iter(OTHERS)))
    with pytest.raises(
        ConfigError, match=r"tensor_parallel_size=2 is not supported for .*, which a class of transformers"
    ):
        check_ranks(describe_model(str(path)), 2)
