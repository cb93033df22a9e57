"""An engine's counters as `LLM.get_metrics` gives them: names and classes are vLLM's."""

from collections.abc import Callable
from dataclasses import dataclass, field

from parlay.types.stats import Stats, StatsSnapshot

# By name: what is counted, and where that is read; a server has these too, and others.
COUNTERS: dict[str, tuple[str, Callable[[Stats], int | list[int]]]] = {
    "vllm:prompt_tokens": ("Tokens of admitted prompts.", lambda now: now.prompt_tokens),
    "vllm:generation_tokens": ("Tokens emitted.", lambda now: now.emitted),
    "vllm:num_preemptions": (
        "Requests that lost their cache blocks and were computed again.",
        lambda now: now.preemptions,
    ),
    "vllm:spec_decode_num_drafts": ("Steps of requests that verified a draft.", lambda now: now.draft_stats.drafts),
    "vllm:spec_decode_num_draft_tokens": ("Draft tokens verified.", lambda now: now.draft_stats.drafted),
    "vllm:spec_decode_num_accepted_tokens": ("Draft tokens accepted.", lambda now: now.draft_stats.accepted),
    "vllm:spec_decode_num_accepted_tokens_per_pos": (
        "Draft tokens accepted, by position.",
        lambda now: now.draft_stats.accepted_per_position,
    ),
}
GAUGES: dict[str, tuple[str, Callable[[StatsSnapshot], float]]] = {
    "vllm:num_requests_running": ("Requests that hold cache blocks.", lambda now: now.running),
    "vllm:num_requests_waiting": ("Requests that wait for cache blocks.", lambda now: now.waiting),
    "vllm:kv_cache_usage_perc": (
        "Share of the cache blocks that requests hold, 0 to 1.",
        lambda now: now.blocks_used / max(now.blocks, 1),
    ),
    "parlay:state_usage_perc": (
        "Share of the states of recurrent layers that requests hold, 0 to 1; 0 for a model without such layers.",
        lambda now: now.slots_used / max(now.slots, 1),
    ),
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure.

    Attributes:
        name: vLLM's, where the meaning is the same.
        labels: labels of the metric; none so far.
    """

    name: str
    labels: dict[str, str] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """A value that only grows.

    Attributes:
        value: since the engine's start.
    """

    value: int


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """A value that rises and falls.

    Attributes:
        value: the present value.
    """

    value: float


@dataclass(frozen=True, slots=True)
class Vector(Metric):
    """Counters of one kind, by position.

    Attributes:
        values: since the engine's start.
    """

    values: list[int]


def metrics_of(stats: StatsSnapshot) -> list[Metric]:
    """Return a snapshot as metrics; those of speculation count all methods together."""
    counted = {name: read(stats) for name, (_, read) in COUNTERS.items()}
    counts = [Vector(name, one) if isinstance(one, list) else Counter(name, one) for name, one in counted.items()]
    return [*counts, *(Gauge(name, read(stats)) for name, (_, read) in GAUGES.items())]
