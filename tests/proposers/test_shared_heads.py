"""Heads whose layers several ranks share: the bits of one rank for any shape, and each rank's share of the memory."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import pytest
import torch
from blocks import block_config, markov_tensors, random_block, walk_tensors
from checkpoints import write_llama
from crossing import crossed
from eagles import eagle_config, random_eagle, random_eagle3, write
from heads import mlp_config, random_medusa, random_mlp, write_head, write_medusa
from ranks import together
from torch import Tensor

from parlay import SamplingParams
from parlay.config import SpeculativeConfig
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.parallel.group import ALONE, Group
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.draft_head import DraftHead
from parlay.proposers.select import make_proposer
from parlay.proposers.shared_passes import follow
from parlay.runner.orders import Array, Call, decode, encode, no_broadcast
from parlay.types.plan import CatchUp, Span, Verdict

SIZE, BLOCKS, ROWS = 4, 40, 90
_LAYERS = ("parlay.models", "parlay.kernels", "parlay.proposers.head_layers", "parlay.proposers.block_layers")
Links = dict[int, "Queue[bytes]"]


class Found(NamedTuple):
    """What a rank has.

    Attributes:
        drafts: of each request; none on ranks but the first.
        scores: logits of each level, likewise.
        weights, keys: bytes of its layers, and of its cache.
    """

    drafts: list[Any]
    scores: list[Tensor]
    weights: int
    keys: int


def write_variant(path: Path, method: str, own: bool) -> Path:
    """Write a random head, with as much of its `own` as there may be, or as little."""
    if method == "medusa":
        return write_medusa(path, random_medusa(outputs=own, layers=2))
    if method == "mlp_speculator":
        config = mlp_config(tie_weights=not own, inner_dim=64)
        return write_head(path, config, random_mlp(config))
    if method == "dflash":
        raw = block_config(block_size=8 if own else 32, num_key_value_heads=2)
        tensors = random_block(raw, bias=own)
        if own:
            made = torch.randn((2, 257, 64), generator=torch.Generator().manual_seed(9))
            tensors["embed_tokens.weight"], tensors["lm_head.weight"] = made
        return write_head(path, raw, tensors)
    if method in ("dspark", "dflash2"):
        raw = block_config(block_size=8, markov_rank=8, num_key_value_heads=2)
        raw["architectures"] = ["DSparkDraftModel" if method == "dspark" else "DFlash2DraftModel"]
        raw["dflash_config"] |= {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 9}
        more = markov_tensors("gated", 64, 8, 257, 257) if method == "dspark" else walk_tensors(64, 257)
        raw["markov_head_type"] = "gated"
        tensors = {**random_block(raw, bias=own), **more}
        if own:
            tensors["lm_head.weight"] = torch.randn((257, 64), generator=torch.Generator().manual_seed(9))
        return write_head(path, raw, tensors)
    raw = eagle_config(num_hidden_layers=2 if method == "eagle" and own else 1)
    tensors = random_eagle(raw, bias=own, embedding=own) if method == "eagle" else random_eagle3(raw)
    if method == "peagle":
        raw |= {"architectures": ["PEagleSpeculator"], "mask_token_id": 250}
        tensors["mask_hidden"] = torch.randn((1, 1, 192), generator=torch.Generator().manual_seed(4))
    if method in ("eagle3", "peagle"):
        raw["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
        if own:
            tensors["embed_tokens.weight"] = torch.randn((257, 64), generator=torch.Generator().manual_seed(9))
        else:
            del tensors["lm_head.weight"]
    return write(path, raw, tensors)


def spans(width: int) -> list[Span]:
    """Prompts of two requests, of which one has more rows than a recorded pass, and what they may draft."""
    more: dict[str, Any] = {"width": width, "nodes": 8} if width > 1 else {}
    made, row = [], 0
    for i, length in enumerate((ROWS - 7, 7)):
        tokens = tuple((7 * j + i) % 256 for j in range(length))
        blocks = tuple(range(12 * i, 12 * i + 12)) if i else tuple(range(12, 39))
        ask = CatchUp(unseen=tokens, budget=3 - i, follow=True, **more)
        params = SamplingParams(temperature=0.9 * i).draw
        made.append(Span(i, tokens, 0, blocks, i, params, sample=True, remaining=9, catch_up=ask))
        row += length
    return made


def draft(group: Group, links: Links, target: Path, method: str, options: dict[str, Any], dtype: str) -> Found:
    """Be a rank: draft twice, a chain and a tree, or make the calls of the one that does."""
    config, kernels = describe_model(str(target)), select_kernels()
    info = TargetInfo(config, getattr(torch, dtype), 128, ranks=group.size)
    config_of_head = SpeculativeConfig(method=method, options={**options, "draft_tensor_parallel_size": group.size})
    head = make_proposer(config_of_head, info)
    assert isinstance(head, DraftHead)

    def broadcast(order: Any) -> AbstractContextManager[None]:
        for link in links.values():
            link.put(encode(order))
        return nullcontext()

    lender = load_model(config, info.dtype, 128, kernels)
    announced = broadcast if group.size > 1 and group.rank == 0 else no_broadcast
    head.load(Runtime(kernels, BLOCKS, SIZE, 200, lender, (), group=group, broadcast=announced))
    drafts, scores = [], []
    if group.rank:
        while data := links[group.rank].get(timeout=60):
            order = decode(data)
            assert isinstance(order, Call)
            follow(head, order)
    else:
        score = head.score

        def noted(level: int, rows: int) -> Tensor:
            scores.append(score(level, rows).clone())
            return scores[-1]

        head.score = noted  # type: ignore[method-assign]
        generator = torch.Generator().manual_seed(5)
        hidden, *tapped = torch.randn((4, ROWS, 64), generator=generator).to(info.dtype)
        for width in (1, 3):
            found = head.propose(spans(width), [Verdict((9,)), Verdict((10,))], hidden, torch.stack(tapped))
            drafts += [proposal.draft for proposal in found]
        for link in links.values():
            link.put(b"")
    caches = getattr(head, "_layer_caches", ())
    return Found(drafts, scores, sum(_matrices(head)), sum(t.nbytes for layer in caches for t in layer))


def _matrices(value: Any) -> Iterator[int]:
    """Yield the bytes of each matrix of the layers that a head holds itself."""
    seen: set[int] = set()

    def walk(value: Any, within: bool) -> Iterator[int]:
        if isinstance(value, Tensor):
            if within and value.ndim > 1 and value.data_ptr() not in seen:
                seen.add(value.data_ptr())
                yield value.nbytes
            return
        if isinstance(value, list | tuple):
            for one in value:
                yield from walk(one, within)
            return
        module = type(value).__module__
        own = within or module.startswith(_LAYERS)
        if not (own or module.startswith("parlay.proposers.methods")):
            return
        names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
        for name in names:
            if name not in ("_kernels", "_cos_sin", "_group", "_target", "_expander"):
                yield from walk(getattr(value, name), own or type(value).__name__ == "_Stage")

    return walk(value, False)


METHODS = ("dflash", "dspark", "dflash2", "peagle", "eagle", "eagle3", "medusa", "mlp_speculator")
# With layers of its own or the target's; the latter in another order, so that a method meets two of all else.
HEADS = [*((method, True) for method in METHODS), *((method, False) for method in METHODS[3:] + METHODS[:3])]


@crossed(head=HEADS, size=(2, 3), dtype=("bfloat16", "float32"), quantization=(None, "int8"))
def test_the_bits_of_one_rank(
    tmp_path: Path, head: tuple[str, bool], size: int, dtype: str, quantization: str | None
) -> None:
    method, own = head
    target = write_llama(tmp_path / "target", seed=1)
    options = {"model": str(write_variant(tmp_path / "head", method, own)), "quantization": quantization}
    alone = draft(ALONE, {}, target, method, options, dtype)
    links: Links = {rank: Queue() for rank in range(1, size)}
    ranks = together(size, lambda group: draft(group, links, target, method, options, dtype))
    assert [len(one.tokens) for one in alone.drafts] == [3, 2, 8, 8]
    assert ranks[0].drafts == alone.drafts
    assert len(ranks[0].scores) == len(alone.scores)
    for ours, theirs in zip(ranks[0].scores, alone.scores, strict=True):
        assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))
    assert alone.weights > 0
    assert sum(rank.keys for rank in ranks) == alone.keys
    assert max(rank.weights for rank in ranks) < 0.7 * alone.weights  # shares of 64 outputs are filled up to panels


def test_memory_of_ranks_on_several_machines(tmp_path: Path) -> None:
    options = {"model": str(write_variant(tmp_path / "head", "medusa", own=True))}
    config = describe_model(str(write_llama(tmp_path / "target")))
    whole, shared = (
        make_proposer(
            SpeculativeConfig(method="medusa", options={**options, "draft_tensor_parallel_size": size}),
            TargetInfo(config, torch.float32, 128, ranks=4),
        )
        for size in (1, 2)
    )
    assert whole.bytes_on(1) == whole.bytes_on(4) == shared.bytes_on(1) == whole.weight_bytes
    assert shared.bytes_on(2) == shared.bytes_on(4) == whole.weight_bytes // 2


@pytest.mark.parametrize("name", ["load", "propose", "_expander", "__init__", "nothing"])
def test_only_shared_passes_can_be_called(tmp_path: Path, name: str) -> None:
    head = write_variant(tmp_path / "head", "medusa", own=True)
    config = SpeculativeConfig(method="medusa", options={"model": str(head)})
    info = TargetInfo(describe_model(str(write_llama(tmp_path / "target"))), torch.float32, 128)
    proposer: Any = make_proposer(config, info)
    with pytest.raises(ValueError, match=r"no pass .* that ranks share"):
        follow(proposer, Call(name, ()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(3, 5), (1, 4), (2, 3, 4), (7,)])
def test_arguments_travel_whole(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).mul(100).to(dtype)
    order = decode(encode(Call.of("pass", (3, values, values.transpose(0, -1)))))
    assert isinstance(order, Call)
    number, same, turned = order.arguments
    assert (order.name, number) == ("pass", 3)
    assert isinstance(same, Tensor)
    assert isinstance(turned, Tensor)
    assert same.dtype == dtype
    assert torch.equal(same, values)
    assert torch.equal(turned, values.transpose(0, -1))
    assert isinstance(order.given[1], Array)
