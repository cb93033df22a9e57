"""Many random requests through small, crowded engines; each answer is what plain decoding gives.

The suite draws the same ones in every run, `make soak` others; the seed is printed, `PARLAY_TEST_SEED` repeats a run.
"""

import random
import string
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import essence, random_seed
from conftest import DTYPES, MakeLLM, Pair, drafts, proposer_options
from switching import choose_at_random, every_method
from vocabularies import with_merges

from parlay import LLM, CompletionOutput, RequestError, SamplingParams
from parlay.engine.request import Request
from parlay.proposers.select import proposers, weightless

LENGTH = 96
METHODS = [name for name in proposers.names() if drafts(name)]
TEMPERATURES = (0.0, 0.0, 0.3, 0.7, 1.0, 1.3)
BAD_WORDS = [(a, b) for a in string.ascii_letters for b in string.ascii_letters]
random.Random(1).shuffle(BAD_WORDS)


def _prompts(rng: random.Random) -> Iterator[list[int]]:
    """Yield prompts that begin alike, repeat themselves, or neither; now and then one that cannot be served."""
    stems = [[rng.randrange(257) for _ in range(40)] for _ in range(4)]
    while True:
        kind = rng.random()
        if kind < 0.4:
            yield rng.choice(stems)[: rng.randint(1, 40)] + [rng.randrange(256)] * rng.randint(0, 3)
        elif kind < 0.7:
            yield ([rng.randrange(256) for _ in range(rng.randint(1, 7))] * 12)[: rng.randint(1, 60)]
        elif kind < 0.98:
            yield [rng.randrange(256) for _ in range(rng.randint(1, 70))]
        else:
            yield rng.choice([[], [257], [1] * LENGTH, [-1]])


def _lean(output: list[int], logits: torch.Tensor) -> torch.Tensor:
    logits[(sum(output) * 7 + len(output)) % 257] += 4
    return logits


def _tilt(output: list[int], logits: torch.Tensor) -> torch.Tensor:
    return logits + torch.arange(257) * (len(output) % 3) / 256


def _params(rng: random.Random) -> SamplingParams:
    def maybe(share: float, value: Any, default: Any) -> Any:
        return value if rng.random() < share else default

    def some(share: float, most: int) -> list[int]:
        return rng.sample(range(257), rng.randint(1, most)) if rng.random() < share else []

    override = rng.choice([{"enabled": False}, {"num_speculative_tokens": rng.randint(1, 9)}])
    n, temperature, max_tokens = maybe(0.1, rng.randint(2, 3), 1), rng.choice(TEMPERATURES), rng.randint(1, 30)
    more: dict[str, Any] = {}
    if rng.random() < 0.5:  # the others take the way of requests that leave logits alone
        more = {
            "presence_penalty": maybe(0.2, rng.uniform(-2, 2), 0.0),
            "frequency_penalty": maybe(0.2, rng.uniform(-2, 2), 0.0),
            "repetition_penalty": maybe(0.3, rng.uniform(0.5, 2), 1.0),
            "logit_bias": {token: rng.uniform(-9, 9) for token in some(0.2, 20)},
            "allowed_token_ids": some(0.2, 256) or None,
            "bad_words": [a + maybe(0.5, b, "") for a, b in maybe(0.3, BAD_WORDS[: rng.randint(1, 400)], [])],
            "min_tokens": maybe(0.2, rng.randint(1, max_tokens), 0),
            "logits_processors": maybe(0.15, rng.choice([(_lean,), (_tilt, _lean)]), ()),
        }
    return SamplingParams(
        **more,
        n=n,
        best_of=maybe(0.1, n + 1, None) if temperature else None,
        temperature=temperature,
        top_p=maybe(0.2, rng.uniform(0.05, 1), 1.0),
        top_k=maybe(0.2, rng.randint(1, 300), rng.choice([0, -1])),
        min_p=maybe(0.15, rng.random() ** 3, 0.0),
        seed=maybe(0.7, rng.getrandbits(64), None),
        max_tokens=maybe(0.95, max_tokens, None),
        stop=tuple(rng.choices(string.printable, k=maybe(0.2, 4, 0))),
        stop_token_ids=tuple(rng.sample(range(257), maybe(0.3, 12, 0))),
        include_stop_str_in_output=rng.random() < 0.5,
        ignore_eos=rng.random() < 0.5,
        logprobs=rng.choice([None, None, 0, 1, 5]),
        prompt_logprobs=rng.choice([None] * 12 + [0, 3]),
        speculative=maybe(0.2, override, None),
    )


def _foreseen(rng: random.Random, params: SamplingParams, answers: list[CompletionOutput]) -> SamplingParams:
    """Return parameters that now and then predict what plain decoding said, with a slip or two."""
    if not answers or rng.random() < 0.8:
        return params
    text = list(rng.choice(answers).token_ids)
    for _ in range(rng.randint(0, 2)):
        place = rng.randint(0, len(text))
        text[place : place + rng.randint(0, 3)] = rng.sample(range(257), rng.randint(0, 3))
    return replace(params, prediction=text[:LENGTH], return_rejected=rng.random() < 0.5)


def _check_random_requests(
    make_llm: MakeLLM,
    count: int,
    method: str,
    dtype: str,
    speculative: dict[str, Any] | list[dict[str, Any]] | None = None,
    ranks: int = 1,
    stages: int = 1,
) -> None:
    """Compare random requests with plain decoding; `speculative` is how they speculate if not by `method` alone."""
    seed = random_seed()
    rng = random.Random(f"{seed} {method} {dtype}")
    prompts = _prompts(rng)
    asks = [(next(prompts), _params(rng)) for _ in range(count)]

    mode = rng.choice(["raw_logprobs", "processed_logprobs"])
    plain = make_llm(
        dtype=dtype, logprobs_mode=mode, max_model_len=LENGTH, max_num_seqs=64, enable_prefix_caching=False
    )
    expected = _complete(plain, asks)

    size = rng.choice([1, 4, 4, 8, 16])
    options = {
        "logprobs_mode": mode,
        "block_size": size,
        "num_blocks": -(-LENGTH // size) + rng.randint(0, LENGTH // size),
        "max_num_batched_tokens": rng.choice([16, 48, 200]),
        "max_prefill_slowdown": rng.choice([None, 2.0]),
        "max_num_seqs": rng.randint(4, 12),
        "tensor_parallel_size": ranks,
        "pipeline_parallel_size": stages,
    }
    k = rng.randint(1, 8)
    print(f"{method} k={k} {options}")
    asks = [
        (prompt, _foreseen(rng, params, answers))
        for (prompt, params), (answers, _) in zip(asks, expected, strict=True)
    ]
    if speculative is None:
        llm = make_llm(method, k, dtype=dtype, max_model_len=LENGTH, **options)
    else:
        llm = make_llm(speculative_config=speculative, dtype=dtype, max_model_len=LENGTH, **options)
    found = _complete(llm, asks, rng)

    prompts_scored = 0
    aborted = preempted = cached = drafts_accepted = foreseen = 0
    for i, ((ours, score), (theirs, expected_score)) in enumerate(zip(found, expected, strict=True)):
        where = f"request {i} with PARLAY_TEST_SEED={seed}: {asks[i]}"
        assert score == (score and expected_score), where
        prompts_scored += score is not None
        assert len(ours) == len(theirs), where
        for a, b in zip(ours, theirs, strict=True):
            if a.finish_reason == "abort":
                aborted += 1
                assert a.token_ids == b.token_ids[: len(a.token_ids)], where
                assert a.logprobs is None or a.logprobs == b.logprobs[: len(a.logprobs)], where
            else:
                assert essence(a) == essence(b), where
            preempted += a.metrics.preemptions
            cached += a.metrics.cached_tokens
            drafts_accepted += a.metrics.accepted
            foreseen += a.sources.count("prediction")
            assert a.rejected is None or len(a.rejected) == a.metrics.drafted - a.metrics.accepted, where
    assert llm.engine._pool.available == options["num_blocks"]
    assert drafts_accepted > count / 50
    assert foreseen > count / 50
    assert aborted > count / 50
    assert preempted > count / 50
    assert cached > count / 50 or size == 16
    assert prompts_scored > count / 50


def _complete(
    llm: LLM, asks: list[tuple[list[int], SamplingParams]], rng: random.Random | None = None
) -> list[tuple[list[CompletionOutput], Any]]:
    """Answer all requests, and score prompts.

    With `rng` they trickle in, and some are aborted or preempted on the way.
    """
    engine = llm.engine
    groups: list[list[Request]] = []
    arrivals = iter(asks)
    exhausted = False
    while not exhausted or engine.busy:
        for _ in range(len(asks) if rng is None else rng.randint(0, 3)):
            ask = next(arrivals, None)
            if ask is None:
                exhausted = True
                break
            tenant, priority = ("", 0) if rng is None else (rng.choice(["", "other"]), rng.randint(0, 1))
            try:
                groups.append(engine.add(*ask, tenant=tenant, priority=priority))
            except RequestError:
                groups.append([])
        if rng is not None:
            live = list(engine._scheduler.requests)
            if live and rng.random() < 0.1:
                engine.abort(rng.choice(live))
            running = [r for r in live if r.table.blocks and r.finish_reason is None]
            if running and rng.random() < 0.05:
                engine.preempt(rng.choice(running))
        engine.step()
        if rng is not None:
            engine.check()
    return [
        ([engine.completion(r, j) for j, r in enumerate(group)], engine.prompt_logprobs(group[0]) if group else None)
        for group in groups
    ]


@pytest.mark.parametrize(("method", "dtype"), [("ngram", "float32"), ("draft_model", "bfloat16")])
def test_some_random_requests(make_llm: MakeLLM, method: str, dtype: str) -> None:
    _check_random_requests(make_llm, 120, method, dtype)


@pytest.mark.parametrize(
    "split", [{"ranks": 2}, {"stages": 2, "ranks": 2}, pytest.param({"stages": 2}, marks=pytest.mark.soak)]
)
@pytest.mark.usefixtures("forked_ranks")
def test_some_random_requests_on_several_ranks(make_llm: MakeLLM, split: dict[str, int]) -> None:
    _check_random_requests(make_llm, 40, "eagle3", "bfloat16", **split)


@pytest.mark.soak
@pytest.mark.parametrize(
    "split", [{"ranks": 2}, {"ranks": 3}, {"ranks": 4}, {"stages": 3}, {"stages": 2, "ranks": 2}]
)
@pytest.mark.parametrize("method", [name for name in METHODS if name != "self"])
def test_ten_thousand_random_requests_on_several_ranks(make_llm: MakeLLM, method: str, split: dict[str, int]) -> None:
    _check_random_requests(make_llm, 10_000, method, DTYPES[sum(split.values()) % 2], **split)


@pytest.mark.soak
@pytest.mark.parametrize(("ranks", "drafters"), [(2, 2), (4, 2), (3, 3)])
@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("self", *weightless())])
def test_two_thousand_random_requests_drafting_on_several_ranks(
    make_llm: MakeLLM, models: dict[str, Pair], method: str, ranks: int, drafters: int
) -> None:
    dtype = DTYPES[drafters % 2]
    config = {"method": method, "num_speculative_tokens": 5, **proposer_options(method, models[dtype])}
    config["draft_tensor_parallel_size"] = drafters
    _check_random_requests(make_llm, 2_000, method, dtype, config, ranks)


def test_some_random_requests_of_a_draft_model_with_another_vocabulary(
    make_llm: MakeLLM, models: dict[str, Pair], tmp_path: Path
) -> None:
    _check_another_vocabulary(make_llm, models, tmp_path, 60, "text", "float32")


@pytest.mark.soak
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("switching", [False, True], ids=["alone", "switching"])
@pytest.mark.parametrize("way", ["intersection", "text"])
def test_ten_thousand_random_requests_of_a_draft_model_with_another_vocabulary(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    switching: bool,
    dtype: str,
) -> None:
    if switching:
        choose_at_random(monkeypatch, random.Random(random_seed()))
    _check_another_vocabulary(make_llm, models, tmp_path, 10_000, way, dtype, switching=switching)


def _check_another_vocabulary(
    make_llm: MakeLLM,
    models: dict[str, Pair],
    folder: Path,
    count: int,
    way: str,
    dtype: str,
    *,
    switching: bool = False,
) -> None:
    draft = with_merges(models[dtype].draft, folder / "draft")
    own = {"method": "draft_model", "model": str(draft), "vocabulary": way}
    every = every_method(models[dtype], lengths="goodput")
    config: Any = [*every, own] if switching else {**own, "num_speculative_tokens": 5}
    _check_random_requests(make_llm, count, "draft_model", dtype, config)


@pytest.mark.soak
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
def test_ten_thousand_random_requests(make_llm: MakeLLM, method: str, dtype: str) -> None:
    _check_random_requests(make_llm, 10_000, method, dtype)


@pytest.mark.soak
@pytest.mark.parametrize("method", [None, *(name for name in METHODS if name not in weightless())])
def test_ten_thousand_random_requests_switching_at_random(
    make_llm: MakeLLM, models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, method: str | None
) -> None:
    """Several methods, whose lengths a controller chooses at random in every step."""
    choose_at_random(monkeypatch, random.Random(random_seed()))
    config = every_method(models["float32"], method, lengths="goodput")
    _check_random_requests(make_llm, 10_000, str(method), "float32", config)


@pytest.mark.soak
@pytest.mark.parametrize("split", [{"ranks": 3}, {"stages": 3}, {"stages": 2, "ranks": 2}])
def test_ten_thousand_random_requests_switching_at_random_on_several_ranks(
    make_llm: MakeLLM, models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, split: dict[str, int]
) -> None:
    choose_at_random(monkeypatch, random.Random(random_seed()))
    config = every_method(models["float32"], "eagle3", lengths="goodput")
    _check_random_requests(make_llm, 10_000, "eagle3", "float32", config, **split)
