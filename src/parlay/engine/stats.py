"""Counters of an engine's life."""

from collections import Counter
from dataclasses import dataclass, field

from parlay.types.plan import StepTimes


@dataclass(slots=True)
class EngineStats:
    """Sums over all steps since start or the last `reset`; times in seconds.

    Attributes:
        steps: target forward passes.
        emitted: tokens emitted.
        forward: flattening and the target's forward pass, logits included.
        verify: drawing the target's choices, walking the drafts, moving keys and values.
        propose: a device proposer's work, its forward passes included.
        schedule: planning, host proposers and committing.
    """

    steps: int = 0
    emitted: int = 0
    forward: float = 0.0
    verify: float = 0.0
    propose: float = 0.0
    schedule: float = 0.0

    def add(self, times: StepTimes, total: float, emitted: int) -> None:
        """Count one step that took `total` seconds."""
        self.steps += 1
        self.emitted += emitted
        self.forward += times.forward
        self.verify += times.verify
        self.propose += times.propose
        self.schedule += total - times.forward - times.verify - times.propose

    def reset(self) -> None:
        """Start counting anew."""
        self.__init__()  # type: ignore[misc]


@dataclass(slots=True)
class Tally:
    """What the scheduler counts over all requests since start; see `EngineSnapshot` for the meanings.

    Attributes:
        host_seconds: spent in a proposer on the host.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    looked_up_tokens: int = 0
    preemptions: int = 0
    drafts: int = 0
    undrafted: int = 0
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    per_position: Counter[int] = field(default_factory=Counter)
    host_seconds: float = 0.0
