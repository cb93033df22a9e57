"""Every sampling parameter end to end: what the oracle decodes from the model's own logits, with any proposer.

The oracle gets its logits through a processor of the user's own, and goes token by token from there.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from asking import Ask, accepted, assert_same, log_probs, run, with_params
from checkpoints import EOS, VOCAB
from conftest import MakeLLM, Pair, Plain
from numpy.typing import NDArray
from workload import LETTERS, PARAMETERS, PROMPTS, SHORT, with_parameters

from parlay import LLM, ConfigError, RequestError, SamplingParams
from parlay.sampling.seeds import mix

METHODS = ("ngram", "draft_model")
GUIDED = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator")
TEMPERATURES = (0.0, 0.7, 1.3)


@pytest.fixture(scope="module")
def target(models: dict[str, Pair]) -> Callable[[tuple[int, ...]], NDArray[np.float32]]:
    """The float32 target's logits after known tokens, unprocessed."""
    llm = LLM(str(models["float32"].target), max_model_len=128, speculative_config=None)
    rows: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def logits(known: tuple[int, ...]) -> NDArray[np.float32]:
        def keep(output: list[int], row: torch.Tensor) -> torch.Tensor:
            rows[known] = row.numpy().copy()
            return row

        if known not in rows:
            run(llm, [Ask(known, SamplingParams(max_tokens=1, logits_processors=[keep]))])
        return rows[known]

    return logits


@pytest.mark.parametrize("name", PARAMETERS)
def test_plain_decoding_is_the_oracles(make_llm: MakeLLM, target: Any, name: str) -> None:
    llm = make_llm()
    words = [s for word in PARAMETERS[name].get("bad_words", ()) for s in llm.engine.codec.spellings(word)]
    own = [ask for temperature in TEMPERATURES for ask in with_parameters(temperature, [name])]
    for ask, answer in zip(own, run(llm, own), strict=True):
        ends, seed = frozenset(ask.params.stop_token_ids), mix(ask.params.seed or 0, 0)
        expected = oracle.decode(target, ask.prompt, ask.params, seed, SHORT, ends, words, frozenset({EOS}))
        assert list(answer.token_ids) == expected


@pytest.mark.parametrize("name", PARAMETERS)
def test_each_parameter_changes_something(plain: Plain, name: str) -> None:
    own = [ask for temperature in TEMPERATURES for ask in with_parameters(temperature, [name])]
    without = [with_params(ask, **{key: getattr(SamplingParams(), key) for key in PARAMETERS[name]}) for ask in own]
    if name == "min_tokens":
        without = [with_params(ask, min_tokens=0) for ask in own]
    pairs = zip(plain("float32", own), plain("float32", without), strict=True)
    assert any(a.token_ids != b.token_ids for a, b in pairs)


@pytest.mark.parametrize("method", GUIDED)
def test_penalties_in_the_draft_help_to_guess(make_llm: MakeLLM, method: str) -> None:
    """A proposer's own rows are processed too: else it goes on to guess what the target may not repeat."""
    own = with_parameters(0.0, ["frequency", "repetition", "allowed", "bad words"])
    llm = make_llm(method, 4)
    guided = accepted(run(llm, own))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parlay.sampling.processors.ProcessorChain.process_draft", lambda *args: None)
        blind = accepted(run(llm, own))
    assert guided > blind


# --------------------------------------------------------------------------------------- the user's own functions


class Witness:
    """Notes what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, output: list[int], logits: torch.Tensor) -> torch.Tensor:
        self.calls.append(tuple(output))
        return logits


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"stop": ("cc", "dd", "ee"), "allowed_token_ids": LETTERS[:6]},
        {"stop_token_ids": tuple(range(0, VOCAB, 9))},
    ],
)
@pytest.mark.parametrize("method", [None, *METHODS])
def test_a_function_is_called_once_for_each_emitted_token(
    make_llm: MakeLLM, method: str | None, more: dict[str, Any]
) -> None:
    witnesses = [Witness() for _ in range(6)]
    own = [
        Ask(prompt, SamplingParams(temperature=t, seed=1, max_tokens=SHORT, logits_processors=[witness], **more))
        for witness, (prompt, t) in zip(witnesses, itertools.product(PROMPTS, TEMPERATURES), strict=True)
    ]

    def meddle(engine: Any, requests: list[Any]) -> None:
        if len(requests[0].sources) == 3:
            for request in [r for r in requests if r.table.blocks and r.finish_reason is None]:
                engine.preempt(request)

    answers = run(make_llm(method, 5), own, meddle)
    for witness, answer in zip(witnesses, answers, strict=True):
        assert witness.calls == [answer.token_ids[:i] for i in range(len(answer.token_ids))]


def fail_after(count: int) -> Any:
    def fail(output: list[int], logits: torch.Tensor) -> torch.Tensor:
        if len(output) == count:
            raise KeyError("nobody knows")
        return logits

    return fail


@pytest.mark.parametrize("method", [None, *METHODS])
@pytest.mark.parametrize("at", [0, 4])
def test_a_function_that_fails_costs_the_others_nothing(make_llm: MakeLLM, method: str | None, at: int) -> None:
    llm = make_llm(method, 3)
    good = SamplingParams(temperature=0, max_tokens=12)
    bad = SamplingParams(temperature=0, max_tokens=12, logits_processors=[fail_after(at)], n=2)
    prompts = [list(PROMPTS[0])] * 3
    first, failed, last = llm.generate(prompts, [good, bad, good])
    [alone] = llm.generate(prompts[0], good)
    assert first.outputs[0].token_ids == last.outputs[0].token_ids == alone.outputs[0].token_ids
    assert failed.outputs == ()
    assert "the logits processor fail raised KeyError: 'nobody knows'" in str(failed.error)
    with pytest.raises(RequestError, match="raised KeyError"):
        llm.generate(prompts[0], bad)
    with pytest.raises(RequestError, match="raised KeyError"):
        list(llm.stream(prompts[0], bad))
    assert not llm.engine.busy


@pytest.mark.parametrize(
    "returned",
    [
        lambda logits: None,
        lambda logits: logits[:5],
        lambda logits: logits.to_sparse(),
        lambda logits: logits.fill_(-math.inf),
        lambda logits: logits * math.nan,
    ],
)
def test_a_function_that_returns_something_else(make_llm: MakeLLM, returned: Any) -> None:
    def odd(output: list[int], logits: torch.Tensor) -> Any:
        return returned(logits)

    llm = make_llm("ngram", 3)
    good, bad = SamplingParams(max_tokens=4), SamplingParams(max_tokens=4, logits_processors=[odd])
    failed, other = llm.generate([list(PROMPTS[0])] * 2, [bad, good])
    assert "the logits processor odd" in str(failed.error)
    assert len(other.outputs[0].token_ids) == 4


# ------------------------------------------------------------------------------------------------ log-probabilities


@pytest.mark.parametrize("method", [None, *METHODS])
def test_prompt_logprobs(make_llm: MakeLLM, target: Any, method: str | None) -> None:
    """Those of the target's own logits, whatever chunks, caches and preemptions; one for each token but the first."""
    llm = make_llm(method, 3, max_num_batched_tokens=7, block_size=4)
    prompt = PROMPTS[1]
    expected: list[Any] = [None]
    for end in range(1, len(prompt)):
        row = log_probs(target(prompt[:end]))
        expected.append((prompt[end], row[prompt[end]].item(), row.max().item()))
    params = SamplingParams(max_tokens=2, prompt_logprobs=1, n=2, logit_bias={1: 5.0}, seed=0)
    for preempted_at in (None, 2, 1):
        requests = llm.engine.add(prompt, params)
        for step in itertools.count():
            if not llm.engine.busy:
                break
            if step == preempted_at and requests[0].table.blocks:
                llm.engine.preempt(requests[0])
            llm.engine.step()
        assert requests[0].counts.cached_tokens == 0, "what is cached has no logits"
        assert requests[0].counts.preemptions == (preempted_at is not None)
        found = llm.engine.prompt_logprobs(requests[0])
        assert found is not None
        assert [
            p and (token, p[token].logprob, max(q.logprob for q in p.values()))
            for token, p in zip(prompt, found, strict=True)
        ] == expected
        assert all(p is None or any(q.rank == 1 for q in p.values()) for p in found)
    [output] = llm.generate(list(prompt), params)
    assert output.prompt_logprobs == found
    assert llm.generate(list(prompt), SamplingParams(max_tokens=1))[0].prompt_logprobs is None
    assert llm.generate([5], params)[0].prompt_logprobs == (None,)


@pytest.mark.parametrize("method", [None, *METHODS])
def test_processed_logprobs(make_llm: MakeLLM, target: Any, method: str | None) -> None:
    """Of what a token is drawn from; at temperature 0 of what the masks and penalties left."""
    llm = make_llm(method, 3, logprobs_mode="processed_logprobs")
    for ask in [a for t in TEMPERATURES for a in with_parameters(t, ["many", "frequency"])]:
        [answer] = run(llm, [ask])
        p = ask.params
        for i, (token, entry) in enumerate(zip(answer.token_ids, answer.logprobs or (), strict=True)):
            output = list(answer.token_ids[:i])
            row = oracle.edit(target(ask.prompt + tuple(output)), p, ask.prompt, output, (), frozenset({EOS}))
            if p.temperature:
                row = oracle.process_row(row, p.temperature, p.min_p, p.top_k, p.top_p).astype(np.float32)
            expected = log_probs(row)
            assert entry[token].logprob == expected[token].item()
            assert max(e.logprob for e in entry.values()) == expected.max().item()


def test_an_unknown_logprobs_mode(models: dict[str, Pair]) -> None:
    with pytest.raises(ConfigError, match="logprobs_mode"):
        LLM(str(models["float32"].target), logprobs_mode="cooked")


# ------------------------------------------------------------------------------------------------------- best_of


@pytest.mark.parametrize("method", [None, *METHODS])
def test_best_of(make_llm: MakeLLM, method: str | None) -> None:
    llm = make_llm(method, 3)
    prompt, params = list(PROMPTS[1]), SamplingParams(n=7, seed=4, max_tokens=6, temperature=1.3, logprobs=0)
    every = llm.generate(prompt, params)[0].outputs
    ranked = sorted(every, key=lambda c: -(c.cumulative_logprob or 0.0))
    assert [c.token_ids for c in ranked[:3]] != [c.token_ids for c in every[:3]]
    for logprobs in (None, 2):
        own = SamplingParams(n=3, best_of=7, seed=4, max_tokens=6, temperature=1.3, logprobs=logprobs)
        best = llm.generate(prompt, own)[0].outputs
        assert [c.token_ids for c in best] == [c.token_ids for c in ranked[:3]]
        assert [c.index for c in best] == [0, 1, 2]
        assert all((c.logprobs is None) == (logprobs is None) for c in best)
    with pytest.raises(RequestError, match="best_of above n cannot be streamed"):
        llm.stream(prompt, own)


def test_best_of_n_is_n(make_llm: MakeLLM) -> None:
    llm = make_llm()
    every, best = (
        llm.generate([5, 6], SamplingParams(n=3, best_of=best_of, seed=4, max_tokens=6))[0].outputs
        for best_of in (None, 3)
    )
    assert [c.token_ids for c in every] == [c.token_ids for c in best]


# ---------------------------------------------------------------------------------------------- stops and min_tokens


def words(text: str) -> Iterator[str]:
    yield from (text[i : i + 2] for i in range(len(text) - 1))


@pytest.mark.parametrize("method", [None, *METHODS])
def test_stop_strings_and_min_tokens(make_llm: MakeLLM, plain: Plain, method: str | None) -> None:
    base = Ask(PROMPTS[0], SamplingParams(temperature=0.7, seed=2, max_tokens=20, allowed_token_ids=LETTERS))
    whole = plain("float32", [base])[0]
    assert len(whole.text) == 20
    llm = make_llm(method, 4)
    for at, stop in enumerate(words(whole.text)):
        if at % 3:
            continue
        for least in (0, 6, 19):
            ends = [i + 2 for i in range(19) if whole.text[i : i + 2] == stop and i + 2 > least]
            for include in (False, True):
                ask = with_params(base, stop=stop, min_tokens=least, include_stop_str_in_output=include)
                [answer] = run(llm, [ask])
                if not ends:
                    assert (answer.text, answer.stop_reason) == (whole.text, None)
                    continue
                assert answer.text == whole.text[: ends[0] - (0 if include else 2)]
                assert (answer.token_ids, answer.stop_reason) == (whole.token_ids[: ends[0]], stop)


def test_a_stop_token_in_the_text(make_llm: MakeLLM, plain: Plain) -> None:
    base = Ask(PROMPTS[0], SamplingParams(temperature=0.7, seed=2, max_tokens=20, allowed_token_ids=LETTERS))
    whole = plain("float32", [base])[0]
    stops = (whole.token_ids[7],)
    first = whole.token_ids.index(stops[0])
    for include in (False, True):
        ask = with_params(base, stop_token_ids=stops, include_stop_str_in_output=include)
        [answer] = run(make_llm("ngram", 3), [ask])
        assert answer.text == whole.text[: first + include]


@pytest.mark.parametrize("top_k", [1 << 63, 1 << 70])
def test_a_top_k_beyond_every_number_keeps_all(make_llm: MakeLLM, top_k: int) -> None:
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=8)
    ask, all_kept = Ask(PROMPTS[0], dataclasses.replace(params, top_k=top_k)), Ask(PROMPTS[0], params)
    assert_same(run(make_llm("ngram", 3), [ask]), run(make_llm(), [all_kept]))


def test_ids_beyond_the_vocabulary(make_llm: MakeLLM) -> None:
    llm = make_llm()
    for params in ({"allowed_token_ids": [1, VOCAB]}, {"logit_bias": {VOCAB: 1.0}}, {"stop_token_ids": [VOCAB]}):
        with pytest.raises(RequestError, match=f"{next(iter(params))} holds 257, beyond the vocabulary of 257"):
            llm.generate([1], SamplingParams(**params))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="leave no token"):
        llm.generate([1], SamplingParams(allowed_token_ids=[EOS], min_tokens=1))
    assert not llm.engine.busy
