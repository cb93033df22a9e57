"""What a policy learns from how long a step took."""

from math import expm1

from parlay.drafting.policy import Policy
from parlay.drafting.state import StepDrafts
from parlay.types.plan import Plan, StepOutput


def learn_times(policy: Policy, step: StepDrafts, plan: Plan, output: StepOutput, seconds: float) -> None:
    """Learn how long a step took, `seconds` in all, and what drafts of host proposers have saved."""
    if step.gained:  # by the mean of all requests that `goodput.choose` uses
        mean = step.gained / step.emitting
        policy.host_budget.gain(step.plain * (expm1(mean) if step.fair else mean))
    if not step.timed:
        return
    rows = keys = behind = count = length = again = 0
    alone = True  # where the target ran a prompt, or rows once more, a device proposer did more than draft
    for span, proposal in zip(plan.spans, output.proposals, strict=True):
        ask = span.catch_up
        rows += len(span.tokens) + len(span.draft.tokens) + len(ask.rerun)
        keys += span.end
        again += len(ask.rerun)
        alone = alone and len(span.tokens) == 1
        if ask.follow:
            behind += max(span.start - ask.state.computed - ask.state.speculated - 1, 0) + len(span.tokens) - 1
        if proposal.draft.tokens:
            # Its time depends on levels: of a tree these are its passes, for any number of nodes.
            count, length = count + 1, max(length, ask.budget)
    own, typical = output.times.propose, output.times.typical
    policy.timed(rows, keys, seconds - own - step.asking, output.times, drafted=step.drafted)
    if policy.device_length is not None and not again and (behind or (count and alone)):
        policy.device_length.timed(length, count, own, behind, typical=typical)
