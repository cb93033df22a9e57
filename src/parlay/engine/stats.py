"""Counters of an engine's life."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from parlay.types.plan import StepTimes
from parlay.types.stats import DraftStats, Stats


@dataclass(slots=True)
class Reliability:
    """Whether nodes are accepted as often as their probabilities say, in ten bins of probability.

    Attributes:
        judged: number of verified nodes whose parent was accepted, per bin.
        expected: the sum of their probabilities, per bin.
        accepted: number of them that were accepted, per bin.
    """

    judged: list[int] = field(default_factory=lambda: [0] * 10)
    expected: list[float] = field(default_factory=lambda: [0.0] * 10)
    accepted: list[int] = field(default_factory=lambda: [0] * 10)

    def judge(self, nodes: Iterable[tuple[float, bool]]) -> None:
        """Count nodes: the probability of each, and whether it was accepted."""
        for prob, accepted in nodes:
            place = min(int(prob * 10), 9)
            self.judged[place] += 1
            self.expected[place] += prob
            self.accepted[place] += accepted

    @property
    def error(self) -> float:
        """The expected calibration error: by how much a bin's mean probability misses its nodes' share accepted.

        (Naeini, Cooper, Hauskrecht 2015; the mean over all nodes, 0 without any.)
        """
        gaps = sum(abs(p - n) for p, n in zip(self.expected, self.accepted, strict=True))
        return gaps / max(sum(self.judged), 1)


@dataclass(slots=True)
class EngineStats(Stats):
    """What an engine counts since start or the last `reset`.

    Attributes:
        reliability: how well the nodes' probabilities predict their acceptance.
    """

    reliability: Reliability = field(default_factory=Reliability)

    def add(self, times: StepTimes, total: float, emitted: int, drafting: float = 0.0) -> None:
        """Count one step that took `total` seconds, `drafting` of them in a host proposer."""
        self.steps += 1
        self.emitted += emitted
        self.forward += times.forward
        self.verify += times.verify
        self.propose += times.propose + drafting
        self.schedule += total - times.forward - times.verify - times.propose - drafting

    def judge(
        self,
        sources: Sequence[str],
        path: Sequence[int],
        why: str = "",
        *,
        unfollowed: bool = False,
    ) -> None:
        """Count one request's turn.

        Args:
            sources: name of each node's proposer.
            path: the accepted nodes, from root to leaf.
            why: the reason why there was no draft, if there was none.
            unfollowed: whether the last accepted node ended the request.
        """
        self.turns += 1
        if not sources:
            self.undrafted[why] += 1
            return
        self.lengths[len(sources)] += 1
        everybody = set(sources)
        for source in everybody:
            depths: Sequence[int] = range(len(path))
            if len(everybody) > 1:
                depths = [depth for depth, node in enumerate(path) if sources[node] == source]
            last = unfollowed and sources[path[-1]] == source
            self.methods.setdefault(source, DraftStats()).add(sources.count(source), depths, unfollowed=last)

    def reset(self) -> None:
        """Reset all counters."""
        self.__init__()  # type: ignore[misc]
