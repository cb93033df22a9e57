"""Models run over one text in pieces, which must not matter."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from asking import Ask, accepted, assert_same, run
from families import write_family
from torch import Tensor

from parlay import LLM, SamplingParams
from parlay.kernels.base import Kernels
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_as, describe_model, load_model
from parlay.runner.batch import Segment, flatten
from parlay.runner.runner import ModelRunner
from parlay.types.cache import StateCapacity
from parlay.types.plan import StateUse
from parlay.types.storage import Storage

_BLOCKS = tuple(range(7, -1, -1))
_BLOCK_SIZE = 16


LENGTH = 70


def make_runner(
    path: Path,
    dtype: torch.dtype = torch.float32,
    kernels: str | None = None,
    length: int = LENGTH,
    storage: Storage = "stored",
) -> ModelRunner:
    chosen = select_kernels(force=kernels)
    model = load_model(replace(describe_model(str(path)), storage=storage), dtype, length, chosen)
    return ModelRunner(model, chosen, len(_BLOCKS), _BLOCK_SIZE, room=StateCapacity(slots=2))


def logits_in_pieces(runner: ModelRunner, tokens: list[int], cuts: list[int]) -> Tensor:
    """Return the logits of all rows, computed in pieces that end at `cuts`."""
    parts = []
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(tokens)], strict=True)):
        states = StateUse(1 - number % 2 if start else -1, stores=((end - start, number % 2),))
        segment = Segment(tokens[start:end], start, _BLOCKS, states=states)
        hidden = runner.forward(flatten([segment], _BLOCK_SIZE, recurrent=runner.recurrent))
        parts.append(runner.logits(hidden, range(end - start)).clone())
    return torch.cat(parts)


def random_tokens(length: int = LENGTH, seed: int = 0) -> list[int]:
    return torch.randint(0, 257, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


TOKENS = random_tokens(40, seed=5)


def logits_of(
    path: Path, dtype: torch.dtype = torch.float32, storage: Storage = "stored", kernels: Kernels | None = None
) -> Tensor:
    """Return a model's logits after each of `TOKENS`."""
    kernels = kernels or select_kernels()
    runner = ModelRunner(load_model(describe_as(path, storage), dtype, 256, kernels), kernels, 16, 16)
    segment = Segment(TOKENS, 0, tuple(range(16)))
    hidden = runner.forward(flatten([segment], runner.block_size, recurrent=runner.recurrent))
    return runner.logits(hidden, range(len(TOKENS))).clone()


def assert_speculation_changes_no_token(folder: Path, name: str, length: int) -> LLM:
    """Compare ids and logprobs bit by bit: with n-grams, with a draft model, in any company; greedy and not.

    Returns the engine that decodes plainly.
    """
    shape: dict[str, Any] = {"seed": 2, "calm": 0.3}
    target = write_family(folder / "target", name, **shape)
    draft = write_family(folder / "draft", name, noise=0.05, **shape)
    options = {"model": str(target), "max_model_len": 96}
    plain = LLM(**options, enable_prefix_caching=False, speculative_config=None)
    given: dict[str, Any] = {"max_tokens": length, "seed": 7, "logprobs": 2, "ignore_eos": True}
    asks = [
        Ask(tuple(random_tokens(40, seed)[:12]) * (seed + 1), SamplingParams(temperature=t, **given))
        for seed in (0, 2)
        for t in (0.0, 0.8)
    ]
    expected = [completion for ask in asks for completion in run(plain, [ask])]
    assert_same(run(plain, asks), expected)
    for speculative in (
        {"lengths": "fixed", "method": "ngram", "prompt_lookup_min": 1},
        {"lengths": "fixed", "method": "draft_model", "model": str(draft), "num_speculative_tokens": 4},
    ):
        llm = LLM(**options, speculative_config=speculative, max_num_batched_tokens=16)
        assert llm.numerics_id == plain.numerics_id
        found = run(llm, asks)
        assert_same(found, expected)
        assert speculative["method"] == "ngram" or accepted(found) > 0
    return plain
