"""The engine with a real, small model: how requests end, what they report, which seeds they get."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import Ask, assert_same, run, with_params
from conftest import MakeLLM, Pair, Plain
from hypothesis import given
from hypothesis import strategies as st

from parlay import LLM, CompletionOutput, RequestError, SamplingParams
from parlay.proposers.base import HostProposer
from parlay.sampling.seeds import arrival_seed, mix
from parlay.types.draft import Draft

PROMPT = tuple(range(40, 52)) * 2
ASK = Ask(PROMPT, SamplingParams(temperature=0.7, seed=3, max_tokens=24, logprobs=1))


class Truth(HostProposer):
    """Drafts what plain decoding says, so that whole runs are accepted."""

    default_length = 6

    def __init__(self, future: tuple[int, ...]) -> None:
        self._future, self._known = future, -1

    def observe(self, request_id: int, tokens: Any) -> None:
        self._known = 0 if self._known < 0 else self._known + len(tokens)

    def propose(self, request_id: int, budget: int) -> Draft:
        return Draft.chain(self._future[self._known : self._known + budget], "truth")

    def forget(self, request_id: int) -> None:
        self._known = -1


@pytest.fixture
def truthful(make_llm: MakeLLM, plain: Plain, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """An engine whose drafts for `ASK` are always right, seven tokens a step."""
    future = plain("float32", [ASK])[0].token_ids
    monkeypatch.setattr("parlay.engine.speculation.make_proposer", lambda config, target: Truth(future))
    return make_llm()


# -------------------------------------------------------------------------------------------------- how they end


@pytest.mark.parametrize("at", [0, 2, 5, 6, 7, 9])
def test_a_stop_token_inside_an_accepted_run(truthful: LLM, plain: Plain, at: int) -> None:
    future = plain("float32", [ASK])[0].token_ids
    ask = with_params(ASK, stop_token_ids=(future[at],))
    answer = run(truthful, [ask])[0]
    end = future.index(future[at]) + 1
    assert answer.token_ids == future[:end]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", future[at])
    assert_same([answer], plain("float32", [ask]))
    _check_metrics(answer)


def test_a_stop_string_inside_an_accepted_run(truthful: LLM, plain: Plain) -> None:
    whole = plain("float32", [ASK])[0]
    tried = 0
    for start in range(len(whole.text) - 2):
        piece = whole.text[start : start + 2]
        if "\ufffd" in piece:
            continue
        ask = with_params(ASK, stop=(piece,))
        answer = run(truthful, [ask])[0]
        assert answer.text == whole.text[: whole.text.index(piece)]
        assert (answer.finish_reason, answer.stop_reason) == ("stop", piece)
        assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]
        assert len(answer.sources) == len(answer.logprobs or ()) == len(answer.token_ids)
        assert_same([answer], plain("float32", [ask]))
        _check_metrics(answer)
        tried += 1
    assert tried >= 3


@pytest.mark.parametrize("limit", [1, 2, 6, 7, 8, 23])
def test_max_tokens(truthful: LLM, plain: Plain, limit: int) -> None:
    answer = run(truthful, [with_params(ASK, max_tokens=limit)])[0]
    assert answer.token_ids == plain("float32", [ASK])[0].token_ids[:limit]
    assert (answer.finish_reason, answer.stop_reason) == ("length", None)
    _check_metrics(answer)


@pytest.mark.parametrize("max_tokens", [None, 1000])
@pytest.mark.parametrize("method", [None, "ngram", "draft_model"])
def test_the_context_limit(make_llm: MakeLLM, method: str | None, max_tokens: int | None) -> None:
    llm = make_llm(method, max_model_len=50)
    answers = run(llm, [Ask(PROMPT[:n], with_params(ASK, max_tokens=max_tokens).params) for n in (1, 24)])
    assert [len(a.token_ids) for a in answers] == [49, 26]
    assert {a.finish_reason for a in answers} == {"length"}


def test_a_prompt_one_short_of_the_limit(make_llm: MakeLLM) -> None:
    llm = make_llm("draft_model", max_model_len=17)
    assert len(run(llm, [Ask(tuple(range(16)), SamplingParams(max_tokens=None))])[0].token_ids) == 1


@pytest.fixture
def ending(tmp_path: Path, models: dict[str, Pair], plain: Plain) -> tuple[Path, int, int]:
    """The shared target with another end-of-sequence token: one that `ASK` runs into; and where it does."""
    future = plain("float32", [ASK])[0].token_ids
    at = next(i for i, token in enumerate(future) if i >= 5 and token not in future[:i])
    path = shutil.copytree(models["float32"].target, tmp_path / "ending")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"eos_token_id": [future[at], 1]}))
    return path, future[at], at


@pytest.mark.parametrize("method", [None, "ngram", "draft_model"])
def test_end_of_sequence(make_llm: MakeLLM, plain: Plain, ending: tuple[Path, int, int], method: str | None) -> None:
    path, eos, at = ending
    whole = plain("float32", [ASK])[0]
    llm = make_llm(method, model=str(path))
    stopped, ignoring, own = run(
        llm, [ASK, with_params(ASK, ignore_eos=True), with_params(ASK, stop_token_ids=(eos,))]
    )
    assert stopped.token_ids == whole.token_ids[: at + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", None)
    assert stopped.text == llm.engine.codec.decode(whole.token_ids[:at]), "what ended the output is not in the text"
    assert_same([ignoring], [whole])
    assert (own.token_ids, own.stop_reason) == (stopped.token_ids, eos)


def test_a_deadline(make_llm: MakeLLM) -> None:
    engine = make_llm().engine
    late = engine.add(PROMPT, ASK.params, timeout=0.0)[0]
    engine.step()
    assert late.finish_reason == "abort"
    assert engine.completion(late, 0).token_ids == ()


def test_abort_is_harmless_twice(make_llm: MakeLLM) -> None:
    engine = make_llm("draft_model").engine
    request = engine.add(PROMPT, ASK.params)[0]
    engine.step()
    engine.abort(request)
    engine.abort(request)
    assert not engine.busy
    assert engine.completion(request, 0).finish_reason == "abort"
    assert len(engine.completion(request, 0).token_ids) == 1


# ---------------------------------------------------------------------------------------------- what they report


def _check_metrics(answer: CompletionOutput) -> None:
    m = answer.metrics
    drafted_tokens = sum(source != "target" for source in answer.sources)
    assert m.emitted == len(answer.token_ids) == len(answer.sources)
    assert sum(m.accepted_per_position) == m.accepted == drafted_tokens <= m.drafted
    assert list(m.accepted_per_position) == sorted(m.accepted_per_position, reverse=True)
    assert m.drafts <= m.steps <= m.emitted
    # Every step adds the target's token, but for a last one that a drafted token ended.
    assert m.emitted - m.accepted in (m.steps, m.steps - 1)
    unfollowed = answer.sources[-1] != "target"
    assert m.emitted - m.accepted == m.steps - unfollowed
    assert m.tokens_per_draft == (1 + (m.accepted - unfollowed) / m.drafts if m.drafts else 1)
    with pytest.warns(DeprecationWarning, match="tokens_per_draft"):
        assert m.mean_acceptance_length == m.tokens_per_draft
    assert m.acceptance_length == m.emitted / m.steps
    assert m.arrival <= m.first_token <= m.finished


@pytest.mark.parametrize("ends", ["stop token", "max_tokens", "stop string"])
def test_a_draft_that_ends_a_request_has_no_bonus_token(make_llm: MakeLLM, plain: Plain, ends: str) -> None:
    """Whatever ended it, what drafts saved is what was emitted beyond one token a step."""
    (known,) = plain("float32", [Ask(PROMPT, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))])
    llm = make_llm("draft_model", 4)
    for length in range(2, 14):
        changes: dict[str, Any] = {
            "stop token": {"stop_token_ids": [known.token_ids[length]]},
            "max_tokens": {"max_tokens": length},
            "stop string": {"stop": [llm.engine.codec.decode(list(known.token_ids[length : length + 2]))]},
        }[ends]
        params = SamplingParams(**{"temperature": 0, "max_tokens": 24, "ignore_eos": True, **changes})
        _check_metrics(run(llm, [Ask(PROMPT, params)])[0])
    stats = llm.engine.stats
    with pytest.warns(DeprecationWarning, match="draft_stats"):
        assert stats.guesses == stats.draft_stats
    assert (stats.draft_stats.unfollowed > 0) is (ends != "max_tokens")  # drafts leave room for the bonus token
    assert stats.emitted == stats.turns + stats.draft_stats.saved


def test_only_prompts_that_look_into_the_cache_are_its_queries(make_llm: MakeLLM) -> None:
    params = SamplingParams(max_tokens=2)
    llm = make_llm()
    run(llm, [Ask(PROMPT, params)])
    run(llm, [Ask(PROMPT, SamplingParams(max_tokens=2, prompt_logprobs=1))])  # it computes every row
    run(llm, [Ask(PROMPT[:9], params)])
    stats = llm.engine.stats
    assert (stats.prompt_tokens, stats.queried_tokens) == (2 * len(PROMPT) + 9, len(PROMPT) + 9)
    llm = make_llm(enable_prefix_caching=False)
    run(llm, [Ask(PROMPT, params)])
    assert (llm.engine.stats.prompt_tokens, llm.engine.stats.queried_tokens) == (len(PROMPT), 0)


@pytest.mark.parametrize("method", [None, "ngram", "draft_model"])
def test_metrics(make_llm: MakeLLM, method: str | None) -> None:
    llm = make_llm(method, 4)
    asks = [Ask(PROMPT[i:], with_params(ASK, seed=i, temperature=t).params) for i in range(6) for t in (0.0, 0.9)]
    answers = run(llm, asks)
    for answer in answers:
        _check_metrics(answer)
        assert set(answer.sources) <= {"target", method}
    if method is None:
        assert all(a.metrics.drafts == a.metrics.drafted == 0 for a in answers)
        assert all(a.metrics.acceptance_length == 1 for a in answers)
    else:
        assert any(len(a.metrics.accepted_per_position) > 1 for a in answers)
    stats = llm.engine.stats
    assert stats.emitted == sum(len(a.token_ids) for a in answers)
    assert stats.emitted == stats.turns + stats.draft_stats.saved
    assert 0 < stats.steps <= max(sum(a.metrics.steps for a in answers), 1)
    assert min(stats.forward, stats.verify, stats.propose, stats.schedule) > 0
    stats.reset()
    assert stats.emitted == stats.steps == 0


def test_metrics_before_anything_happened(make_llm: MakeLLM) -> None:
    engine = make_llm().engine
    request = engine.add(PROMPT, ASK.params)[0]
    completion = engine.completion(request, 0)
    assert completion.metrics.acceptance_length == 0
    assert completion.finish_reason is None
    assert completion.logprobs == ()
    engine.abort(request)


@pytest.mark.parametrize("top", [0, 1, 4, 257, 400])
def test_logprobs(make_llm: MakeLLM, top: int) -> None:
    llm = make_llm("draft_model", 3)
    ask = with_params(ASK, logprobs=top, temperature=1.3, top_k=20)
    answer = run(llm, [ask])[0]
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids)
    for token, position in zip(answer.token_ids, answer.logprobs, strict=True):
        assert len(position) in (min(top, 257), min(top, 257) + 1)
        assert token in position
        ranked = sorted(position.items(), key=lambda item: item[1].rank)
        assert [p.rank for _, p in ranked[: min(top, 257)]] == list(range(1, min(top, 257) + 1))
        values = [p.logprob for _, p in ranked]
        assert values == sorted(values, reverse=True)
        assert (position[token].rank > top) == (len(position) > top)
        assert position[token].decoded_token == llm.engine.codec.token_text(token)
        if top >= 257:
            total = torch.tensor(values, dtype=torch.float64).exp().sum().item()
            assert total == pytest.approx(1, abs=1e-5), "log-probabilities are those before any filter"
    assert answer.cumulative_logprob == sum(
        position[token].logprob for token, position in zip(answer.token_ids, answer.logprobs, strict=True)
    )


def test_no_logprobs_unless_asked(make_llm: MakeLLM) -> None:
    answer = run(make_llm(), [with_params(ASK, logprobs=None)])[0]
    assert answer.logprobs is None
    assert answer.cumulative_logprob is None


# ------------------------------------------------------------------------------------------------- which seeds


def tokens_of(llm: LLM, params: list[SamplingParams], prompt: Any = PROMPT) -> list[tuple[int, ...]]:
    return [o.outputs[0].token_ids for o in llm.generate([prompt] * len(params), params)]


def test_without_a_seed_arrival_order_decides(make_llm: MakeLLM) -> None:
    free = SamplingParams(temperature=1.0, max_tokens=8)
    fixed = [SamplingParams(temperature=1.0, max_tokens=8, seed=arrival_seed(5, i)) for i in range(3)]
    first = tokens_of(make_llm(seed=5), [free] * 3)
    assert first == tokens_of(make_llm(seed=5), [free] * 3) == tokens_of(make_llm(), fixed)
    assert len(set(first)) == 3
    assert first == tokens_of(make_llm("ngram", 3, seed=5), [free] * 3)
    assert first != tokens_of(make_llm(seed=6), [free] * 3)


@pytest.mark.parametrize("seed", [0, 42, (1 << 64) - 1])
def test_unseeded_requests_repeat_no_completion_of_the_engine_s_seed(make_llm: MakeLLM, seed: int) -> None:
    """As `LLM(seed=42)` beside requests of `seed=42`, or a server's default beside `"seed": 0, "n": 5`."""
    free = SamplingParams(temperature=1.0, max_tokens=32, ignore_eos=True)
    llm = make_llm(seed=seed % (1 << 63))
    unseeded = tokens_of(llm, [free] * 5)
    seeded = llm.generate(PROMPT, replace(free, seed=seed % (1 << 63), n=5))[0]
    assert not {*unseeded} & {c.token_ids for c in seeded.outputs}
    assert not {arrival_seed(seed, i) for i in range(1000)} & {mix(seed, i) for i in range(1000)}


def test_a_refused_request_does_not_shift_the_others(make_llm: MakeLLM) -> None:
    free = SamplingParams(temperature=1.0, max_tokens=8)
    good = make_llm().generate([PROMPT, PROMPT, PROMPT], free)
    mixed = make_llm().generate([PROMPT, [], PROMPT], free)
    assert mixed[1].error is not None
    assert mixed[0].outputs[0].token_ids == good[0].outputs[0].token_ids
    assert mixed[2].outputs[0].token_ids == good[2].outputs[0].token_ids


def test_completions_of_one_request_have_seeds_of_their_own(make_llm: MakeLLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=8, seed=11, n=3)
    three = [c.token_ids for c in make_llm().generate(PROMPT, params)[0].outputs]
    ones = [SamplingParams(temperature=1.0, max_tokens=8, seed=mix(11, j)) for j in range(3)]
    assert three == tokens_of(make_llm(), ones)
    assert len(set(three)) == 3


@pytest.mark.parametrize(("a", "b"), [(-2, (1 << 64) - 2), (-(1 << 63), 1 << 63), (0, 0)])
def test_seeds_are_64_bits(make_llm: MakeLLM, a: int, b: int) -> None:
    params = [SamplingParams(temperature=1.0, max_tokens=8, seed=seed) for seed in (a, b)]
    first, second = tokens_of(make_llm(), params)
    assert first == second


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 1000))
def test_mix(seed: int, index: int) -> None:
    assert mix(seed, 0) == seed
    assert 0 <= mix(seed, index) < 1 << 64
    assert index == 0 or mix(seed, index) != seed
    assert len({mix(seed, i) for i in range(50)}) == 50


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        ([], "empty"),
        ("", "empty"),
        ([1] * 128, "length is 128 tokens"),
        ([1] * 500, "length is 128 tokens"),
        ("x" * 300, "length is 128 tokens"),
        ([257], "257"),
        ([-1], "-1"),
        ([1, 1.5], "integer"),
        (["a"], "integer"),
        ([[1]], "integer"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_bad_prompts(make_llm: MakeLLM, prompt: Any, word: str) -> None:
    engine = make_llm().engine
    with pytest.raises(RequestError, match=word):
        engine.add(prompt, ASK.params)
    assert not engine.busy


def test_array_elements_are_token_ids(make_llm: MakeLLM) -> None:
    llm = make_llm()
    array = np.array(PROMPT, dtype=np.int32)
    assert run(llm, [Ask(array, ASK.params)])[0].token_ids == run(llm, [ASK])[0].token_ids


def test_counters(make_llm: MakeLLM) -> None:
    """A step emits for every request whose gap it closes, and says so."""
    engine = make_llm(max_num_batched_tokens=16).engine
    requests = [engine.add(PROMPT[:10], ASK.params)[0] for _ in range(2)]
    assert engine.step() == requests[:1]
    assert engine.step() == requests
    assert Counter(len(r.output_tokens) for r in requests) == {1: 1, 2: 1}
    for request in requests:
        engine.abort(request)
