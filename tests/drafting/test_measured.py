"""What a step tells of costs."""

from parlay.drafting.measured import measured
from parlay.types.draft import NO_DRAFT, ROOT, Draft
from parlay.types.params import SamplingParams
from parlay.types.plan import CatchUp, Plan, Proposal, Span, StepOutput, StepTimes, Verdict


def span(tokens: int = 1, **more: int) -> Span:
    draft = Draft.chain((1, 2), "guess")
    return Span(
        0, tuple(range(tokens)), 7, (), 0, SamplingParams(), draft=draft, sample=True, catch_up=CatchUp(**more)
    )


def told(spans: tuple[Span, ...], *drafts: Draft) -> tuple[int, int, float, list[int], float, int]:
    proposals = tuple(Proposal(draft) for draft in drafts)
    verdicts = tuple(Verdict((0,), ()) for _ in spans)
    return measured(Plan(1, spans), StepOutput(1, verdicts, proposals, StepTimes(propose=0.25)), 1.0)


def test_drafting_goes_by_levels() -> None:
    """Passes of the proposer: a tree of two levels takes two, however many nodes it has."""
    tree = Draft((5, 6, 7, 8, 9), (ROOT, ROOT, 0, 0, 1), ("guess",) * 5)
    chain = Draft.chain((5, 6, 7), "guess")
    found = told((span(budget=2, width=4, nodes=16), span(budget=3), span(budget=3)), tree, chain, NO_DRAFT)
    assert found == (9, 24, 0.75, [2, 3, 0], 0.25, 0)


def test_a_step_with_a_prompt_tells_nothing_of_drafting() -> None:
    assert told((span(tokens=5, budget=3),), Draft.chain((5, 6, 7), "guess"))[3] == []
