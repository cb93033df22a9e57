"""A benchmark's row for one method: the sums over its completions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from parlay.engine.stats import EngineStats, Reliability
from parlay.types.output import CompletionOutput, RequestMetrics
from parlay.types.stats import summed

_GRAM = 8
_BINS = ("judged", "expected", "accepted")


@dataclass
class Tally:
    """One method's completions in all repetitions of a case, and what its engines counted meanwhile.

    Attributes:
        tokens: tokens of each completion.
        metrics: metrics of each completion.
        after_first: seconds per token after the first, by repetition; None where no completion had a second one.
        stats: what each engine counted from its warm-up to its end.
    """

    tokens: list[tuple[int, ...]] = field(default_factory=list)
    metrics: list[RequestMetrics] = field(default_factory=list)
    after_first: list[float | None] = field(default_factory=list)
    stats: list[EngineStats] = field(default_factory=list)

    def add(self, outputs: Sequence[CompletionOutput]) -> None:
        """Count the completions of a repetition."""
        own = [o.metrics for o in outputs]
        later = sum(m.emitted - 1 for m in own)
        self.after_first.append(sum(m.finished - m.first_token for m in own) / later if later else None)
        self.tokens += [o.token_ids for o in outputs]
        self.metrics += own

    def after_first_ratios(self, plain: "Tally") -> list[float]:
        """Return how many times as fast as plain decoding tokens after the first came, by repetition that had any."""
        pairs = zip(plain.after_first, self.after_first, strict=True)
        return [p / own for p, own in pairs if p is not None and own is not None]

    def row(self, seconds: Sequence[float], plain: "Tally") -> dict[str, Any]:
        """Return what is reported besides ratios.

        Args:
            seconds: seconds that the method took, by repetition.
            plain: plain decoding's tally, for the same prompts.
        """
        metrics = self.metrics
        emitted, drafted = sum(m.emitted for m in metrics), sum(m.drafted for m in metrics)
        steps = sum(one.steps for one in self.stats)
        after = [(m.finished - m.first_token) / (m.emitted - 1) for m in metrics if m.emitted > 1]
        return {
            "tokens_per_s": emitted / sum(seconds),
            "ms_per_token": 1e3 * median(after) if after else None,
            "acceptance_length": emitted / sum(m.steps for m in metrics),
            "acceptance_rate": sum(m.accepted for m in metrics) / drafted if drafted else None,
            "accepted_per_position": summed([m.accepted_per_position for m in metrics]),
            "calibration": calibration([one.reliability for one in self.stats]),
            "drafts": sum(m.drafts for m in metrics),
            "same_tokens": self.tokens == plain.tokens,
            "repeated_8_grams": repeated_share(self.tokens),
            "step_ms": {
                "forward": 1e3 * sum(one.forward for one in self.stats) / steps,
                "propose": 1e3 * sum(one.propose for one in self.stats) / steps,
                "outside": 1e3 * sum(one.verify + one.schedule for one in self.stats) / steps,
            },
        }


def calibration(parts: Sequence[Reliability]) -> dict[str, Any] | None:
    """Return how well the probabilities of draft tokens predicted their acceptance; None if none was judged."""
    found = Reliability(
        *([sum(own) for own in zip(*(getattr(one, name) for one in parts), strict=True)] for name in _BINS)
    )
    nodes = sum(found.judged)
    if not nodes:
        return None
    return {
        "nodes": nodes,
        "expected": sum(found.expected) / nodes,
        "accepted": sum(found.accepted) / nodes,
        "error": found.error,
    }


def repeated_share(outputs: Iterable[Sequence[int]]) -> float:
    """Return the share of 8-grams that occurred before in the same output: a model that loops flatters proposers."""
    total = repeated = 0
    for tokens in outputs:
        grams = [tuple(tokens[i : i + _GRAM]) for i in range(len(tokens) - _GRAM + 1)]
        total += len(grams)
        repeated += len(grams) - len(set(grams))
    return repeated / total if total else 0.0
