"""Block drafters with gradients: a whole block of tokens is learnt in one pass, behind rows of the text.

Source: DFlash (Chen et al. 2026, arXiv 2602.06036). Blocks begin at random rows of a text, as drafts begin anywhere.
A block's rows see what the head makes of the target's states before it, and each other: the first has the text's
token, the others a mask, and each of these learns the token in its place. Of a draft the first tokens count most, so
the loss of later ones weighs less.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from parlay.errors import ConfigError
from parlay.models.config import ModelConfig
from parlay.proposers.block_files import CONTEXT_NORM, FUSE, KNOWN, NORM, OFFSETS, OUTPUT, OWN_MASK
from parlay.runner.graphs import MOST_ROWS
from parlay.train.data import Text, commonest
from parlay.train.layers import LayerWeights, apply_rotary, frequencies, layer_config, norm, random
from parlay.train.rollout import check_exposed, side_by_side
from parlay.train.teacher import TargetOutput, Teacher, TeacherBatch
from parlay.train.trainee import DraftStep, Trainee

_STEEP = 2.0  # the last token of a block weighs e^-2 of the first, about as in the paper
_USUAL = 5  # of the target's states, as in the paper


@dataclass(frozen=True, slots=True)
class BlockOptions:
    """Training options of a block drafter.

    Attributes:
        block_size: rows of a block, one more than the tokens that it drafts.
        num_layers: decoder layers of the head.
        anchors: at how many places of each text, chosen anew in every step, a block begins.
        intermediate_size: width within the layers' feed-forward networks; 0 takes the target's.
        draft_vocab_size: give the head an output layer of its own with so many of the commonest tokens of the
            training text; 0 uses the target's.
        layers: after how many of the target's layers the head reads its states, ascending; none takes five, evenly
            spread.
    """

    block_size: int = 8
    num_layers: int = 2
    anchors: int = 32
    intermediate_size: int = 0
    draft_vocab_size: int = 0
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, least, most in (
            ("block_size", 2, MOST_ROWS),
            ("num_layers", 1, 64),
            ("anchors", 1, 1 << 20),
            ("intermediate_size", 0, 1 << 20),
            ("draft_vocab_size", 0, 1 << 31),
        ):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be between {least} and {most}, not {getattr(self, name)}")
        if sorted(set(self.layers)) != list(self.layers):
            raise ConfigError(f"layers must be numbers, each above the one before, not {list(self.layers)}")


@dataclass(frozen=True, slots=True)
class BlockPlaces:
    """Where the blocks of some texts begin.

    Attributes:
        rows: `[blocks]`, the last row of the batch that each block sees; its first token is the next row's.
        places: `[texts, longest]`, the rows of every text.
        chosen: `[texts, n]`, the blocks of every text.
        real: `[texts, n]`, which of these are some.
        last: `[texts, n]`, the last place of the text that each of them sees.
    """

    rows: Tensor
    places: Tensor
    chosen: Tensor
    real: Tensor
    last: Tensor

    @classmethod
    def at(cls, rows: Tensor, text: Tensor) -> "BlockPlaces":
        """Return blocks behind ascending rows `[blocks]` of a batch, given `[rows]`, which text each row is of."""
        places, _ = side_by_side(torch.bincount(text))
        chosen, real = side_by_side(torch.bincount(text[rows], minlength=len(places)))
        return cls(rows, places, chosen, real, torch.where(real, rows[chosen] - places[:, :1], 0))


class TrainedBlockLayer(LayerWeights):
    """A layer whose rows see the contexts before their block, and all of the block; queries and keys are normed."""

    def __init__(self, width: int, inner: int, heads: tuple[int, int, int], layers: int) -> None:
        super().__init__(width, width, inner, heads, (2 * layers) ** -0.5)
        self.input_layernorm = nn.Parameter(torch.ones(width))
        self.q_norm, self.k_norm = (nn.Parameter(torch.ones(heads[2])) for _ in range(2))

    def forward(self, state: Tensor, contexts: Tensor, blocks: BlockPlaces) -> Tensor:
        """Return the states `[texts, n, block, width]` of blocks after this layer.

        Args:
            state: states before the layer.
            contexts: `[texts, longest, width]`, of the texts' rows.
            blocks: where blocks begin.
        """
        each = torch.arange(state.shape[2], device=state.device)
        own = (blocks.last[..., None] + 1 + each)[:, :, None]
        x, every = norm(state, self.input_layernorm), torch.arange(contexts.shape[1], device=state.device)
        query = self._rotated(x, self.q_proj, self.q_norm, own)
        keys = (
            self._rotated(contexts, self.k_proj, self.k_norm, every),
            self._rotated(x, self.k_proj, self.k_norm, own),
        )
        values = self.heads(contexts, self.v_proj), self.heads(x, self.v_proj)
        return self.after(state, self._attend(query, keys, values, every > blocks.last[..., None]))

    def _rotated(self, x: Tensor, weight: Tensor, scale: Tensor, places: Tensor) -> Tensor:
        angles = places[..., None] * frequencies(self._size).to(places.device)
        return apply_rotary(norm(self.heads(x, weight), scale), angles.cos(), angles.sin())

    def _attend(
        self, query: Tensor, keys: tuple[Tensor, Tensor], values: tuple[Tensor, Tensor], hidden: Tensor
    ) -> Tensor:
        """Return attention's output `[texts, n, heads, block, head_dim]`.

        Args:
            query: queries of blocks, `[texts, n, heads, block, head_dim]`.
            keys, values: those of contexts, `[texts, groups, longest, head_dim]`, and of blocks, as `query` with
                groups.
            hidden: `[texts, n, longest]`, the contexts that a block does not see.
        """
        texts, count, heads, block, size = query.shape
        groups, longest = keys[0].shape[1], keys[0].shape[2]
        grouped = (query * size**-0.5).view(texts, count, groups, -1, block, size)
        each = grouped.flatten(3, 4)  # `[texts, n, groups, heads of a group and rows, head_dim]`
        whole = each.transpose(1, 2).flatten(2, 3)
        before = (whole @ keys[0].transpose(-1, -2)).float().view(texts, groups, count, -1, longest)
        before = before.masked_fill(hidden[:, None, :, None], -torch.inf).transpose(1, 2)
        within = (each @ keys[1].transpose(-1, -2)).float()
        likeness = torch.cat([before, within], -1).softmax(-1)
        seen = likeness[..., :longest].transpose(1, 2).flatten(2, 3) @ values[0].float()
        out = seen.view(texts, groups, count, -1, size).transpose(1, 2) + likeness[..., longest:] @ values[1].float()
        return out.reshape(texts, count, heads, block, size)


class BlockTrainee(Trainee):
    """A head of such layers.

    A subclass names it in `export`.
    """

    def __init__(self, options: BlockOptions, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        self.config = config = teacher.config
        self.block, self.depth, self._anchors = options.block_size, options.block_size - 1, options.anchors
        self.decay = exp(-_STEEP / self.block)
        self.taps = options.layers or _usual(config.num_layers)
        teacher.tap(self.taps)
        self._embedding, self._target = teacher.embedding(), teacher.output()
        width, self._inner = config.hidden_size, options.intermediate_size or config.intermediate_size
        self._heads = config.num_heads, config.num_kv_heads, config.head_dim
        self.mask = nn.Parameter(torch.randn(width) * self._embedding.std().cpu())
        self.fc = random(width, len(self.taps) * width)
        self.hidden_norm, self.norm = (nn.Parameter(torch.ones(width)) for _ in range(2))
        self.layers = nn.ModuleList(
            TrainedBlockLayer(width, self._inner, self._heads, options.num_layers) for _ in range(options.num_layers)
        )
        self._ids: Tensor | None = None
        self.head: nn.Parameter | None = None
        if options.draft_vocab_size:
            self._ids = commonest(texts, config.vocab_size, options.draft_vocab_size)
            teacher.restrict_vocabulary(self._ids)
            self.head = nn.Parameter(self._target.weight.float().cpu()[self._ids].clone())

    @classmethod
    def check(cls, options: Any, target: ModelConfig) -> None:  # noqa: D102
        check_exposed(target)
        if options.draft_vocab_size > target.vocab_size:
            raise ConfigError(
                f"draft_vocab_size={options.draft_vocab_size} is beyond the target's {target.vocab_size} tokens; "
                "lower it"
            )
        layers = options.layers or _usual(target.num_layers)
        if not 1 <= layers[0] <= layers[-1] <= target.num_layers:
            raise ConfigError(f"layers={list(layers)}, but the target has {target.num_layers} layers; give others")

    @property
    def output(self) -> TargetOutput:
        """The output layer."""
        if self.head is None or self._ids is None:
            return self._target
        return TargetOutput(self.head, ids=self._ids.to(self.head.device))

    def draft(self, batch: TeacherBatch) -> Iterator[DraftStep]:  # noqa: D102
        levels = [batch.starts(2 + i) for i in range(self.depth)]
        begins = torch.zeros(len(batch.text), dtype=torch.bool, device=batch.text.device)
        begins[torch.cat(levels)] = True
        blocks = BlockPlaces.at(self._sample_rows(begins.nonzero()[:, 0], batch.text), batch.text)
        if not len(blocks.rows):
            return
        states = self._states(batch, blocks)
        for i, level in enumerate(levels):
            learnt = torch.isin(blocks.rows, level)
            rows = blocks.rows[learnt]
            yield self.score(states[learnt, 1 + i], batch.tokens[rows + 1 + i], rows + 1 + i)

    def score(self, states: Tensor, before: Tensor, labels: Tensor) -> DraftStep:
        """Return a node of rows.

        Args:
            states: normed, `[n, width]`.
            before: `[n]`, the tokens before it.
            labels: labels of the rows, see `DraftStep`.
        """
        return DraftStep(states, self.output, labels)

    def _sample_rows(self, rows: Tensor, text: Tensor) -> Tensor:
        """Return at most `anchors` of each text's rows: at random to learn from, evenly spread to be measured."""
        own = text[rows]
        counts = torch.bincount(own, minlength=1)
        rank = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[own]
        if not torch.is_grad_enabled():
            share, count = self._anchors, counts[own]
            return rows[(rank + 1) * share // count > rank * share // count]
        shuffled = torch.rand(len(rows)).argsort().to(rows.device)
        order = shuffled[own[shuffled].argsort(stable=True)]
        return rows[order[rank < self._anchors]].sort().values

    def _states(self, batch: TeacherBatch, blocks: BlockPlaces) -> Tensor:
        """Return the normed states `[blocks, block, width]`."""
        contexts = norm(linear(torch.cat(batch.tapped, -1), self.fc), self.hidden_norm)[blocks.places]
        first = embedding(batch.tokens[blocks.rows + 1], self._embedding)[blocks.chosen]
        masks = self.mask.expand(*first.shape[:2], self.depth, -1)
        state = torch.cat([first[:, :, None], masks], 2)
        for layer in self.layers:
            state = layer(state, contexts, blocks)
        return norm(state[blocks.real], self.norm)

    def extra_files(self) -> dict[str, dict[str, Any]]:  # noqa: D102
        return {OWN_MASK: {"embedding": self.mask, "mask_token_id": self._mask_token}}

    @property
    def _mask_token(self) -> int:
        """The token that stands in masks' places, whose own embedding is not read."""
        return self.config.vocab_size - 1

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what all such heads have in their public format, but for their names."""
        config, style = self.config, self.config.style
        tensors: dict[str, Tensor] = {FUSE: self.fc, CONTEXT_NORM: self.hidden_norm, NORM: self.norm}
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, TrainedBlockLayer)
            tensors |= layer.tensors(f"layers.{i}.")
        inner: dict[str, Any] = {
            "mask_token_id": self._mask_token,
            "target_layer_ids": [tap - 1 for tap in self.taps],
        }
        made = layer_config(
            config, layers=len(self.layers), width=config.hidden_size, inner=self._inner, heads=self._heads
        )
        made |= {"model_type": "qwen3", "block_size": self.block, "tie_word_embeddings": False}
        if self.head is not None and self._ids is not None:
            tensors |= {OUTPUT: self.head, OFFSETS: self._ids - torch.arange(len(self._ids))}
            tensors[KNOWN] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, self._ids, True)
            made["draft_vocab_size"] = len(self._ids)
        else:
            inner |= {"output_multiplier": 1 / style.logit_divisor} if style.logit_divisor != 1 else {}
            inner |= {"final_logit_softcapping": style.logit_cap} if style.logit_cap else {}
        return {**made, "dflash_config": inner}, tensors


def _usual(depth: int) -> tuple[int, ...]:
    """Return five states evenly spread between the target's second and third last, or of few layers' all."""
    first, last = (2, depth - 2) if depth > 6 else (1, depth)
    count = min(_USUAL, last - first + 1)
    return tuple(first + round(i * (last - first) / max(count - 1, 1)) for i in range(count))
