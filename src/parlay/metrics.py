"""An engine's counters as `LLM.get_metrics` gives them: names and classes are vLLM's."""

from dataclasses import dataclass, field

from parlay.types.stats import StatsSnapshot


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure.

    Attributes:
        name: vLLM's, where the meaning is the same.
        labels: none so far.
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
        value: now.
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
    drafts = stats.draft_stats
    return [
        Counter("vllm:prompt_tokens", stats.prompt_tokens),
        Counter("vllm:generation_tokens", stats.emitted),
        Counter("vllm:num_preemptions", stats.preemptions),
        Counter("vllm:spec_decode_num_drafts", drafts.drafts),
        Counter("vllm:spec_decode_num_draft_tokens", drafts.drafted),
        Counter("vllm:spec_decode_num_accepted_tokens", drafts.accepted),
        Vector("vllm:spec_decode_num_accepted_tokens_per_pos", drafts.accepted_per_position),
        Gauge("vllm:num_requests_running", stats.running),
        Gauge("vllm:num_requests_waiting", stats.waiting),
        Gauge("vllm:kv_cache_usage_perc", stats.blocks_used / max(stats.blocks, 1)),
    ]
