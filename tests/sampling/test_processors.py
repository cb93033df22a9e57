"""What parameters do to a row, against a twin that goes token by token; and that nothing else decides it."""

from collections import Counter
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parlay import RequestError, SamplingParams
from parlay.sampling.processors import prepare
from parlay.sampling.token_counts import TokenCounts
from parlay.types.processor import RowProcessor

VOCAB = 9
EOS = frozenset({8})
tokens = st.integers(0, VOCAB - 1)
outputs = st.lists(tokens, max_size=12)


def tilt(output: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Another tensor, by what came before."""
    return logits + torch.arange(VOCAB).flip(0) * len(output) / 8


def shift(output: list[int], logits: torch.Tensor) -> torch.Tensor:
    """The same tensor, changed; and a list that nobody else may see changed."""
    logits[sum(output) % VOCAB] -= 2
    output.append(0)
    return logits


params_ = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.7, 100.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.3, -1.1, 2.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.7, -2.0]),
    logit_bias=st.none() | st.dictionaries(tokens, st.floats(-100, 100), max_size=4),
    logits_processors=st.sampled_from([(), (), (tilt,), (shift, tilt)]),
    allowed_token_ids=st.none() | st.lists(tokens, min_size=1),
    min_tokens=st.sampled_from([0, 0, 3, 13]),
    stop_token_ids=st.lists(tokens, max_size=2),
    max_tokens=st.none(),
)
words = st.lists(st.lists(tokens, min_size=1, max_size=3), max_size=5)


def made(params: SamplingParams, prompt: list[int], bad_words: list[list[int]]) -> RowProcessor | None:
    try:
        return prepare(
            params,
            prompt=prompt,
            ends=EOS | frozenset(params.stop_token_ids),
            bad_words=bad_words,
            vocab_size=VOCAB,
        )
    except RequestError:
        assume(False)
        raise


def after(processor: RowProcessor | None, known: list[int], path: list[int], row: Any) -> Any:
    result = torch.from_numpy(row.copy())
    if processor is not None:
        processor.process(tuple(known), path, result)
    return result.numpy()


def rows_for(seed: int, count: int) -> Any:
    """Rows on a coarse grid, so that a token is now and then no better than another, or removed."""
    rng = np.random.default_rng(seed)
    rows = np.round(rng.standard_normal((count, VOCAB)) * 6).astype(np.float32) / 2
    rows[rng.random(rows.shape) < 0.05] = -np.inf
    return rows


@settings(max_examples=300)
@given(params_, outputs, outputs, words, st.integers(0, 99), st.data())
def test_all_parameters_equal_the_naive_twin(
    params: SamplingParams, prompt: list[int], output: list[int], bad_words: Any, seed: int, data: Any
) -> None:
    """Whichever part of the output is known and whichever a path, and whatever was drafted in between."""
    processor = made(params, prompt, bad_words)
    rows = rows_for(seed, len(output) + 1)
    known = 0
    for end, row in enumerate(rows):
        expected = oracle.edit(row, params, prompt, output[:end], bad_words, EOS)
        if data.draw(st.booleans()):
            known = end
        if processor is not None and data.draw(st.booleans()):
            draft = data.draw(st.lists(tokens, max_size=3))
            processor.process_draft(tuple(output[:known]), [*output[known:end], *draft], torch.from_numpy(row.copy()))
        found = after(processor, output[:known], output[known:end], row)
        assert np.array_equal(found, expected)


@given(params_, outputs, outputs, words)
def test_guides_do_the_same_without_the_users_functions(
    params: SamplingParams, prompt: list[int], output: list[int], bad_words: Any
) -> None:
    processor = made(params, prompt, bad_words)
    assume(processor is not None and not params.logits_processors)
    assert processor is not None
    [row] = rows_for(1, 1)
    found = torch.from_numpy(row.copy())
    processor.process_draft((), output, found)
    assert np.array_equal(found.numpy(), oracle.edit(row, params, prompt, output, bad_words, EOS))


def test_drafts_never_reach_the_users_functions() -> None:
    def refuse(output: list[int], logits: torch.Tensor) -> torch.Tensor:
        raise AssertionError("called for a draft token")

    processor = made(SamplingParams(logits_processors=[refuse], logit_bias={0: 1.0}), [], [])
    assert processor is not None
    row = torch.zeros(VOCAB)
    processor.process_draft((), [1], row)
    assert row.tolist() == [1.0] + [0.0] * (VOCAB - 1)


def test_requests_that_change_nothing_have_no_processor() -> None:
    plain = [{}, {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1}, {"logit_bias": {}}, {"stop": "x"}]
    assert all(made(SamplingParams(**params), [1], []) is None for params in plain)
    assert made(SamplingParams(min_tokens=1), [], []) is not None


def test_penalties_by_hand() -> None:
    """Divide what is positive, multiply what is not; prompt and output for the first, output for the others."""
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    row = np.array([4, -4, 4, -4, 4, 0, 0, 0, 0], dtype=np.float32)
    found = after(made(params, [0, 1], []), [2, 3], [3], row)
    assert found.tolist() == [2, -8, 2 - 0.5 - 0.25, -8 - 1.0 - 0.25, 4, 0, 0, 0, 0]


def test_what_is_forbidden_stays_forbidden() -> None:
    params = SamplingParams(allowed_token_ids=[1, 2], logit_bias={0: 100.0, 1: -100.0}, logits_processors=[tilt])
    assert np.flatnonzero(after(made(params, [], []), [], [], np.zeros(VOCAB, np.float32)) > -np.inf).tolist() == [
        1,
        2,
    ]


def test_a_bad_word_is_completed_where_nothing_else_is_left() -> None:
    params = SamplingParams(allowed_token_ids=[4, 5], bad_words=["given below as tokens"])
    processor = made(params, [], [[3, 4], [3, 5]])
    row = np.zeros(VOCAB, np.float32)
    assert np.flatnonzero(after(processor, [3], [], row) > -np.inf).tolist() == [4, 5]
    assert np.flatnonzero(after(made(params, [], [[3, 4]]), [3], [], row) > -np.inf).tolist() == [5]


@pytest.mark.parametrize(
    ("params", "bad_words"),
    [
        ({"allowed_token_ids": [8], "min_tokens": 1}, []),
        ({"allowed_token_ids": [1, 8], "min_tokens": 1, "stop_token_ids": [1]}, []),
        ({"allowed_token_ids": [1, 2]}, [[1], [2]]),
        ({"min_tokens": 1}, [[token] for token in range(8)]),
        ({}, [[token] for token in range(9)]),
    ],
    ids=str,
)
def test_parameters_that_leave_nothing(params: dict[str, Any], bad_words: list[list[int]]) -> None:
    own = SamplingParams(**params)
    with pytest.raises(RequestError, match="leave no token to emit; loosen one"):
        prepare(own, prompt=[], ends=EOS | frozenset(own.stop_token_ids), bad_words=bad_words, vocab_size=VOCAB)


def explode(output: list[int], logits: torch.Tensor) -> torch.Tensor:
    raise ZeroDivisionError("by nought")


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (explode, "the logits processor explode raised ZeroDivisionError: by nought"),
        (lambda output, logits: None, "must return a tensor like the logits"),
        (lambda output, logits: logits[:-1], "must return a tensor like the logits"),
        (lambda output, logits: logits.numpy(), "must return a tensor like the logits"),
    ],
)
def test_functions_that_fail(function: Any, match: str) -> None:
    processor = made(SamplingParams(logits_processors=[function]), [], [])
    with pytest.raises(RequestError, match=match):
        after(processor, [], [], np.zeros(VOCAB, np.float32))


def test_functions_that_take_the_prompt() -> None:
    """With three parameters, as vLLM's may have; a default makes no third one."""
    seen: list[Any] = []

    def three(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append((list(prompt), output))
        prompt.clear()
        return logits

    def two(output: list[int], logits: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        seen.append(output)
        return logits * factor

    processor = made(SamplingParams(logits_processors=[three, two, three]), [6, 7], [])
    row = np.ones(VOCAB, np.float32)
    assert (after(processor, [3], [4], row) == 2).all()
    assert seen == [([6, 7], [3, 4]), [3, 4], ([6, 7], [3, 4])]


@given(outputs, st.lists(st.tuples(st.booleans(), tokens), max_size=60))
def test_a_tally_is_a_counter(prompt: list[int], moves: list[tuple[bool, int]]) -> None:
    tally, added = TokenCounts(prompt), []
    for back, token in moves:
        if back and added:
            tally.take_back(added.pop())
        else:
            tally.add(token)
            added.append(token)
        ids, counts = tally.table
        assert sorted(ids.tolist()) == sorted(set(prompt) | set(added))
        assert {t: c for t, c in zip(ids.tolist(), counts.tolist(), strict=True) if c} == Counter(added)
