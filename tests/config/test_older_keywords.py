"""The keywords of vLLM 0.6: what they become, what is said about them, whom it blames."""

import warnings
from typing import Any

import pytest
from conftest import MakeLLM, Pair

from parlay import LLM, ConfigError
from parlay.config import SpeculativeConfig, modernise

NGRAM = {"speculative_model": "[ngram]", "num_speculative_tokens": 5, "ngram_prompt_lookup_max": 4}
DRAFT = {
    "speculative_model": "some/draft",
    "num_speculative_tokens": 3,
    "speculative_draft_tensor_parallel_size": 1,
    "use_v2_block_manager": True,
}


def quietly(options: dict[str, Any], speculative: Any = None) -> tuple[dict[str, Any], Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        left, config = modernise(options, speculative)
    assert all(w.category in (DeprecationWarning, UserWarning) for w in caught)
    assert all(w.filename == __file__ for w in caught)
    return left, config, [str(w.message) for w in caught]


def test_ngram() -> None:
    left, config, said = quietly({**NGRAM, "block_size": 8})
    assert left == {"block_size": 8}
    assert config == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 1,
    }
    assert [m.split()[0] for m in said] == list(NGRAM)
    assert all(f"write speculative_config={config!r}" in m for m in said)
    assert quietly({**NGRAM, "ngram_prompt_lookup_min": 2})[1]["prompt_lookup_min"] == 2


def test_a_draft_model() -> None:
    left, config, said = quietly(DRAFT)
    assert left == {}
    assert config == {"model": "some/draft", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}
    assert SpeculativeConfig.parse(config).method is None
    assert len(said) == 4
    assert said[-1].startswith("vLLM options without effect here: use_v2_block_manager (the only")


def test_what_was_left_empty() -> None:
    left, config, said = quietly({"speculative_model": None, "num_speculative_tokens": None, "seed": 3})
    assert (left, config) == ({"seed": 3}, None)
    assert said == [f"{name} is an older keyword; leave it out" for name in list(DRAFT)[:2]]


def test_nothing_is_said_about_todays_words() -> None:
    now = {"method": "ngram"}
    assert quietly({"seed": 3}, now) == ({"seed": 3}, now, [])


@pytest.mark.parametrize(
    ("options", "speculative", "match"),
    [
        (NGRAM, {"method": "ngram"}, "speculative_model and speculative_config contradict"),
        ({"num_speculative_tokens": 3}, None, r"num_speculative_tokens needs a method.*'num_speculative_tokens': 3"),
        ({"ngram_prompt_lookup_max": 3}, None, r"ngram_prompt_lookup_max needs a method.*'prompt_lookup_max': 3"),
        ({"speculative_model": 3}, None, "must be a name"),
    ],
    ids=str,
)
def test_what_cannot_be_meant(options: dict[str, Any], speculative: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        modernise(options, speculative)


def test_engines_take_them_and_blame_the_caller(models: dict[str, Pair], make_llm: MakeLLM) -> None:
    with pytest.warns(DeprecationWarning, match="is an older keyword; write") as caught:
        llm = LLM(str(models["float32"].target), max_model_len=64, **NGRAM)
    assert {w.filename for w in caught} == {__file__}
    prompt = [1, 2, 3, 1, 2, 3, 1, 2]
    now = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
    new = make_llm(max_model_len=64, speculative_config=now)
    old_output, new_output = (engine.generate(prompt)[0].outputs[0] for engine in (llm, new))
    assert old_output.token_ids == new_output.token_ids
    assert llm.engine.methods == new.engine.methods == ("none", "ngram")


def test_options_that_no_proposer_has_are_still_errors(models: dict[str, Pair]) -> None:
    with (
        pytest.warns(DeprecationWarning, match="is an older keyword"),
        pytest.raises(ConfigError, match="unknown ngram option 'draft_tensor_parallel_size'"),
    ):
        LLM(str(models["float32"].target), **NGRAM, speculative_draft_tensor_parallel_size=1)
