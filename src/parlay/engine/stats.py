"""Counters of an engine's life."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from parlay.types.plan import StepTimes


@dataclass(slots=True)
class MethodStats:
    """What the nodes that one source guessed came to.

    Attributes:
        drafts: drafts with at least one node of its.
        drafted: nodes verified.
        accepted: nodes confirmed.
        per_position: how often a node at depth 0, 1, ... was confirmed.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    per_position: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class Reliability:
    """Whether nodes are accepted as often as their probabilities say, in ten bins of probability.

    Attributes:
        judged: verified nodes whose parent was accepted, a bin.
        expected: the sum of their probabilities.
        accepted: how many of them were confirmed.
    """

    judged: list[int] = field(default_factory=lambda: [0] * 10)
    expected: list[float] = field(default_factory=lambda: [0.0] * 10)
    accepted: list[int] = field(default_factory=lambda: [0] * 10)

    def add(self, prob: float, accepted: bool) -> None:
        """Count one node."""
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
class EngineStats:
    """Sums over all steps since start or the last `reset`; times in seconds.

    Attributes:
        steps: target forward passes.
        emitted: tokens emitted.
        forward: flattening and the target's forward pass, logits included.
        verify: drawing the target's choices, walking the drafts, moving keys and values.
        propose: a proposer's work, its forward passes included.
        schedule: planning and committing.
        turns: times that a request emitted in a step.
        undrafted: those of them without a draft, by why there was none; `parlay.drafting.state` has the reasons.
        lengths: nodes verified at once, by how often.
        faults: requests that a proposer has failed, by its name.
        methods: by who guessed the nodes.
        reliability: of the nodes' probabilities.
        preemptions: times that a request lost its blocks.
        prompt_tokens: of the requests that were admitted, each counted once.
        cached_tokens: those of them found in the prefix cache.
        finished: requests, by why they ended.
    """

    steps: int = 0
    emitted: int = 0
    forward: float = 0.0
    verify: float = 0.0
    propose: float = 0.0
    schedule: float = 0.0
    turns: int = 0
    undrafted: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    methods: dict[str, MethodStats] = field(default_factory=dict)
    reliability: Reliability = field(default_factory=Reliability)
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)

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
        judged: Iterable[tuple[float, bool]] = (),
        why: str = "",
    ) -> None:
        """Count one request's turn.

        Args:
            sources: who guessed each node of its draft.
            path: its confirmed nodes, root to leaf.
            judged: of the nodes that the target judged, their probabilities and whether they were accepted.
            why: there was no draft, if there was none.
        """
        self.turns += 1
        for prob, accepted in judged:
            self.reliability.add(prob, accepted)
        if not sources:
            self.undrafted[why] += 1
            return
        self.lengths[len(sources)] += 1
        everybody = set(sources)
        for source in everybody:
            method = self.methods.get(source) or self.methods.setdefault(source, MethodStats())
            depths: Sequence[int] = range(len(path))
            if len(everybody) > 1:
                depths = [depth for depth, node in enumerate(path) if sources[node] == source]
            method.drafts += 1
            method.drafted += sources.count(source)
            method.accepted += len(depths)
            method.per_position.update(depths)

    def reset(self) -> None:
        """Start counting anew."""
        self.__init__()  # type: ignore[misc]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSnapshot:
    """`MethodStats` at one moment, with `accepted_per_position` as a tuple that begins at depth 0."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSnapshot:
    """An engine at one moment: what `EngineStats` counts since the engine's start, and how full it is.

    Attributes:
        running, waiting: requests that have blocks, and those that have none yet.
        blocks, blocks_used: of the cache; used are those that running requests hold.
    """

    steps: int = 0
    emitted: int = 0
    forward: float = 0.0
    verify: float = 0.0
    propose: float = 0.0
    schedule: float = 0.0
    turns: int = 0
    undrafted: dict[str, int] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    methods: dict[str, MethodSnapshot] = field(default_factory=dict)
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    running: int = 0
    waiting: int = 0
    blocks: int = 0
    blocks_used: int = 0

    @classmethod
    def of(cls, stats: EngineStats, *, running: int, waiting: int, blocks: int, blocks_used: int) -> "StatsSnapshot":
        """Return what `stats` counts now, as plain data that no longer changes."""
        apart = ("methods", "reliability")
        counts = {name: getattr(stats, name) for name in EngineStats.__slots__ if name not in apart}
        counts |= {name: dict(value) for name, value in counts.items() if isinstance(value, Counter)}
        methods = {
            name: MethodSnapshot(
                drafts=m.drafts,
                drafted=m.drafted,
                accepted=m.accepted,
                accepted_per_position=tuple(m.per_position[i] for i in range(max(m.per_position, default=-1) + 1)),
            )
            for name, m in stats.methods.items()
        }
        return cls(
            **counts,
            methods=methods,
            running=running,
            waiting=waiting,
            blocks=blocks,
            blocks_used=blocks_used,
        )
