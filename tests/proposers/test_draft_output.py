"""How many of the target's tokens a head drafts that has no output layer of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import Ask, assert_same, run
from eagles import eagle_config, random_eagle
from heads import write_head
from mtp_layers import write_mtp
from pieces import random_tokens

from parlay import LLM, SamplingParams
from parlay.models.select import describe_model
from parlay.proposers import draft_output
from parlay.proposers.base import TargetInfo
from parlay.proposers.draft_output import DraftOutput, least_share

FIXED: dict[str, Any] = {"lengths": "fixed", "num_speculative_tokens": 3}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Engines set the number of threads of the process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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
    shares = [least_share(one, one, rows) for rows in (1, 16, 64, one.tokens)]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[2] <= 1
    assert shares[-1] > 1  # all rows save nothing


@pytest.mark.usefixtures("_small")
def test_the_rows_follow_the_text(target: Path) -> None:
    output = DraftOutput(info(target), info(target).config, None)
    assert output.ids is not None
    rare = [i for i in range(output._target.config.tokens) if not (output.ids == i).any()]
    common = output.ids.tolist()
    output.observe(common[:40])
    assert output.ids is not None
    output.observe(rare * 3)
    assert output.ids is None
    output.observe(common * 9)
    assert output.ids is not None


def test_a_small_vocabulary_is_drafted_whole(target: Path) -> None:
    output = DraftOutput(info(target), info(target).config, None)
    assert output.ids is None
    output.observe([1, 2, 3])
    assert output.ids is None


def test_a_given_size_stays(target: Path) -> None:
    output = DraftOutput(info(target), info(target).config, 32)
    chosen = output.ids
    assert chosen is not None
    output.observe(range(100, 200))
    assert output.ids is chosen
    assert DraftOutput(info(target), info(target).config, 10**6).ids is None


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("method", ["mtp", "eagle"])
@pytest.mark.parametrize("tree", [{}, {"tree": {"width": 3, "depth": 2}, "num_speculative_tokens": 6}])
def test_same_tokens_while_it_changes(target: Path, tmp_path: Path, method: str, tree: dict[str, Any]) -> None:
    """Texts of common and of rare tokens in turn, in one engine; drafts of the former are common ones alone."""
    spec = {"method": method, **FIXED, **tree}
    if method == "eagle":
        config = eagle_config()
        spec["model"] = str(write_head(tmp_path / "head", config, random_eagle(config, embedding=True)))
    llm = LLM(str(target), dtype="float32", max_model_len=512, speculative_config=spec)
    plain = LLM(str(target), dtype="float32", max_model_len=512, speculative_config=None)
    proposer: Any = llm.engine._worker._proposer
    common, sizes = proposer.output.ids.tolist(), []
    rare = [i for i in range(proposer.output._target.config.tokens) if i not in common]
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
