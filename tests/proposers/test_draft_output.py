"""How many of the target's tokens a head drafts that has no output layer of its own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from asking import Ask, assert_same, run
from crossing import crossed
from eagles import eagle_config, random_eagle
from families import write_family
from heads import write_head
from mtp_layers import write_mtp
from pieces import random_tokens
from vocabularies import permuted

from parlay import LLM, ConfigError, SamplingParams
from parlay.models.select import describe_model
from parlay.proposers import draft_output
from parlay.proposers.base import TargetInfo
from parlay.proposers.draft_output import DraftOutput, least_share

FIXED: dict[str, Any] = {"lengths": "fixed", "num_speculative_tokens": 3}
SIX = {"num_speculative_tokens": 6}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mtp(tmp_path_factory.mktemp("models") / "qwen3_5", "qwen3_5", calm=0.3)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a vocabulary of hundreds of tokens is large."""
    monkeypatch.setattr(draft_output, "COMMON", 64)


def info(path: Path) -> TargetInfo:
    return TargetInfo(describe_model(str(path)), torch.float32, 256)


def test_fewer_rows_have_to_have_more_of_a_large_model(target: Path) -> None:
    """The less of a step the output layer is, the less there is to gain, and the more to lose."""
    one = info(target).config
    shares = [least_share(one, one, one, rows) for rows in (1, 16, 64, one.tokens)]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[2] <= 1
    assert shares[-1] > 1  # all rows save nothing


@pytest.mark.usefixtures("_small")
def test_the_rows_follow_the_text(target: Path) -> None:
    output = DraftOutput(info(target), info(target).config, None)
    assert output.ids is not None
    rare = [i for i in range(output._owner.tokens) if not (output.ids == i).any()]
    common = output.ids.tolist()
    output.read(common[:40])
    assert output.ids is not None
    output.read(rare * 3)
    assert output.ids is None
    output.read(common * 9)
    assert output.ids is not None


def test_a_small_vocabulary_is_drafted_whole(target: Path) -> None:
    output = DraftOutput(info(target), info(target).config, None)
    assert output.ids is None
    output.read([1, 2, 3])
    assert output.ids is None


def test_a_given_size_stays(target: Path) -> None:
    output = DraftOutput(info(target), info(target).config, 32)
    chosen = output.ids
    assert chosen is not None
    output.read(range(100, 200))
    assert output.ids is chosen
    assert DraftOutput(info(target), info(target).config, 10**6).ids is None


@pytest.mark.usefixtures("_small")
@crossed(method=["mtp", "eagle", "draft_model"], tree=[{}, {"tree": {"width": 3, "depth": 2}, **SIX}])
def test_same_tokens_while_it_changes(target: Path, tmp_path: Path, method: str, tree: dict[str, Any]) -> None:
    """Texts of common and of rare tokens in turn, in one engine; drafts of the former are common ones alone."""
    spec = {"method": method, **FIXED, **tree}
    if method == "eagle":
        config = eagle_config()
        spec["model"] = str(write_head(tmp_path / "head", config, random_eagle(config, embedding=True)))
    if method == "draft_model":
        small = {"num_hidden_layers": 1, "intermediate_size": 16, "num_attention_heads": 2}
        spec["model"] = str(write_family(tmp_path / "small", "qwen3", **small))
    llm = LLM(str(target), dtype="float32", max_model_len=512, speculative_config=spec)
    plain = LLM(str(target), dtype="float32", max_model_len=512, speculative_config=None)
    proposer: Any = llm.engine._worker._proposer
    common, sizes = proposer.output.ids.tolist(), []
    rare = [i for i in range(proposer.output._owner.tokens) if i not in common]
    for turn in range(4):
        prompt = tuple(random_tokens(200, turn)) if turn % 2 else ()
        prompt = tuple((rare if turn % 2 else common)[i % 40] for i in (*prompt, *range(100 + turn)))
        given: dict[str, Any] = {"max_tokens": 10, "logprobs": 1, "ignore_eos": True, "return_rejected": True}
        asks = [Ask(prompt, SamplingParams(temperature=t, seed=turn, **given)) for t in (0.0, 0.8)]
        found = run(llm, asks)
        assert_same(found, run(plain, asks))
        sizes.append(proposer.ids is None)
        if proposer.ids is not None:
            assert {one.token_id for answer in found for one in answer.rejected} <= set(common)
    assert sizes[:2] == [False, True]


@pytest.mark.usefixtures("_small")
def test_a_draft_model_of_the_same_weights_is_right_where_it_may_be(target: Path) -> None:
    """Its drafts are accepted but where the target chooses a rare token."""
    spec = {"method": "draft_model", "model": str(target), **FIXED, "draft_vocab_size": 64}
    llm = LLM(str(target), dtype="float32", max_model_len=256, speculative_config=spec)
    proposer: Any = llm.engine._worker._proposer
    common = set(proposer.output.ids.tolist())
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, return_rejected=True)
    (found,) = run(llm, [Ask(tuple(random_tokens(20)), params)])
    assert found.rejected
    assert not common & {found.token_ids[one.at] for one in found.rejected}


def test_a_size_that_is_of_no_use_is_refused(tmp_path: Path) -> None:
    plain = write_family(tmp_path / "plain", "qwen3")
    other = permuted(plain, tmp_path / "other")
    spec = {"method": "draft_model", "model": str(other), "draft_vocab_size": 64}
    with pytest.raises(ConfigError, match="with the target's vocabulary"):
        LLM(str(plain), speculative_config=spec)
