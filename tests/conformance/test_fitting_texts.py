"""Proposers that guess from tokens alone, on the texts that suit them."""

import pytest
from conftest import drafts
from fitting import fitting

from parlay import LLM, SamplingParams
from parlay.proposers.base import HostProposer
from parlay.proposers.select import proposers

HOSTS = [n for n in proposers.names() if drafts(n) and issubclass(proposers.load(n).Proposer, HostProposer)]


@pytest.mark.parametrize("method", HOSTS)
def test_guesses_are_right_and_change_nothing(method: str) -> None:
    text = getattr(fitting(method), "TEXT", None)
    assert text, (
        f"give tests/proposers/methods/{method}/fitting_{method}.py a TEXT after which some of its guesses are right"
    )
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    llm = LLM("tiny-code", speculative_config={"method": method, "lengths": "fixed"})
    (found,) = llm.generate(text, params)
    (expected,) = LLM("tiny-code", speculative_config=None).generate(text, params)
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    assert found.outputs[0].metrics.accepted > 0
