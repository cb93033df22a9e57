"""What proposers have in common that draft token by token with a whole model."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from parlay.models.config import ModelConfig
from parlay.models.context import CacheLayers
from parlay.models.select import load_model, records_logits
from parlay.proposers.base import Runtime, TargetInfo
from parlay.proposers.device_verdict import Shift
from parlay.proposers.draft_head import Start
from parlay.proposers.draft_recurrent_states import DRAFT_PLACES, DraftRecurrentStates
from parlay.proposers.draft_slots import DraftSlots
from parlay.proposers.expander import MOST_LEVELS, Expander
from parlay.proposers.expanding_head import ExpandingHead
from parlay.proposers.shared_passes import shared
from parlay.proposers.target_layers import output_layer
from parlay.proposers.vocabulary import ids_of
from parlay.runner.batch import Batch
from parlay.runner.graphs import MOST_ROWS
from parlay.runner.runner import ModelRunner
from parlay.types.cache import NO_CAPACITY, StateCapacity
from parlay.types.plan import StateUse


class ModelHead(ExpandingHead):
    """A head that is a model, of which ranks may share every layer; each keeps the keys of its own heads.

    The passes of a model with recurrent layers differ with the nodes above, so they are not recorded with the rest of
    a level; the runner still records them by their number of rows.
    """

    @abstractmethod
    def base(self, start: Start) -> StateUse:
        """Return the state of recurrent layers that a request's draft continues from: its `source` and `accepted`."""

    def load_model(
        self,
        config: ModelConfig,
        cache: int | CacheLayers,
        target: TargetInfo,
        runtime: Runtime,
        room: StateCapacity = NO_CAPACITY,
        *,
        newest: bool = False,
        ids: Tensor | None = None,
        to_own: Tensor | None = None,
    ) -> None:
        """Read the weights and allocate what passes write to.

        Args:
            config: config of the model.
            cache: number of blocks of its cache layers, or another model's layers.
            target: the target to draft for.
            runtime: what the proposer may use.
            room: capacity for states of its recurrent layers; the last `DRAFT_PLACES` places are for drafts.
            newest: whether the first level has rows too, see `DraftSlots`.
            ids: token ids of a model with another vocabulary, see `DraftHead`.
            to_own: int64 `[n]`, that model's own tokens by these ids.
        """
        kernels, group, dtype = runtime.kernels, runtime.group, target.dtype
        self._kernels = kernels
        model = load_model(config, dtype, target.max_model_len, kernels, group, runtime.on_read)
        self._runner = runner = ModelRunner(model, kernels, cache, runtime.block_size, group, room=room)
        self._logits, self.recordable = output_layer(model, MOST_ROWS), records_logits(model)
        self._recorded, self.broadcast = group.size == 1, runtime.broadcast
        if group.rank:  # only rank 0 drafts
            return
        vocab_size = target.config.vocab_size
        self.ids = self._all = ids_of(config.vocab_size, vocab_size) if ids is None else kernels.to_device(ids)
        self._state = torch.zeros((MOST_ROWS, config.hidden_size), dtype=dtype)
        self._every = torch.arange(MOST_ROWS)
        self._states = DraftRecurrentStates(room.places - DRAFT_PLACES, newest=newest) if runner.recurrent else None
        records = self._recorded and self._states is None and runner.recordable()
        self._expander = Expander(self, runtime, MOST_LEVELS, vocab_size, records=records)
        self._to_own = None if to_own is None else _words(kernels.to_device(to_own))
        self._tokens = self._expander.tokens if to_own is None else torch.zeros_like(self._expander.tokens)
        self._uploads, sizes = runtime.uploads, (runtime.num_blocks, runtime.block_size)
        self._slots = DraftSlots(self._tokens, *sizes, runtime.uploads, newest=newest)

    def embeddable(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return tokens of the target's with another in place of each one that the model lacks."""
        if self._all is None:
            return tokens
        most = len(self._all) - 1
        return tuple(min(token, most) for token in tokens)

    def readable(self, tokens: Tensor) -> Tensor:  # noqa: D102
        return tokens if self._all is None else tokens.clamp(max=len(self._all) - 1)

    @shared
    def run(self, batch: Batch) -> Tensor:
        """Run any tokens through the layers; return hidden states `[rows, hidden]`, valid until the next pass."""
        return self._runner.forward(batch)

    def run_level(self, level: int, rows: int, width: int) -> None:
        """Run a level's nodes, and keep their states."""
        if self._to_own is not None:
            drafted, own = self._expander.tokens[level, :rows], self._tokens[level, :rows]
            self._runner.kernels.embed(self._to_own, drafted, _words(own))
        batch = self._slots.batch(level, rows, width)
        if self._states is not None:
            path = self._slots.nodes(level, rows) if width > 1 else None
            view = self._states.view(level, rows, path)
            states = self.run(replace(self.read_by(batch, self._runner.block_size, recorded=False), states=view))
        else:
            states = self._run_here(self.read_by(batch, self._runner.block_size, recorded=self._recorded))
        self._runner.kernels.embed(states, self._every[:rows], self._state[:rows])

    @shared
    def _run_here(self, batch: Batch) -> Tensor:
        return self._runner.forward_inline(batch)

    def paths(self, level: int, rows: int) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # noqa: D102
        return self._slots.paths(level, rows)

    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        return self._own_logits(self._state[:rows])

    @shared
    def _own_logits(self, states: Tensor) -> Tensor:
        return self._logits(states)

    def place(self, starts: Sequence[Start], width: int = 1) -> None:  # noqa: D102
        self._slots.prepare(starts, width)
        if self._states is not None:
            self._states.prepare([self.base(start) for start in starts], width)

    def shift(self, shift: Shift) -> None:  # noqa: D102
        self._slots.shift(shift)


def _words(tokens: Tensor) -> Tensor:
    """Return int64 `[n]` as `[n, 2]` of a type that kernels copy rows of, on the same memory."""
    return tokens.view(torch.float32).view(-1, 2)
