"""How drafts are verified: what users may ask for, in vLLM's words of both ages, and what they are told."""

import warnings
from typing import Any

import pytest
from conftest import MakeLLM, Pair

from parlay import LLM, ConfigError
from parlay.config import SpeculativeConfig, modernise
from parlay.config.verification import VERIFICATIONS

DRAFT = {"method": "draft_model", "model": "some/draft"}
EAGLE = {"method": "eagle3", "model": "tiny-code-eagle3"}
MEDUSA = {"method": "medusa", "model": "tiny-code-medusa"}


def test_coupled_is_the_default() -> None:
    assert SpeculativeConfig.parse(DRAFT).verification == "coupled"
    assert SpeculativeConfig.parse("ngram").posterior_threshold is None


@pytest.mark.parametrize("name", VERIFICATIONS)
def test_the_own_key(name: str) -> None:
    assert SpeculativeConfig.parse({**DRAFT, "verification": name}).verification == name


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ({"rejection_sample_method": "strict"}, "coupled"),
        ({"rejection_sample_method": "standard"}, "rejection"),
        ({"rejection_sample_method": "probabilistic"}, "rejection"),
        ({"rejection_sample_method": "block"}, "block"),
        ({"draft_sample_method": "greedy"}, "coupled"),
        ({"draft_sample_method": "probabilistic"}, "rejection"),
        ({"draft_sample_method": "gumbel"}, "rejection"),
        ({"acceptance_method": "rejection_sampler"}, "rejection"),
        ({"acceptance_method": "typical_acceptance_sampler"}, "typical"),
        ({"rejection_sample_method": "standard", "draft_sample_method": "greedy"}, "coupled"),
        ({"rejection_sample_method": "standard", "draft_sample_method": "probabilistic"}, "rejection"),
        ({"rejection_sample_method": "block", "draft_sample_method": "probabilistic"}, "block"),
        ({"rejection_sample_method": "block", "verification": "block"}, "block"),
        ({"rejection_sample_method": None, "draft_sample_method": None, "acceptance_method": None}, "coupled"),
    ],
    ids=str,
)
def test_the_words_of_vllm(words: dict[str, Any], meant: str) -> None:
    config = SpeculativeConfig.parse({**DRAFT, **words})
    assert config.verification == meant
    assert not {*words} & {*config.options}


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"rejection_sample_method": "synthetic"}, r"method='synthetic' is not supported; .*'strict'"),
        ({"rejection_sample_method": 3}, r"rejection_sample_method=3 is not supported.*leave it out"),
        ({"draft_sample_method": "beam"}, r"draft_sample_method='beam' is not supported; .*'greedy'"),
        ({"acceptance_method": ["x"]}, r"acceptance_method=\['x'\] is not supported; .*'rejection_sampler'"),
        (
            {"rejection_sample_method": "block", "verification": "coupled"},
            "verification='coupled' and rejection_sample_method='block' contradict.*write verification alone",
        ),
        (
            {"rejection_sample_method": "strict", "draft_sample_method": "probabilistic"},
            "contradict each other.*write verification alone",
        ),
        (
            {"rejection_sample_method": "block", "draft_sample_method": "greedy"},
            "rejection_sample_method='block' and draft_sample_method='greedy' contradict",
        ),
        (
            {"acceptance_method": "typical_acceptance_sampler", "rejection_sample_method": "standard"},
            "contradict each other.*write verification alone",
        ),
        ({"verification": "exact"}, "verification must be coupled, rejection, block or typical, not 'exact'"),
        ({"verification": ""}, "verification must be coupled"),
        ({"verification": 1}, "verification"),
        ({"posterior_threshold": 0.1}, "posterior_threshold is for verification='typical'; leave it out"),
        ({"posterior_alpha": 0.1, "verification": "block"}, "posterior_alpha is for verification='typical'"),
        (
            {"posterior_threshold": 0.0, "verification": "typical"},
            "posterior_threshold must be above 0 and at most 1",
        ),
        ({"posterior_threshold": 1.01, "verification": "typical"}, "posterior_threshold must be above 0"),
        ({"posterior_alpha": -0.3, "verification": "typical"}, "posterior_alpha must be above 0 and at most 1"),
        ({"posterior_alpha": float("nan"), "verification": "typical"}, "posterior_alpha must be above 0"),
        ({"posterior_alpha": "much", "verification": "typical"}, "posterior_alpha"),
        ({"verificaton": "block"}, "verificaton"),
    ],
    ids=str,
)
def test_refusals_name_the_key_and_what_would_do(words: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        LLM("tiny-code", speculative_config={"method": "draft_model", "model": "tiny-code-draft", **words})


@pytest.mark.parametrize("name", ["rejection", "block", "typical"])
def test_plain_decoding_verifies_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=f"verification='{name}' needs drafts, and method 'none' makes none"):
        SpeculativeConfig.parse({"method": "none", "verification": name})


@pytest.mark.parametrize("verification", ["rejection", "block"])
@pytest.mark.parametrize(
    "speculative",
    [
        {"method": "ngram"},
        {"method": "suffix"},
        {"method": "auto"},
        [EAGLE, {"method": "ngram"}],
        [{"method": "auto"}, EAGLE],
    ],
    ids=str,
)
def test_drafts_that_are_not_drawn(verification: str, speculative: Any) -> None:
    several = speculative if isinstance(speculative, list) else [speculative]
    with pytest.raises(
        ConfigError,
        match=f"verification='{verification}' needs draft tokens sampled from a known.*leave verification out",
    ):
        LLM("tiny-code", speculative_config=[{**one, "verification": verification} for one in several])


def test_shapes_that_do_not_fit() -> None:
    eagle = {**EAGLE, "tree": {"width": 2, "depth": 3}}
    with pytest.raises(
        ConfigError, match="verification='block' takes chains, not trees; leave tree out, or write verification="
    ):
        LLM("tiny-code", speculative_config={**eagle, "verification": "block"})
    assert LLM("tiny-code", speculative_config={**eagle, "verification": "rejection"})
    assert LLM("tiny-code", speculative_config={**EAGLE, "tree": "off", "verification": "block"})
    for verification in ("rejection", "block"):
        medusa = {**MEDUSA, "medusa_choices": [[0], [1], [0, 0]], "verification": verification}
        with pytest.raises(
            ConfigError, match=f"verification='{verification}' does not take branches that are listed"
        ):
            LLM("tiny-code", speculative_config=medusa)
    LLM("tiny-code", speculative_config={**MEDUSA, "medusa_choices": [[0], [1]], "verification": "typical"})


def test_a_list_says_it_once_or_alike(make_llm: MakeLLM, models: dict[str, Pair]) -> None:
    both = [{"method": "ngram", "verification": "typical"}, {"method": "suffix"}]
    assert SpeculativeConfig.parse(both).verification == "typical"
    with pytest.raises(ConfigError, match="verification"):
        SpeculativeConfig.parse([{"method": "ngram", "verification": "typical"}, {**DRAFT, "verification": "block"}])


def test_the_older_words() -> None:
    options = {
        "speculative_model": "some/draft",
        "num_speculative_tokens": 3,
        "spec_decoding_acceptance_method": "typical_acceptance_sampler",
        "typical_acceptance_sampler_posterior_threshold": 0.05,
        "typical_acceptance_sampler_posterior_alpha": 0.2,
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        left, given = modernise(dict(options), None)
    assert left == {}
    config = SpeculativeConfig.parse(given)
    assert (config.verification, config.posterior_threshold, config.posterior_alpha) == ("typical", 0.05, 0.2)
    said = [str(one.message) for one in caught]
    assert all(any(name in one for one in said) for name in options)


def test_the_older_default_is_rejection() -> None:
    options = {"speculative_model": "some/draft", "spec_decoding_acceptance_method": "rejection_sampler"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, given = modernise(options, None)
    assert SpeculativeConfig.parse(given).verification == "rejection"
