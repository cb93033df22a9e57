"""What an engine tells about itself while it runs: plain data, made to travel between processes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """Counters since the engine's start, and its state now.

    A step of a request is one in which the request emits; a forward pass is a step of many requests at once.

    Attributes:
        started: Unix time at which the engine started; counters of another start begin anew.
        method: the proposer that is loaded.
        running: requests that hold cache blocks.
        waiting: requests that wait for them.
        cache_usage: share of the cache blocks that requests hold, 0 to 1.
        forward_passes: of the target.
        prompt_tokens: tokens of admitted prompts, cached ones included.
        cached_tokens: how many of them the prefix cache had.
        looked_up_tokens: how many of them were looked up there.
        emitted: tokens emitted.
        preemptions: how often a request lost its blocks and was computed again.
        drafts: steps of requests that verified a draft.
        undrafted: steps of requests that had none.
        drafted: nodes verified, by who guessed them.
        accepted: nodes confirmed, by who guessed them; each saved a step.
        accepted_per_position: nodes confirmed at depth 1, 2, ...
        draft_seconds: making drafts, on the host or the device.
        forward_seconds: flattening, and the target's forward passes.
        verify_seconds: drawing the target's choices, walking drafts, moving keys and values.
        schedule_seconds: planning and committing.
    """

    started: float
    method: str
    running: int = 0
    waiting: int = 0
    cache_usage: float = 0.0
    forward_passes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    looked_up_tokens: int = 0
    emitted: int = 0
    preemptions: int = 0
    drafts: int = 0
    undrafted: int = 0
    drafted: tuple[tuple[str, int], ...] = ()
    accepted: tuple[tuple[str, int], ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    draft_seconds: float = 0.0
    forward_seconds: float = 0.0
    verify_seconds: float = 0.0
    schedule_seconds: float = 0.0
