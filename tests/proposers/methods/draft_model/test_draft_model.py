"""A draft model whose own cache is right: drafting with the target itself, every guess must be accepted.

The draft model draws with the target's noise, so the target drafting for itself guesses what it will draw, unless
its cache layers hold something wrong or missing. What is emitted would be right even then; what is accepted tells.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from asking import Ask, accepted, assert_same, preempt_every_third_step, run, with_params
from checkpoints import VOCAB, write_byte_tokenizer, write_llama
from conftest import DTYPES, MakeLLM, Pair, Plain

from parlay import LLM, CompletionOutput, ConfigError, ModelError, SamplingParams
from parlay.runner.batch import Batch
from parlay.runner.runner import ModelRunner

OFF = {"enabled": False}


@pytest.fixture
def itself(make_llm: MakeLLM, models: dict[str, Pair]) -> MakeLLM:
    """A factory of engines whose draft model is the target."""

    def make(k: int = 4, dtype: str = "float32", **options: Any) -> LLM:
        config = {"model": str(models[dtype].target), "num_speculative_tokens": k}
        return make_llm(dtype=dtype, speculative_config=config, **options)

    return make


def asks(temperature: float = 0.7, **changes: Any) -> list[Ask]:
    given = {"temperature": temperature, "max_tokens": 21, "logprobs": 0, "ignore_eos": True, **changes}
    return [
        Ask(tuple((7 * i * j + j) % 256 for j in range(length)), SamplingParams(**{"seed": i, **given}))
        for i, length in enumerate((1, 5, 16, 17, 33, 40))
    ]


def all_accepted(answers: Sequence[CompletionOutput]) -> bool:
    return all(a.metrics.accepted == a.metrics.drafted > 0 for a in answers)


@pytest.mark.parametrize("filters", [{}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.05}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_guess_is_accepted(
    itself: MakeLLM, plain: Plain, dtype: str, temperature: float, filters: dict[str, Any]
) -> None:
    answers = run(itself(4, dtype), asks(temperature, **filters))
    assert_same(answers, plain(dtype, asks(temperature, **filters)))
    assert all_accepted(answers)
    # The first step emits one token and leaves twenty: four steps of five.
    assert [a.metrics.steps for a in answers] == [5] * len(answers)


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 23, "block_size": 3},
        {"block_size": 1},
        {"max_num_seqs": 2},
    ],
    ids=str,
)
def test_in_chunks_and_blocks_of_any_size(itself: MakeLLM, options: dict[str, int]) -> None:
    answers = run(itself(**options), asks())
    assert all(a.metrics.accepted == a.metrics.drafted for a in answers)
    assert accepted(answers) > 5


@pytest.mark.parametrize("known", ["all", "a part", "nothing"])
def test_with_a_prefix_of_which_the_proposer_has(itself: MakeLLM, known: str) -> None:
    """What ran with speculation off left the target's keys and values, but not the proposer's."""
    llm = itself(block_size=4)
    if known == "a part":
        run(llm, [Ask(ask.prompt[:12], ask.params) for ask in asks()])
    run(llm, asks() if known == "all" else asks(speculative=OFF))
    again = run(llm, asks())
    assert sum(a.metrics.cached_tokens for a in again) > 80
    assert all_accepted(again)


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
        for cut in range(0, len(answer.token_ids) + 1, 3)
    ]
    for ask in later:
        [a], [b] = run(seasoned, [ask]), run(fresh, [ask])
        assert a.token_ids == b.token_ids
        assert a.metrics.cached_tokens >= len(ask.prompt) - block_size - 1
        assert a.metrics.accepted_per_position == b.metrics.accepted_per_position
        assert (a.metrics.drafted, a.sources) == (b.metrics.drafted, b.sources)


def test_with_wishes_that_differ_by_request(itself: MakeLLM, plain: Plain) -> None:
    wishes = [OFF, None, {"num_speculative_tokens": 1}, {"num_speculative_tokens": 2}, OFF, None]
    mixed = [with_params(ask, speculative=wish) for ask, wish in zip(asks(), wishes, strict=True)]
    answers = run(itself(), mixed)
    assert_same(answers, plain("float32", mixed))
    assert [a.metrics.steps for a in answers] == [21, 5, 11, 8, 21, 5]
    assert all_accepted([a for a, wish in zip(answers, wishes, strict=True) if wish != OFF])


def test_after_preemption(itself: MakeLLM) -> None:
    for caching in (True, False):
        answers = run(itself(block_size=4, enable_prefix_caching=caching), asks(), preempt_every_third_step())
        assert sum(a.metrics.preemptions for a in answers) > 1
        assert all_accepted(answers)


def test_when_blocks_run_out(itself: MakeLLM) -> None:
    """Without blocks for a draft a step goes undrafted, and the next one closes the gap."""
    answers = run(itself(block_size=4, max_model_len=64, num_blocks=18), asks(max_tokens=20))
    assert any(a.metrics.preemptions for a in answers)
    assert all(a.metrics.accepted == a.metrics.drafted for a in answers)
    assert accepted(answers) > 0


def test_catching_up_keeps_to_the_row_budget(itself: MakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    forward = ModelRunner.forward

    def spy(self: ModelRunner, batch: Batch) -> Any:
        rows.append(len(batch.tokens))
        return forward(self, batch)

    llm = itself(max_num_batched_tokens=11, max_num_seqs=4, block_size=4)
    run(llm, asks(speculative=OFF))
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
    refuse(make_llm, ModelError, f"400 tokens but .* has {VOCAB}", model=str(draft))


def test_other_ids_for_the_same_tokens(make_llm: MakeLLM, tmp_path: Path) -> None:
    draft = write_llama(tmp_path / "draft")
    (draft / "model.safetensors").unlink()
    file = draft / "tokenizer.json"
    text = file.read_text()
    file.write_text(text.replace('"!": 0,', '"!": 1,').replace('"\\"": 1,', '"\\"": 0,'))
    assert file.read_text() != text
    refuse(make_llm, ModelError, "other ids", model=str(draft))
    # A tokenizer that is merely written differently fits, and then the weights are missed.
    write_byte_tokenizer(draft)
    file.write_text(file.read_text() + "\n")
    refuse(make_llm, ModelError, "model.safetensors does not exist", model=str(draft))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({}, ConfigError, "'model' is needed"),
        ({"model": "/nowhere"}, ModelError, "there is no model '/nowhere'"),
        ({"model": 3}, ConfigError, "model"),
        ({"model": "x", "draft_tensor_parallel_size": 0}, ConfigError, "must be at least 1"),
        ({"modle": "x"}, ConfigError, "did you mean 'model'"),
        ({"model": "x", "prompt_lookup_max": 3}, ConfigError, "prompt_lookup_max"),
        ({"model": "x", "num_speculative_tokens": 0}, ConfigError, "at least 1"),
    ],
    ids=str,
)
def test_bad_options(make_llm: MakeLLM, options: dict[str, Any], error: type[Exception], match: str) -> None:
    refuse(make_llm, error, match, **options)
