"""The target drafts for itself: a copy of it in four bits drafts token by token, in the target's own cache.

For every verified token but the newest the cache holds the target's keys and values. The copy reads them and
continues from there: it writes its keys and values of the newest token and of its nodes to slots that the target's
next pass overwrites. So it has nothing to catch up and needs no cache; nodes on branches lie in scratch slots behind
the pool. Like a draft model it samples with the target's own noise.

Wins where the target's weights take two bytes per number: a step of the copy reads a third of them, and no other
draft agrees with the target as often. Loses when steps are not limited by reading weights, or where look-ups in the
text (`suffix`) are accepted as often for nothing.

Related: QuantSpec (Tiwari et al. 2025, arXiv 2502.10424) and ML-SpecQD (Georganas et al. 2025, arXiv 2503.13565)
draft with a quantised target too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from parlay.errors import ConfigError, ModelError
from parlay.proposers.base import Runtime, Share, TargetInfo
from parlay.proposers.draft_head import DraftWork, Start
from parlay.proposers.draft_recurrent_states import DRAFT_PLACES
from parlay.proposers.expander import MOST_LEVELS
from parlay.proposers.heads import work_from_states
from parlay.proposers.model_head import ModelHead
from parlay.runner.footprint import weight_bytes
from parlay.types.cache import StateCapacity
from parlay.types.plan import Span, StateUse, Verdict

__all__ = ["Options", "Proposer"]


_MOST = 0.8  # largest share of the target's bytes that the copy may take


@dataclass(frozen=True, slots=True)
class Options:
    """No options."""


class Proposer(ModelHead):
    """Drafts with the target's own weights in four bits."""

    source = "self"
    default_length = 5
    uses_target_cache = True

    def __init__(self, options: Options, target: TargetInfo) -> None:
        config, dtype = target.config, target.dtype
        self._target = target
        if config.library_model is not None:
            raise ModelError(
                f"the method 'self' does not support {config.architecture}, which runs in transformers and has no "
                "4-bit form; leave the method out"
            )
        if target.stages > 1:
            raise ConfigError(
                "the method 'self' drafts in the target's own cache, of which pipeline_parallel_size="
                f"{target.stages} leaves each rank some layers; leave one of the two out"
            )
        self._config = replace(config, storage="int4")
        if target.ranks > 1:  # its cache is divided among all of them
            self.share = Share(self.source, {}, target.ranks)
        self.weight_bytes = weight_bytes(self._config, dtype)
        own = weight_bytes(config, dtype)
        if self.weight_bytes > _MOST * own:
            raise ModelError(
                f"the method 'self' drafts with a 4-bit copy, which would gain nothing: it takes "
                f"{self.weight_bytes / 1e6:,.0f} MB where the target {config.path} takes {own / 1e6:,.0f}; leave the "
                "method out"
            )

    def load(self, runtime: Runtime) -> None:
        """Make the copy, and allocate what its passes write to."""
        room = StateCapacity(runtime.room.slots, runtime.room.places + DRAFT_PLACES)
        self.load_model(self._config, runtime.cache, self._target, runtime, room, newest=True)
        self.follows_verdict = not self._config.recurrent

    def base(self, start: Start) -> StateUse:
        """Return the target's own state of the last known token, and the places of the nodes that it has accepted."""
        states = start.span.states
        accepted = tuple(states.places[node] for node in start.path)
        return StateUse(max(states.stores)[1], accepted)

    def plan(self, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> DraftWork:  # noqa: D102
        return work_from_states(spans, verdicts, MOST_LEVELS)

    def begin(self, states: Tensor, rows: Tensor) -> None:
        """Do nothing: the first level runs the newest token."""

    def advance(self, level: int, rows: int, width: int = 1) -> None:  # noqa: D102
        self.run_level(level, rows, width if level else 1)  # the first level runs the newest token, in its own slot
