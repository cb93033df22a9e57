"""Methods whose checkpoints come with an embedded target are served by name."""

import pytest

from parlay import LLM, SamplingParams
from parlay.proposers.select import embedded_options, proposers

HEADS = [name for name in proposers.names() if "model" in (embedded_options(name) or {})]
PARAMS = SamplingParams(temperature=0, max_tokens=12)


@pytest.mark.parametrize("method", HEADS)
def test_by_name_alone(method: str) -> None:
    llm = LLM("tiny-code", speculative_config={"method": method, "lengths": "fixed"})
    (output,) = llm.generate("def main():\n    import sys\n", PARAMS)
    assert method in llm.engine.methods
    assert output.outputs[0].metrics.drafted > 0


def test_in_a_list_and_beside_auto() -> None:
    llm = LLM("tiny-code", speculative_config=[{"method": "auto"}, {"method": "eagle3"}])
    assert {"ngram", "suffix", "eagle3"} <= set(llm.engine.methods)
