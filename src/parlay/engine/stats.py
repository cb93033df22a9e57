"""Counters of an engine's life."""

from dataclasses import dataclass

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
