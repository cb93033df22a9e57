"""Engines whose drafts are verified classically or typically: distributions, repeatability, parameters."""

import itertools
from collections import Counter
from math import exp
from typing import Any

import numpy as np
import pytest
import torch
from asking import Ask, accepted, assert_same, essence, run
from conftest import MakeLLM
from crossing import crossed
from scipy.stats import chisquare

from parlay import LLM, CompletionOutput, SamplingParams, StructuredOutputsParams
from parlay.proposers.expander import Expander

HEADS: dict[str, dict[str, Any]] = {
    "draft_model": {"method": "draft_model", "model": "tiny-code-draft"},
    "eagle3": {"method": "eagle3", "model": "tiny-code-eagle3"},
    "medusa": {"method": "medusa", "model": "tiny-code-medusa"},
    "mlp_speculator": {"method": "mlp_speculator", "model": "tiny-code-mlp-speculator"},
    "self": {"method": "self"},
}
MODES = ["rejection", "block", "typical"]
TREE = {"width": 2, "depth": 2}
PROMPTS = (
    "def area(width, height):\n    return",
    "for i in range(",
    "import os\n\n\nclass Shape:\n    def __init__(",
)


def speculative(head: str, mode: str, **more: Any) -> dict[str, Any]:
    return {**HEADS[head], "verification": mode, "lengths": "fixed", "num_speculative_tokens": 3, **more}


@pytest.fixture(scope="module")
def plain() -> LLM:
    return LLM("tiny-code", max_model_len=128, speculative_config=None)


def tiny(make_llm: MakeLLM, given: dict[str, Any] | None, **options: Any) -> LLM:
    return make_llm(model="tiny-code", speculative_config=given, **options)


def asks_for(llm: LLM, count: int = 6, **params: Any) -> list[Ask]:
    params = {"temperature": 0.8, "max_tokens": 24, **params}
    return [
        Ask(tuple(llm.engine.encode(PROMPTS[i % len(PROMPTS)])), SamplingParams(seed=i, **params))
        for i in range(count)
    ]


@crossed(head=list(HEADS), mode_and_tree=[*((mode, "off") for mode in MODES), ("rejection", TREE), ("typical", TREE)])
def test_runs(make_llm: MakeLLM, plain: LLM, head: str, mode_and_tree: tuple[str, Any]) -> None:
    """Greedy tokens are plain decoding's. A sampled run gives the same bits again, which are not plain decoding's.

    Log-probabilities are the target's.
    """
    mode, tree = mode_and_tree
    given = speculative(head, mode, tree=tree)
    if tree != "off":
        del given["num_speculative_tokens"]
    llm, greedy, asks = (
        tiny(make_llm, given),
        asks_for(plain, temperature=0.0, logprobs=2),
        asks_for(plain, logprobs=2),
    )
    one = run(llm, asks)
    assert_same(one, run(tiny(make_llm, given), asks))
    assert accepted(one) > 0
    assert [essence(a) for a in one] != [essence(b) for b in run(plain, asks)]
    found = run(llm, greedy)
    assert_same(found, run(plain, greedy))
    assert accepted(found) > 0
    for ask, made in zip(asks, one, strict=True):
        assert made.metrics.verification == mode
        assert made.metrics.lossless == (mode != "typical")
        scored = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2)
        (output,) = plain.generate([[*ask.prompt, *made.token_ids]], scored, use_tqdm=False)
        assert output.prompt_logprobs is not None
        assert made.logprobs is not None
        told = output.prompt_logprobs[len(ask.prompt) :]
        for token, here, there in zip(made.token_ids, made.logprobs, told, strict=True):
            assert there is not None
            assert here[token].logprob.hex() == there[token].logprob.hex()
            assert here[token].rank == there[token].rank


def test_names(make_llm: MakeLLM, plain: LLM) -> None:
    """The id of the numbers, and a request's metrics, say what decided."""
    assert plain.numerics_id.rsplit("/", 1)[1] in ("exact", "up-to-floating-point")
    for mode, last in (("rejection", "rejection"), ("block", "block"), ("typical", "typical-lossy")):
        llm = tiny(make_llm, speculative("eagle3", mode))
        assert llm.numerics_id == f"{plain.numerics_id}/{last}"
    coupled = tiny(make_llm, speculative("eagle3", "coupled"))
    assert coupled.numerics_id == plain.numerics_id
    (made,) = run(coupled, asks_for(plain, 1))
    assert made.metrics.verification == "coupled"
    assert made.metrics.lossless


# ----------------------------------------------------------------------------------------------------- distributions

SEEDS, SOAK, LENGTH, TOP = 600, 5000, 3, 3


PROMPT, WARM = "def area(width, height):\n    return", 1.2


@pytest.fixture(scope="module")
def exact(plain: LLM) -> dict[tuple[int, ...], float]:
    """The joint distribution of the first tokens after `PROMPT`, of which each is one of the likeliest few."""
    prompt, known = plain.engine.encode(PROMPT), {(): 1.0}
    for _ in range(LENGTH):
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=TOP, ignore_eos=True)
        outputs = plain.generate([[*prompt, *begin] for begin in known], params, use_tqdm=False)
        longer = dict[tuple[int, ...], float]()
        for (begin, p), output in zip(known.items(), outputs, strict=True):
            (entry,) = output.outputs[0].logprobs or ()
            likely = {token: exp(one.logprob / WARM) for token, one in entry.items() if one.rank <= TOP}
            assert len(likely) == TOP
            longer |= {(*begin, token): p * w / sum(likely.values()) for token, w in likely.items()}
        known = longer
    return known


def p_value(llm: LLM, distribution: dict[tuple[int, ...], float], draws: int = SEEDS) -> float:
    """Return how well an engine's first tokens agree with a distribution, likely ones each and the rest together."""
    prompt = llm.engine.encode(PROMPT)
    params = [
        SamplingParams(temperature=WARM, top_k=TOP, seed=7919 * i, max_tokens=LENGTH + 2, ignore_eos=True)
        for i in range(draws)
    ]
    outputs = llm.generate([list(prompt)] * draws, params, use_tqdm=False)
    assert sum(output.outputs[0].metrics.accepted for output in outputs) > draws / 10
    seen = Counter(output.outputs[0].token_ids[:LENGTH] for output in outputs)
    if not {*seen} <= {*distribution}:
        return 0.0
    cells = [key for key, p in distribution.items() if p * draws >= 10]
    counts, expected = [seen[key] for key in cells], [distribution[key] * draws for key in cells]
    counts.append(draws - sum(counts))
    expected.append(draws - sum(expected))
    return float(chisquare(counts, expected)[1])


@pytest.mark.parametrize(
    ("head", "mode", "tree"),
    [("draft_model", "rejection", "off"), ("eagle3", "block", "off"), ("eagle3", "rejection", TREE)],
)
def test_the_distribution_is_the_targets(
    make_llm: MakeLLM, exact: dict[tuple[int, ...], float], head: str, mode: str, tree: Any
) -> None:
    check_distribution(make_llm, exact, head, mode, tree, SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("mode", "tree"), [("rejection", "off"), ("block", "off"), ("rejection", TREE)])
def test_the_distribution_is_the_targets_in_many_draws(
    make_llm: MakeLLM, exact: dict[tuple[int, ...], float], head: str, mode: str, tree: Any
) -> None:
    check_distribution(make_llm, exact, head, mode, tree, SOAK)


def check_distribution(
    make_llm: MakeLLM, exact: dict[tuple[int, ...], float], head: str, mode: str, tree: Any, draws: int
) -> None:
    given = speculative(head, mode, tree=tree)
    if tree != "off":
        del given["num_speculative_tokens"]
    llm = tiny(make_llm, given, max_num_seqs=64)
    assert p_value(llm, exact, draws) > 1e-3


def test_typical_acceptance_has_another_distribution(make_llm: MakeLLM, exact: dict[tuple[int, ...], float]) -> None:
    given = speculative("eagle3", "typical", posterior_threshold=0.1, posterior_alpha=1.0)
    llm = tiny(make_llm, given, max_num_seqs=64)
    assert p_value(llm, exact, SEEDS // 2) < 1e-6


def test_a_distribution_that_guesses_were_not_drawn_from_is_found_out(
    make_llm: MakeLLM, exact: dict[tuple[int, ...], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Expander.drafts

    def flatter(self: Expander, *of: Any) -> Any:
        drafts = whole(self, *of)
        for draft in drafts:
            for distribution in draft.q or ():
                distribution.logs.copy_(torch.log_softmax(distribution.logs / 2, -1))
        return drafts

    monkeypatch.setattr(Expander, "drafts", flatter)
    llm = tiny(make_llm, speculative("draft_model", "rejection", tree="off"), max_num_seqs=64)
    assert p_value(llm, exact) < 1e-6


# ---------------------------------------------------------------------------------------- what requests ask for


@crossed(mode=MODES, head=["draft_model", "eagle3", "medusa"])
def test_penalties_grammars_and_processors(make_llm: MakeLLM, plain: LLM, head: str, mode: str) -> None:
    llm = tiny(make_llm, speculative(head, mode))
    encode = llm.engine.encode
    prompt = tuple(encode(PROMPTS[0]))
    even = list(range(0, 2000, 2))

    def only_even(output: list[int], row: torch.Tensor) -> torch.Tensor:
        row[1::2] = -torch.inf
        return row

    words = ("width", "height", "width * height")
    kinds: dict[str, dict[str, Any]] = {
        "choice": {"structured_outputs": StructuredOutputsParams(choice=words)},
        "regex": {"structured_outputs": StructuredOutputsParams(regex="[a-c]{6}[0-9]{4}")},
        "processor": {"logits_processors": [only_even]},
        "allowed": {"allowed_token_ids": even},
        "penalties": {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
        "bias": {"logit_bias": {even[7]: 3.0}, "min_tokens": 4},
    }
    asks = [
        Ask(prompt, SamplingParams(temperature=1.0, seed=seed, max_tokens=16, logprobs=1, **kind))
        for kind, seed in itertools.product(kinds.values(), range(2))
    ]
    found = run(llm, asks)
    again = run(tiny(make_llm, speculative(head, mode)), asks)
    assert_same(found, again)
    assert accepted(found) > 0
    for name, made in zip((name for name, _ in itertools.product(kinds, range(2))), found, strict=True):
        assert made.finish_reason in ("stop", "length"), name
        if name == "choice":
            assert made.text in words
        if name == "regex":
            assert len(made.text) == 10
            assert {*made.text[:6]} <= {*"abc"}
            assert made.text[6:].isdigit()
        if name in ("processor", "allowed"):
            assert not any(token % 2 for token in made.token_ids), name


def test_grammars_keep_their_distribution(make_llm: MakeLLM, plain: LLM) -> None:
    """What a grammar forbids is masked before guesses are drawn: none is dropped for its own token."""
    form = StructuredOutputsParams(regex="[ab][ab][ab]")
    prompt = list(plain.engine.encode(PROMPT))
    asks = [SamplingParams(temperature=1.3, seed=7919 * i, max_tokens=4, structured_outputs=form) for i in range(160)]
    plainly, *others = (
        Counter(output.outputs[0].text for output in engine.generate([prompt] * len(asks), asks, use_tqdm=False))
        for engine in (
            plain,
            *(tiny(make_llm, speculative("draft_model", mode), max_num_seqs=64) for mode in ("rejection", "block")),
        )
    )
    for other in others:
        texts = sorted({*plainly, *other})
        table = np.array([[counts[text] for text in texts] for counts in (plainly, other)])
        table = table[:, table.sum(0) >= 20]
        means = table.sum(0) / 2
        assert chisquare(table.ravel(), np.concatenate([means, means]), ddof=len(means))[1] > 1e-3
        assert len(means) >= 3


@pytest.fixture(scope="module")
def greedily(plain: LLM) -> list[CompletionOutput]:
    return run(plain, asks_for(plain, 12, max_tokens=40, temperature=0.0, logprobs=0))


@crossed(mode=MODES, head=["draft_model", "eagle3"])
def test_preemption(make_llm: MakeLLM, plain: LLM, greedily: list[CompletionOutput], head: str, mode: str) -> None:
    asks = asks_for(plain, 12, max_tokens=40, temperature=0.6, logprobs=0)
    llm = tiny(make_llm, speculative(head, mode), num_blocks=20, block_size=8)
    found = run(llm, asks)
    assert llm.engine.snapshot().preemptions > 0
    assert accepted(found) > 0
    assert all(len(made.token_ids) == 40 or made.finish_reason == "stop" for made in found)
    greedy = asks_for(plain, 12, max_tokens=40, temperature=0.0, logprobs=0)
    assert_same(run(llm, greedy), greedily)
