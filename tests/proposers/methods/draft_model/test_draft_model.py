"""Draft models: of any shape, whatever ran before, and what is refused. More is in `test_itself.py`."""

from pathlib import Path
from typing import Any

import pytest
from asking import Ask, assert_same, run
from checkpoints import VOCAB, write_byte_tokenizer, write_llama
from conftest import MakeLLM, Pair, Plain
from watching import asks

from parlay import ConfigError, ModelError
from parlay.runner.batch import Batch
from parlay.runner.runner import ModelRunner


@pytest.mark.parametrize("block_size", [1, 4])
def test_drafts_do_not_depend_on_what_ran_before(make_llm: MakeLLM, block_size: int) -> None:
    """Blocks that earlier requests left hold only verified tokens, for a draft model that is often wrong too."""
    first = asks(1.3)
    seasoned = make_llm("draft_model", 4, block_size=block_size)
    fresh = make_llm("draft_model", 4, enable_prefix_caching=False)
    outputs = run(seasoned, first)
    assert any(a.metrics.accepted < a.metrics.drafted for a in outputs)
    later = [
        Ask(ask.prompt + answer.token_ids[:cut], ask.params)
        for ask, answer in zip(first, outputs, strict=True)
        for cut in range(0, len(answer.token_ids) + 1, 5)
    ]
    for ask in later:
        [a], [b] = run(seasoned, [ask]), run(fresh, [ask])
        assert a.token_ids == b.token_ids
        assert a.metrics.cached_tokens >= len(ask.prompt) - block_size - 1
        assert a.metrics.accepted_per_position == b.metrics.accepted_per_position
        assert (a.metrics.drafted, a.sources) == (b.metrics.drafted, b.sources)


def test_catching_up_keeps_to_the_row_budget(
    make_llm: MakeLLM, models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    forward = ModelRunner.forward

    def spy(self: ModelRunner, batch: Batch) -> Any:
        rows.append(len(batch.tokens))
        return forward(self, batch)

    itself = {"model": str(models["float32"].target), "num_speculative_tokens": 4}
    llm = make_llm(speculative_config=itself, max_num_batched_tokens=11, max_num_seqs=4, block_size=4)
    run(llm, asks(speculative={"enabled": False}))
    monkeypatch.setattr(ModelRunner, "forward", spy)
    answers = run(llm, asks())
    assert max(rows) <= 11 + 4, "at most a token more than the target's rows for each request"
    assert all(a.metrics.accepted == a.metrics.drafted for a in answers)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_draft_model_of_another_shape(make_llm: MakeLLM, plain: Plain, tmp_path: Path, k: int) -> None:
    draft = write_llama(
        tmp_path / "draft",
        seed=5,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=24,
        tie_word_embeddings=True,
    )
    llm = make_llm(speculative_config={"model": str(draft), "num_speculative_tokens": k}, block_size=4)
    for _ in range(2):
        answers = run(llm, asks())
        assert_same(answers, plain("float32", asks()))
        assert all(a.metrics.drafted > 0 for a in answers)


def test_the_default_length(make_llm: MakeLLM) -> None:
    answers = run(make_llm("draft_model"), asks()[:1])
    assert len(answers[0].metrics.accepted_per_position) <= 4
    assert answers[0].metrics.drafted > answers[0].metrics.drafts


# ------------------------------------------------------------------------------------------------- what is refused


def refuse(make_llm: MakeLLM, error: type[Exception], match: str, **config: Any) -> None:
    with pytest.raises(error, match=match):
        make_llm(speculative_config={"method": "draft_model", **config})


def test_another_vocabulary_size(make_llm: MakeLLM, tmp_path: Path) -> None:
    draft = write_llama(tmp_path / "draft", vocab_size=400)
    (draft / "model.safetensors").unlink()  # noticed before weights are looked for
    refuse(make_llm, ModelError, f"400 tokens but .* has {VOCAB}", model=str(draft), vocabulary="same")


def test_other_ids_for_the_same_tokens(make_llm: MakeLLM, tmp_path: Path) -> None:
    draft = write_llama(tmp_path / "draft")
    (draft / "model.safetensors").unlink()
    file = draft / "tokenizer.json"
    text = file.read_text()
    file.write_text(text.replace('"!": 0,', '"!": 1,').replace('"\\"": 1,', '"\\"": 0,'))
    assert file.read_text() != text
    refuse(make_llm, ModelError, "other ids", model=str(draft), vocabulary="same")
    # A tokenizer that is merely written differently fits, and then the weights are missed.
    write_byte_tokenizer(draft)
    file.write_text(file.read_text() + "\n")
    refuse(make_llm, ModelError, "model.safetensors does not exist", model=str(draft))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({}, ConfigError, "'model' is required"),
        ({"model": "/nowhere"}, ModelError, "there is no model '/nowhere'"),
        ({"model": 3}, ConfigError, "model"),
        ({"model": "x", "draft_tensor_parallel_size": 0}, ConfigError, "must be at least 1"),
        ({"model": "x", "vocabulary": "both"}, ConfigError, "vocabulary"),
        ({"modle": "x"}, ConfigError, "did you mean 'model'"),
        ({"model": "x", "prompt_lookup_max": 3}, ConfigError, "prompt_lookup_max"),
        ({"model": "x", "num_speculative_tokens": 0}, ConfigError, "at least 1"),
    ],
    ids=str,
)
def test_bad_options(make_llm: MakeLLM, options: dict[str, Any], error: type[Exception], match: str) -> None:
    refuse(make_llm, error, match, **options)
