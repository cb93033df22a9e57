"""Models of families with recurrent layers, all of whose layers are attention: nothing waits for room for states."""

from pathlib import Path

import pytest
from families import reference, write_family

from parlay import LLM, SamplingParams
from parlay.models.select import describe_model

LAYERS = 2


@pytest.mark.parametrize("name", ["lfm2", "lfm2moe", "qwen3_5", "qwen3next"])
def test_it_serves_and_drafts_as_any_other(tmp_path: Path, name: str) -> None:
    path = write_family(tmp_path / name, name, num_hidden_layers=LAYERS, layer_types=["full_attention"] * LAYERS)
    assert not describe_model(path).recurrent
    prompt = [7, 11, 13, 7, 11]
    wanted = [*prompt]
    for _ in range(6):
        wanted.append(int(reference(path, wanted)[-1].argmax()))
    for method in ("none", "ngram"):
        llm = LLM(path, dtype="float32", max_model_len=64, speculative_config={"method": method})
        (answer,) = llm.generate(
            [{"prompt_token_ids": prompt}], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        )
        assert [*prompt, *answer.outputs[0].token_ids] == wanted
