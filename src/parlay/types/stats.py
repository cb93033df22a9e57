"""An engine's statistics: one definition for counting, sending, summing and showing them."""

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any


@dataclass(slots=True)
class DraftStats:
    """Counts of draft tokens and of their acceptance, for one source or one request.

    Attributes:
        drafts: drafts with at least one node of them.
        drafted: nodes verified.
        accepted: nodes that were accepted.
        accepted_per_position: how often a node at depth 0, 1, ... was accepted.
        unfollowed: drafts whose last accepted node ended the request, so that the target added no bonus token.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    unfollowed: int = 0

    @property
    def saved(self) -> int:
        """Tokens that took no step of their own."""
        return self.accepted - self.unfollowed

    def add(self, nodes: int, depths: Sequence[int], *, unfollowed: bool = False) -> None:
        """Count one draft of `nodes` nodes, of which those at some depths were confirmed."""
        self.drafts += 1
        self.unfollowed += unfollowed
        self.drafted += nodes
        self.accepted += len(depths)
        counts = self.accepted_per_position
        counts.extend([0] * (max(depths, default=-1) + 1 - len(counts)))
        for depth in depths:
            counts[depth] += 1


@dataclass(slots=True)
class Stats:
    """Sums over all steps; times in seconds.

    Attributes:
        steps: target forward passes.
        emitted: tokens emitted.
        forward: flattening and the target's forward pass, logits included.
        verify: drawing the target's choices, walking the drafts, moving keys and values.
        propose: a proposer's work, its forward passes included.
        schedule: planning and committing.
        turns: times that a request emitted in a step.
        undrafted: number of turns without a draft, by reason; `parlay.drafting.state` has the reasons.
        lengths: number of drafts, by how many nodes were verified at once.
        faults: number of times that a proposer has failed a request, by its name.
        methods: statistics of drafts by the proposer that drafted the nodes.
        preemptions: times that a request lost its blocks.
        prompt_tokens: prompt tokens of the requests that were admitted, each request counted once.
        queried_tokens: number of them that were looked for in the prefix cache.
        cached_tokens: number of them that were found there.
        prefilled: rows of prompts that were run through the target, counted with their step; again after preemption.
        finished: number of finished requests, by reason.
    """

    steps: int = 0
    emitted: int = 0
    forward: float = 0.0
    verify: float = 0.0
    propose: float = 0.0
    schedule: float = 0.0
    turns: int = 0
    undrafted: dict[str, int] = field(default_factory=Counter)
    lengths: dict[int, int] = field(default_factory=Counter)
    faults: dict[str, int] = field(default_factory=Counter)
    methods: dict[str, DraftStats] = field(default_factory=dict)
    preemptions: int = 0
    prompt_tokens: int = 0
    queried_tokens: int = 0
    cached_tokens: int = 0
    prefilled: int = 0
    finished: dict[str, int] = field(default_factory=Counter)

    @property
    def draft_stats(self) -> DraftStats:
        """Those of all methods together; a draft that several made counts once."""
        made = self.methods.values()
        return DraftStats(
            drafts=self.turns - sum(self.undrafted.values()),
            drafted=sum(one.drafted for one in made),
            accepted=sum(one.accepted for one in made),
            accepted_per_position=summed(one.accepted_per_position for one in made),
            unfollowed=sum(one.unfollowed for one in made),
        )

    @property
    def guesses(self) -> DraftStats:
        """An older name of `draft_stats`."""
        warnings.warn("guesses is called draft_stats", DeprecationWarning, stacklevel=2)
        return self.draft_stats


@dataclass(slots=True, kw_only=True)
class StatsSnapshot(Stats):
    """An engine at one moment: what it has counted since its start, and how full it is.

    Attributes:
        running, waiting: requests that have blocks, and those that have none yet.
        blocks, blocks_used: number of cache blocks, and of those that running requests hold.
        slots, slots_used: number of slots for recurrent layers' states, and of those that running requests hold.
    """

    running: int = 0
    waiting: int = 0
    blocks: int = 0
    blocks_used: int = 0
    slots: int = 0
    slots_used: int = 0

    @classmethod
    def of(cls, stats: Stats, **full: int) -> "StatsSnapshot":
        """Return what `stats` counts now, as data of its own, and how full the engine is."""
        counts: dict[str, Any] = {f.name: deepcopy(getattr(stats, f.name)) for f in fields(Stats)}
        return cls(**counts | full)


def summed(counts: Iterable[Sequence[int]]) -> list[int]:
    """Return the sums by position of lists of different lengths."""
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]
