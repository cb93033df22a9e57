"""What block drafters share: a whole block of tokens is drafted in one pass over the newest token and masks.

Idea: DFlash (Chen et al. 2026, arXiv 2602.06036). Such a head reads states of the target after several of its layers,
side by side. What it makes of them is the context: keys and values of each of its layers, which lie in the head's
slots as those of pairs do (`feature_head`). A block is the newest token and masks behind it; its rows see the context
and each other, and each mask's row predicts the token that stands in its place.

A block always has as many rows as it had in training: what a row predicts depends on the others, so that a short
draft is the beginning of a long one. Blocks of several requests run together, as many as recorded passes have rows.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from parlay.checkpoints.files import class_names
from parlay.checkpoints.loader import Checkpoint, TensorReader
from parlay.errors import ModelError
from parlay.models.config import MOST_LAYERS, ModelConfig
from parlay.models.context import ForwardContext
from parlay.models.heads import layer_config
from parlay.models.layers import OutputLayer, SplitLinear
from parlay.models.rotary import layer_tables
from parlay.models.select import describe_layers
from parlay.models.tensor_shapes import attention_shapes, mlp_shapes, norm_names
from parlay.proposers.base import Runtime
from parlay.proposers.block_config import BlockConfig, check_taps, read_block_config
from parlay.proposers.block_files import (
    CONTEXT_NORM,
    EMBEDDING,
    FUSE,
    KNOWN,
    NORM,
    OFFSETS,
    OUTPUT,
    OWN_MASK,
    SINKS,
    other_names,
    read_mask,
)
from parlay.proposers.block_layers import BlockLayer, LayerWrapper, NoWrapper
from parlay.proposers.block_slots import BlockSlots
from parlay.proposers.device_verdict import Shift
from parlay.proposers.draft_head import DraftHead, Start
from parlay.proposers.feature_head import FeatureHead
from parlay.proposers.head_layers import side_by_side
from parlay.proposers.shared_passes import shared
from parlay.proposers.target_layers import rescaled_output
from parlay.proposers.vocabulary import checked_ids, fitted, ids_of
from parlay.runner.batch import Batch
from parlay.runner.graphs import MOST_ROWS
from parlay.types.progress import OnRead, ignore


class BlockHead(FeatureHead):
    """A proposer with such a head.

    A subclass scores the rows of a block that predict tokens. `describe` is done here; `extra_shapes` adds tensors.

    Attributes:
        blocks: the head's config.
        first_predicts: whether the first row of a block predicts a token, where a config does not say.
        logit_rows: most rows of logits at a time.
        columns: number of logits per row.
        plain: names of matrices that are read as plain numbers, whatever the others are stored as.
        families: model family, and keys that a config may have from its target, by the class names of checkpoints
            whose layers are not Qwen3's.
    """

    uses_embed_or_lm_head = True
    in_one_pass = True
    first_predicts: ClassVar[bool] = False
    logit_rows: ClassVar[int] = MOST_ROWS
    plain: ClassVar[tuple[str, ...]] = ()
    families: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = {}
    blocks: BlockConfig

    # ------------------------------------------------------------------------------------------------------ reading

    def open(self, on_read: OnRead = ignore) -> Checkpoint:  # noqa: D102
        names = other_names(self.head.path, self.head.count("num_hidden_layers", MOST_LAYERS))
        return Checkpoint(self.head.path, head=True, storage=self._storage, on_read=on_read, renamed=names)

    def describe(self, weights: Checkpoint) -> None:  # noqa: D102
        head, target = self.head, self._target
        self.blocks = blocks = read_block_config(head, anchored=self.first_predicts)
        config = self._layer_config(weights)
        sinks = (f"layers.0.{SINKS}" in weights.names,) * config.num_layers
        self.config = replace(config, style=replace(config.style, interleaved=blocks.interleaved, sinks=sinks))
        self.taps = blocks.taps
        check_taps(head, self.taps, target.config)
        inner = self._inner_width(weights)
        head.check_target(target.config, hidden=inner, vocab=config.vocab_size)
        self.default_length, self.max_depth = blocks.length, blocks.drafted
        self.max_draft_tokens, self.rows = blocks.drafted, blocks.block
        shapes = {**self._shapes(weights), **self.extra_shapes(weights)}
        weights.expect(shapes, (".rotary_emb.inv_freq", KNOWN))
        read = {name: shape for name, shape in shapes.items() if name != OFFSETS}
        self.weight_bytes = weights.size(read, target.dtype, self.plain) + (self.logit_rows * 4 + 8) * self._vocab

    def _layer_config(self, weights: Checkpoint) -> ModelConfig:
        """Return the shape and style of its layers, which are all alike."""
        names = [name.lower() for name in class_names(self.head.raw)]
        family = next((own for name, own in self.families.items() if name in names), None)
        if family is None:
            return layer_config(self.head, self.blocks.layers, "layers.0.", weights.names)
        name, keys = family
        found = describe_layers(name, self.head.path, {**self.blocks.layers, **keys})
        if len({*found.style.heads}) > 1 or found.style.experts or found.style.layer_inputs:
            raise ModelError(
                f"{self.head.file} describes layers of several kinds, with experts or with inputs of their own, with "
                "which no draft head is supported; take another head"
            )
        return found

    def _inner_width(self, weights: Checkpoint) -> int:
        """Return the width of the states that the head reads, from its tensors where its config does not have it."""
        inner, count = self._target.config.hidden_size, len(self.taps)
        fused = weights.shape(FUSE) if FUSE in weights.names else ()
        if len(fused) == 2 and fused[1] % count == 0:
            inner = fused[1] // count
        return self.blocks.settings.count("target_hidden_size", inner)

    def _shapes(self, weights: Checkpoint) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors that every such head has, and note which there are."""
        config, target, names, width = self.config, self._target.config, weights.names, self.config.hidden_size
        self._vocab = self.blocks.settings.count("draft_vocab_size", config.vocab_size)
        shapes: dict[str, tuple[int, ...]] = {
            FUSE: (width, len(self.taps) * target.hidden_size),
            CONTEXT_NORM: (width,),
            NORM: (width,),
        }
        if self.needs_embedding(weights):
            self.head.check_target(target, hidden=width)
        else:
            shapes[EMBEDDING] = (config.vocab_size, width)
        reduced = self._vocab != config.vocab_size
        self._own_output = OUTPUT in names or reduced or width != target.hidden_size
        if self._own_output:
            shapes[OUTPUT] = (self._vocab, width)
        self._mapped = OFFSETS in names or reduced
        if self._mapped:
            shapes[OFFSETS] = (self._vocab,)
        for i in range(config.num_layers):
            own = {**attention_shapes(config, i), **mlp_shapes(config, i)}
            own |= {f"{name}.weight": (width,) for name in norm_names(config)}
            if config.style.layer_scalars:
                own["layer_scalar"] = (1,)
            if config.style.sinks[i]:
                own[SINKS] = own.pop("self_attn.sinks")
            shapes |= {f"layers.{i}.{name}": shape for name, shape in own.items()}
        return shapes

    def extra_shapes(self, weights: Checkpoint) -> dict[str, tuple[int, ...]]:
        """Return the shapes of tensors that only this kind of head has.

        Raises:
            ModelError: keys of the config are missing or hold what is not supported.
        """
        return {}

    def wrappers(self, weights: Checkpoint, layer: int, runtime: Runtime) -> tuple[LayerWrapper, LayerWrapper]:
        """Return the wrappers of attention and the feed-forward network of a layer."""
        return NoWrapper(), NoWrapper()

    def read(self, weights: Checkpoint, runtime: Runtime) -> None:  # noqa: D102
        dtype, kernels, group, config = self._target.dtype, runtime.kernels, runtime.group, self.config
        self._embedding = self.read_embedding(weights, runtime)
        self._mask = self._read_mask(weights)
        self._fuse = SplitLinear(kernels, weights.read_weight(FUSE, dtype), group)
        self._context_norm, self._norm = weights.read(CONTEXT_NORM, dtype), weights.read(NORM, dtype)
        cos_sin = layer_tables(config, self._target.max_model_len)[0][0]
        scale = self.blocks.value_scale
        own = float(torch.tensor(config.style.embedding_scale, dtype=dtype))
        self._embedding_scale = self.blocks.embedding_scale * own
        self._layers = []
        for i in range(config.num_layers):
            read = TensorReader(weights, dtype, f"layers.{i}.", {"self_attn.sinks": SINKS})
            wrappers = self.wrappers(weights, i, runtime)
            self._layers.append(BlockLayer(config, read, kernels, group, cos_sin, scale, wrappers))
        multiplier, cap = self.blocks.logit_scale, self.blocks.logit_cap
        self._output: OutputLayer | None = None
        if self._own_output:
            output = fitted(weights.read_weight(OUTPUT, dtype), self.columns)
            self._output = OutputLayer(kernels, output, 1 / multiplier, cap, group)
        else:
            self._target_logits = rescaled_output(runtime.target, 1 / multiplier, cap)
        if self._mapped:
            self.ids = self._read_ids(weights)
        elif self._own_output:
            self.ids = ids_of(self._vocab, self._target.config.vocab_size)

    @property
    def columns(self) -> int:
        """How many tokens it has logits for."""
        target = self._target.config
        if self._mapped:
            return self._vocab
        return min(self._vocab, target.vocab_size) if self._own_output else target.tokens

    def _read_ids(self, weights: Checkpoint) -> Tensor:
        ids = weights.read(OFFSETS, torch.int64)
        if self.head.path.is_dir():  # GGUF files have the ids themselves
            ids += torch.arange(self._vocab)
        return checked_ids(ids, self._target.config.vocab_size, f"{self.head.path}: {OFFSETS}")

    def _read_mask(self, weights: Checkpoint) -> Tensor | None:
        """Return the embedding `[d]` of a mask; None where it is that of the mask's token."""
        dtype, mask, tokens = self._target.dtype, self.blocks.mask, self._target.config.tokens
        file = self.head.path / OWN_MASK
        if self.head.path.is_dir() and file.is_file():
            return read_mask(file, mask, self.config.hidden_size).to(dtype)
        if mask < tokens:
            return None
        if EMBEDDING in weights.names and mask < weights.shape(EMBEDDING)[0]:
            return weights.read(EMBEDDING, dtype)[mask].clone()
        raise ModelError(
            f"{self.head.path}: the mask token {mask} is beyond the target's {tokens} tokens, and {OWN_MASK} is "
            "missing; the head was made for another target"
        )

    def load(self, runtime: Runtime) -> None:  # noqa: D102
        super().load(runtime)
        block, patterns, longest = self.blocks.block, self.blocks.patterns, self._target.max_model_len
        dtype, width = self._target.dtype, self.config.hidden_size
        self._kinds = list(dict.fromkeys(patterns))
        self._kind_of = [self._kinds.index(pattern) for pattern in patterns]
        self._block_states = torch.zeros((MOST_ROWS, width), dtype=dtype)
        # The embeddings of a block's rows, and behind them what stands for a mask, if that is apart.
        self._entries = torch.zeros((MOST_ROWS + 1, width), dtype=dtype)
        self._order = torch.arange(MOST_ROWS)
        if self._mask is not None:
            self._entries[MOST_ROWS] = self._mask
            self._order[self._order % block != 0] = MOST_ROWS
        if runtime.group.rank:  # only rank 0 drafts
            return
        mask = self.blocks.mask if self._mask is None else 0
        sizes = runtime.num_blocks, runtime.block_size
        self._block_slots = BlockSlots(patterns, block, mask, longest, *sizes, runtime.uploads)

    # ----------------------------------------------------------------------------------------------------- contexts

    def combine_states(self, parts: Tensor, state: Tensor, context: ForwardContext) -> None:
        """Write contexts `[rows, d]` of the target's states."""
        states = context.buffers("states", parts.shape[0] * parts.shape[2])
        side_by_side(parts, context.kernels, states)
        self._fuse(states, state)
        context.kernels.rms_norm(state, self._context_norm, self.config.rms_norm_eps, state)

    def run_pairs(self, tokens: Tensor, state: Tensor, context: ForwardContext) -> None:
        """Store what every layer keeps of contexts, which do not depend on the tokens after them."""
        for i, layer in enumerate(self._layers):
            layer.store_contexts(state, context, context.keys(i))

    # ------------------------------------------------------------------------------------------------------- blocks

    paths = DraftHead.paths  # draft tokens have no keys and values of their own

    def place(self, starts: Sequence[Start], width: int = 1) -> None:  # noqa: D102
        self._block_slots.prepare(starts)

    def shift(self, shift: Shift) -> None:  # noqa: D102
        self._block_slots.shift(shift)

    def begin(self, states: Tensor, rows: Tensor) -> None:
        """Do nothing: blocks read the contexts that were stored."""

    def advance(self, level: int, rows: int, width: int = 1) -> None:
        """Run whole blocks of so many requests at level 0; the others are computed with it."""
        if level:
            return
        batches = [self._block_slots.batch(kind, rows) for kind in self._kinds]
        self._run_blocks(*(self.read_by(one, self._block_size, recorded=self._recorded) for one in batches))

    @shared
    def _run_blocks(self, *batches: Batch) -> None:
        """Run the rows of blocks, given as each kind of layers sees them; their normed states are kept."""
        contexts = [self._context(batch) for batch in batches]
        first, tokens = contexts[0], batches[0].tokens
        kernels, rows, width, eps = first.kernels, len(tokens), self.config.hidden_size, self.config.rms_norm_eps
        residual = first.buffers("residual", width)
        self._embedding(tokens, self._entries[:rows])
        kernels.embed(self._entries, self._order[:rows], residual)
        if self._embedding_scale != 1:
            kernels.scale(residual, self._embedding_scale)
        delta: Tensor | None = None
        for i, (layer, kind) in enumerate(zip(self._layers, self._kind_of, strict=True)):
            delta = layer(residual, delta, contexts[kind], first.keys(i))
        assert delta is not None
        kernels.rms_norm(residual, self._norm, eps, self._block_states[:rows], delta=delta)

    def rows_at(self, places: Tensor) -> Tensor:
        """Return which rows of the blocks predict tokens, given as `DraftHead.score_at` gives them."""
        level, request = places // MOST_ROWS, places % MOST_ROWS
        return request * self.blocks.block + level + (not self.blocks.anchored)

    def logits(self, state: Tensor) -> Tensor:
        """Return float32 logits `[rows, D]` of normed states `[rows, d]` of blocks."""
        return self._target_logits(state) if self._output is None else self._own_logits(state)

    @shared
    def _own_logits(self, state: Tensor) -> Tensor:
        assert self._output is not None
        return self._output(state)

    @abstractmethod
    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        ...
