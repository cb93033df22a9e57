"""Steps of a replay: what their cost depends on, and their results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.replays.costs import Costs, LookUps
from parlay.types.plan import Plan, Proposal, Verdict

_NONE = LookUps()


@dataclass(frozen=True, slots=True)
class Step:
    """A step's results, and what its cost depends on.

    Attributes:
        rows: that the target ran, drafts included.
        prompt: those of them of prompts.
        keys: that the known tokens read.
        turns: requests that emitted.
        asked: drafts that each proposer on the host was asked for, by its name.
        shown: tokens that these were then given.
        longest: of the drafts that a proposer with weights then made; 0 for none.
        drafting: requests that these were for.
        behind: their tokens that it had not processed while it was off, and that the target runs once more for it.
        drafted: nodes verified.
        emitted: tokens that count.
    """

    rows: int
    prompt: int
    keys: int
    turns: int
    asked: tuple[tuple[str, int], ...]
    shown: int
    longest: int
    drafting: int
    behind: int
    drafted: int
    emitted: int

    def seconds(self, costs: Costs) -> float:
        """Return the time of the step without a device proposer's part."""
        seconds = costs.seconds(self.rows) + costs.key * self.keys + costs.step + costs.turn * self.turns
        for name, count in self.asked:
            taken = costs.look_ups.get(name, _NONE)
            seconds += taken.asked * count + taken.shown * self.shown
        return seconds

    def drafting_seconds(self, costs: Costs, method: str) -> float:
        """Return the time of a device proposer's part."""
        share = costs.drafting.get(method, costs.otherwise)
        if not self.longest:
            return 0.0  # what follows the text holds it meanwhile
        follow = share.always * costs.seconds(self.drafting + self.behind)
        return follow + (share.begin + share.token * self.longest) * costs.seconds(self.drafting)

    def prompt_seconds(self, costs: Costs) -> float:
        """Return what prompts add to the step."""
        if not self.prompt:
            return 0.0
        rest = self.rows - self.prompt
        if rest:
            return costs.seconds(self.rows) - costs.seconds(rest)
        return self.seconds(costs)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a replay.

    Attributes:
        steps: in order.
        seconds: of each, without the part of prompts.
    """

    steps: tuple[Step, ...]
    seconds: tuple[float, ...]

    @property
    def tokens_per_second(self) -> float:
        """Tokens after each answer's first, for each virtual second."""
        return sum(step.emitted for step in self.steps) / sum(self.seconds)

    @property
    def mean_length(self) -> float:
        """Nodes verified for each time that a request emitted."""
        return sum(step.drafted for step in self.steps) / max(sum(step.turns for step in self.steps), 1)

    @property
    def drafted_share(self) -> float:
        """Share of the steps that verified any."""
        return sum(step.drafted > 0 for step in self.steps) / max(len(self.steps), 1)

    def after(self, step: int) -> "Outcome":
        """Return what came of the steps from one on."""
        return Outcome(self.steps[step:], self.seconds[step:])


def step_of(plan: Plan, verdicts: Sequence[Verdict], proposals: Sequence[Proposal], asked: Mapping[str, int]) -> Step:
    """Return what of a step counts; see `Step` for `asked`."""
    prompt = {span.request_id for span in plan.spans if len(span.tokens) > 1 or not span.sample}
    lengths = [len(proposal.draft) for proposal in proposals if len(proposal.draft)]
    emitted: Mapping[int, int] = {
        span.request_id: len(verdict.tokens) for span, verdict in zip(plan.spans, verdicts, strict=True)
    }
    return Step(
        rows=sum(len(span.tokens) + len(span.draft) + len(span.catch_up.rerun) for span in plan.spans),
        prompt=sum(len(span.tokens) + len(span.draft) for span in plan.spans if span.request_id in prompt),
        keys=sum(span.end for span in plan.spans),
        turns=sum(span.sample for span in plan.spans),
        asked=tuple(asked.items()),
        shown=sum(len(verdict.tokens) for verdict in verdicts),
        longest=max(lengths, default=0),
        drafting=len(lengths),
        behind=sum(len(span.catch_up.rerun) for span in plan.spans if span.catch_up.follow),
        drafted=sum(len(span.draft) for span in plan.spans),
        emitted=sum(count for request, count in emitted.items() if request not in prompt),
    )
