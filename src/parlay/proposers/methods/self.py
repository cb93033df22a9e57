"""The target drafts for itself: a copy of it in four bits drafts token by token, in the target's own cache.

For every verified token but the newest the cache holds the target's keys and values. The copy reads them and
continues from there: it writes its keys and values of the newest token and of its nodes to slots that the target's
next pass overwrites. So it has nothing to catch up and needs no cache; nodes on branches lie in scratch slots behind
the pool. Like a draft model it samples with the target's own noise.

Wins where the target's weights take two bytes a number: a step of the copy reads a third of them, and no other draft
agrees with the target as often. Loses when steps are not limited by reading weights, or where look-ups in the text
(`suffix`) are accepted as often for nothing.

Related: QuantSpec (Tiwari et al. 2025, arXiv 2502.10424) and ML-SpecQD (Georganas et al. 2025, arXiv 2503.13565)
draft with a quantised target too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from parlay.errors import ConfigError, ModelError
from parlay.models.select import load_model
from parlay.proposers.base import Runtime, Share, TargetInfo
from parlay.proposers.expander import MOST_LEVELS, Expander, Head, Start
from parlay.proposers.heads import starts
from parlay.proposers.lent import lent_logits, records_logits
from parlay.proposers.places import Places
from parlay.proposers.recorder import Recorder
from parlay.runner.footprint import weight_bytes
from parlay.runner.graphs import MOST_ROWS
from parlay.runner.runner import ModelRunner
from parlay.types.plan import NO_PROPOSAL, Proposal, Span, Verdict

__all__ = ["EMBEDDED", "Options", "Proposer"]

EMBEDDED: Mapping[str, Any] = {}

_MOST = 0.8  # of the target's bytes that the copy may take


@dataclass(frozen=True, slots=True)
class Options:
    """No options."""


class Proposer(Head):
    """Drafts with the target's own weights in four bits."""

    source = "self"
    default_length = 5
    borrows = True

    def __init__(self, options: Options, target: TargetInfo) -> None:
        config, dtype = target.config, target.dtype
        self._target = target
        if config.foreign is not None:
            raise ModelError(
                f"the method 'self' does not serve {config.architecture}, which a class of transformers computes and "
                "which has no form of four bits; leave the method out"
            )
        if target.stages > 1:
            raise ConfigError(
                "the method 'self' drafts in the target's own cache, of which pipeline_parallel_size="
                f"{target.stages} leaves each rank some layers; leave one of the two out"
            )
        self._config = replace(config, storage="int4")
        if target.ranks > 1:  # its cache is divided among all of them
            self.share = Share("", None, str(config.path), "int4", target.ranks, copied=True)
        self.weight_bytes = weight_bytes(self._config, dtype)
        own = weight_bytes(config, dtype)
        if self.weight_bytes > _MOST * own:
            raise ModelError(
                f"the method 'self' drafts with a copy in four bits, which would gain nothing: it takes "
                f"{self.weight_bytes / 1e6:,.0f} MB where the target {config.path} takes {own / 1e6:,.0f}; leave the "
                "method out"
            )

    def load(self, runtime: Runtime) -> None:
        """Make the copy, and allocate what its passes write to."""
        kernels, config, group = runtime.kernels, self._config, runtime.group
        model = load_model(config, self._target.dtype, self._target.max_model_len, kernels, group, runtime.on_read)
        self._runner = runner = ModelRunner(model, kernels, runtime.cache, runtime.block_size, group, runtime.tell)
        self._logits, self.recordable = lent_logits(model, MOST_ROWS), records_logits(model)
        self._kernels = kernels
        self._state = torch.zeros((MOST_ROWS, config.hidden_size), dtype=self._target.dtype)
        self._every = torch.arange(MOST_ROWS)
        shared = group.size > 1
        if shared:  # the others are told the nodes of each level
            self._logits, self.recordable = runner.score, False
        recorder = Recorder(kernels, not shared and runner.recordable())
        self._expander = Expander(
            self, kernels, recorder, MOST_LEVELS, config.vocab_size, laws=runtime.laws, processors=runtime.processors
        )
        self._places = Places(self._expander.tokens, runtime.num_blocks, runtime.block_size, newest=True)

    def propose(
        self, spans: Sequence[Span], verdicts: Sequence[Verdict], hidden: Tensor, tapped: Tensor | None = None
    ) -> list[Proposal]:
        """Draft for each request that is to draft."""
        proposals = [NO_PROPOSAL] * len(spans)
        for start, draft in self._expander.expand([*starts(spans, verdicts, MOST_LEVELS)], hidden):
            proposals[start.index] = Proposal(draft, start.span.catch_up.state)
        return proposals

    def begin(self, turn: Sequence[Start], states: Tensor, width: int = 1) -> None:  # noqa: D102
        self._places.prepare(turn, width)

    def paths(self, level: int, rows: int) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # noqa: D102
        return self._places.paths(level, rows)

    def advance(self, level: int, rows: int, width: int = 1) -> None:  # noqa: D102
        # The first level runs the newest token, which has its own slot.
        states = self._runner.forward_here(self._places.batch(level, rows, width if level else 1))
        self._kernels.embed(states, self._every[:rows], self._state[:rows])

    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        return self._logits(self._state[:rows])
