"""What a step tells about the cost of steps."""

from parlay.types.plan import Plan, Span, StepOutput


def measured(plan: Plan, output: StepOutput, seconds: float) -> tuple[int, int, float, list[int], float, int]:
    """Return the arguments of `Controller.timed` for a step that took `seconds` in all."""
    rows = keys = behind = 0
    steady = True  # where the target ran a prompt, or rows once more, the proposer did more than draft
    for span in plan.spans:
        again = len(span.catch_up.rerun)
        rows += len(span.tokens) + len(span.draft.tokens) + again
        keys += span.end
        steady = steady and len(span.tokens) == 1 and not again
        if span.catch_up.follow:
            behind += _behind(span)
    # Its time depends on levels: of a tree these are passes of the proposer, for any number of nodes.
    made = zip(plan.spans, output.proposals, strict=False)  # a simulated step may have no proposals
    lengths = [span.catch_up.budget if proposal.draft.tokens else 0 for span, proposal in made] if steady else []
    drafting = output.times.propose
    return rows, keys, seconds - drafting, lengths, drafting, behind


def _behind(span: Span) -> int:
    """Return how many tokens a device proposer has to process before those of the step, beyond the usual one."""
    state = span.catch_up.state
    return state.held or max(span.start - state.computed - state.speculated - 1, 0)
