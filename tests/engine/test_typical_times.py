"""Which steps tell what steps usually cost: those some time after drafts, which evict weights from the caches."""

from itertools import pairwise
from typing import Any

import pytest
from asking import Ask, run
from conftest import MakeLLM, Pair, proposer_options

from parlay.drafting import device_drafts
from parlay.drafting.device_length import DeviceLength
from parlay.drafting.policy import PlainStepSchedule, Policy
from parlay.types.params import SamplingParams


@pytest.mark.parametrize("verified", [True, False])
def test_steps_know_how_long_ago_the_proposer_ran(
    make_llm: MakeLLM, models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, verified: bool
) -> None:
    steps = [0]

    def sometimes(self: DeviceLength, most: int, *of: Any, **more: Any) -> int:
        steps[0] += 1
        return min(most, int(steps[0] % 4 == 0))

    monkeypatch.setattr(DeviceLength, "choose", sometimes)
    monkeypatch.setattr(device_drafts, "TRIAL_INTERVAL", 1)  # so that lengths are chosen in every step
    monkeypatch.setattr(PlainStepSchedule, "step", lambda self, **of: None)
    monkeypatch.setattr(Policy, "may_draft", True)
    monkeypatch.setattr(
        Policy, "choose", lambda self, chances, *of, **more: [[0] if verified else [] for _ in chances]
    )
    options = proposer_options("draft_model", models["float32"])
    llm = make_llm(speculative_config={"method": "draft_model", "lengths": "goodput", "tree": "off", **options})
    worker, seen = llm.engine._worker, list[tuple[bool, bool, int]]()
    finish = worker.finish

    def watched() -> Any:
        plan = worker.oldest
        assert plan is not None
        output = finish()
        drafted = any(proposal.draft.tokens for proposal in output.proposals)
        assert output.times.typical or len(seen) < 12  # until every pass is recorded
        seen.append((any(span.draft.tokens for span in plan.spans), drafted, output.times.idle_steps))
        return output

    monkeypatch.setattr(worker, "finish", watched)
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    run(llm, [Ask((5, 6, 7), params)])
    later = list(pairwise(seen[12:]))
    assert any(drafted for (_, drafted, _), _ in later)
    for (_, drafted, before), (verifies, _, idle_steps) in later:
        assert verifies == (drafted and verified)
        assert idle_steps == (0 if drafted else before + 1)
