"""Parallel draft models: every draft that an engine makes is that of transformers' model over text and masks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import assert_same, preempt_every_third_step, run, wish_in_turn, with_params
from checkpoints import write_llama
from conftest import MakeLLM, Pair, Plain
from fitting import fitted
from heads import serve_head
from torch import Tensor
from transformers import AutoModelForCausalLM
from watching import Known, Noted, Watch, asks, head_of

from parlay import LLM, ConfigError, ModelError

MASK = 250
SHAPES: dict[str, dict[str, Any]] = {
    "alike": {},
    "another": {
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 24,
        "tie_word_embeddings": True,
    },
}


def write(path: Path, more: dict[str, Any] | None = None, **shape: Any) -> Path:
    """Write a random draft model."""
    write_llama(path, seed=5, **shape)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "pard_token": MASK, **(more or {})}))
    return path


@pytest.fixture(autouse=True)
def _single_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the twin's products are small
    yield
    torch.set_num_threads(threads)


class Twin:
    """Runs the whole text and the masks behind it anew."""

    def __init__(self, path: Path, mask: int = MASK) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self._mask = mask

    @torch.no_grad()
    def logits(self, known: Known, length: int) -> Tensor:
        """Return the logits `[length, V]` of the tokens after those that are known."""
        tokens = torch.tensor([[*known, *[self._mask] * (length - 1)]])
        found: Tensor = self._model(tokens).logits[0, -length:]
        return found


def assert_right(twin: Twin, drafts: dict[Known, Noted], most: int = 40) -> None:
    """Compare drafts, by the known tokens that each follows, with the twin's; a spread of them if they are many."""
    assert drafts
    for known, noted in list(drafts.items())[:: -(-len(drafts) // most)]:
        logits = twin.logits(known, len(noted.draft))
        tokens = [noted.choose(row, len(known) + i) for i, row in enumerate(logits)]
        assert noted.draft.is_chain
        assert list(noted.draft.tokens) == tokens, f"after {len(known)} tokens"
        probs = [noted.likely(row, token) for row, token in zip(logits, tokens, strict=True)]
        assert noted.draft.probs == pytest.approx(probs, rel=2e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_transformers(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    path = write(tmp_path / "draft", **SHAPES[shape])
    llm, watch, scored, twin = serve_head(target, path), Watch(), list[Tensor](), Twin(path)
    head = head_of(llm)
    logits = head.logits
    monkeypatch.setattr(head, "logits", lambda states: scored.append(logits(states).clone()) or scored[-1])
    for ask in asks(max_tokens=12):
        scored.clear()
        drafts = Watch()
        run(llm, [ask], drafts)
        watch.drafts |= drafts.drafts
        assert len(scored) == len(drafts.drafts)
        made = [noted for noted in drafts.drafts.items() if len(noted[1].draft)]
        for (known, noted), rows in zip(made, scored, strict=False):
            torch.testing.assert_close(rows, twin.logits(known, len(noted.draft)), atol=1e-4, rtol=1e-4)
    assert_right(twin, watch.drafts)
    assert max(len(noted.draft) for noted in watch.drafts.values()) == 8


@pytest.mark.parametrize("rows", [2048, 24])
def test_whatever_happens_on_the_way(make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, rows: int) -> None:
    """Cached prefixes, steps without it, preemptions: a draft follows from the known tokens alone."""
    switch = wish_in_turn(None, {"enabled": False}, {"num_speculative_tokens": 1}, None)
    llm = make_llm("pard", 4, max_num_batched_tokens=rows, block_size=4)
    twin = Twin(fitted("pard", models["float32"].target), 255)
    for meddle in (switch, preempt_every_third_step(), None):
        watch = Watch(meddle).over(llm)
        answers = run(llm, asks(max_tokens=24), watch)
        assert_same(answers, plain("float32", asks(max_tokens=24)))
        assert_right(twin, watch.drafts, most=20)
    assert sum(answer.metrics.cached_tokens for answer in answers) > 80
    assert sum(answer.metrics.accepted for answer in answers) > 20


def test_one_pass_for_a_draft(make_llm: MakeLLM, plain: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its length; and with more requests than recorded passes have rows."""
    llm, ask = make_llm("pard", 16), with_params(asks(temperature=0)[2], max_tokens=40)
    head, passes = head_of(llm), list[int]()
    forward = head._runner.forward
    monkeypatch.setattr(head._runner, "forward", lambda batch: passes.append(len(batch.tokens)) or forward(batch))
    assert_same(run(llm, [ask]), plain("float32", [ask]))
    assert len(passes) <= len(run(llm, [ask])[0].token_ids)
    assert max(passes) >= 16
    many = [with_params(ask, n=12) for ask in asks(max_tokens=6)]
    assert_same(run(llm, many), plain("float32", many))


def test_a_tree(tmp_path: Path, target: Path, plain: Plain) -> None:
    llm, watch = serve_head(target, write(tmp_path / "draft"), tree={"width": 3, "depth": 4}), Watch()
    answers = run(llm, asks(max_tokens=8), watch)
    alone = LLM(str(target), dtype="float32", max_model_len=128, speculative_config=None)
    assert_same(answers, run(alone, asks(max_tokens=8)))
    assert any(not noted.draft.is_chain for noted in watch.drafts.values())
    with pytest.raises(ConfigError, match=r"tree depth 17|1 to 16"):
        serve_head(target, tmp_path / "draft", tree={"width": 3, "depth": 17})


def test_as_vllm_names_it(tmp_path: Path, target: Path) -> None:
    draft, plain = write(tmp_path / "draft"), write_llama(tmp_path / "plain")
    for more in ({}, {"method": "draft_model"}, {"method": "draft_model", "parallel_drafting": True}):
        assert head_of(serve_head(target, draft, **more)).source == "pard"
    with pytest.raises(ConfigError, match=r"whose config has a pard_token .* is for the method 'draft_model'"):
        serve_head(target, plain, method="draft_model", parallel_drafting=True)


@pytest.mark.parametrize(
    ("more", "options", "told"),
    [
        ({"pard_token": None}, {}, r"is a checkpoint for the method 'draft_model', not 'pard'"),
        ({"pard_token": -1}, {}, "pard_token must be a whole number of at least 0, not -1"),
        ({"pard_token": 257}, {}, "the mask token 257 is beyond the target's 257 tokens"),
        ({"spd_type": "pard2"}, {}, "spd_type='pard2' is not supported; only 'pard' is"),
        (
            {},
            {"num_speculative_tokens": 17},
            "num_speculative_tokens=17 is more than the 16 tokens that 'pard' drafts",
        ),
        ({}, {"vocabulary": "text"}, "vocabulary='text' is for draft models that draft one token after another"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, target: Path, more: dict[str, Any], options: dict[str, Any], told: str
) -> None:
    with pytest.raises((ConfigError, ModelError), match=told):
        serve_head(target, write(tmp_path / "draft", more), method="pard", **options)


def test_another_vocabulary(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path / "draft", vocab_size=500)
    with pytest.raises(
        ModelError, match=r"has 500 tokens but .* has 257; a parallel draft model must share the target's"
    ):
        serve_head(target, draft)
