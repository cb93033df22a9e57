"""Models with recurrent layers: the same tokens whatever happens, and states that nobody loses."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import recurrent
from asking import (
    Ask,
    accepted,
    assert_same,
    preempt_every_third_step,
    run,
)
from checkpoints import write_llama
from conftest import DTYPES
from crossing import crossed
from families import write_family
from pieces import random_tokens
from recurrent import FAMILIES, alone
from switching import any_choices, limited_drafts

from parlay import LLM, SamplingParams
from parlay.models.decoder_layer import DecoderLayer

NGRAM: dict[str, Any] = {"method": "ngram", "lengths": "fixed", "num_speculative_tokens": 5, "prompt_lookup_min": 1}
UNION: dict[str, Any] = {"method": "auto", "lengths": "fixed", "prompt_lookup_min": 1}
SUFFIX: dict[str, Any] = {"method": "suffix", "lengths": "fixed", "num_speculative_tokens": 6}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda name: write_family(tmp_path_factory.mktemp("models") / name, name, seed=2, calm=0.3))


asks = partial(recurrent.asks, period=9, repeats=1)


@cache
def plainly(path: Path, dtype: str) -> list[Any]:
    return alone(path, asks(), dtype)


def engine(path: Path, dtype: str = "float32", **options: Any) -> LLM:
    return LLM(str(path), dtype=dtype, max_model_len=256, **{"speculative_config": NGRAM, **options})


@crossed(name=FAMILIES, dtype=DTYPES)
def test_what_other_engines_get_wrong(
    model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
) -> None:
    """Drafts, none, drafts again, block boundaries in accepted paths, mixed batches.

    vLLM 39273, 40738, 52942 and 55504: the state that a step without drafts reads is not the accepted one. 53505: a
    copy at a block boundary. 43559, 43650 and 44296: prefix cache, and short convolutions after a rejected token.
    """
    limited_drafts(lambda step, request, usual: usual if (step + request) % 3 else 0)(monkeypatch)
    llm = engine(model(name), dtype, block_size=4, speculative_config=SUFFIX)
    counts = []
    for _ in range(3):  # from the second time on from the cache, with drafts that have been seen before
        found = run(llm, asks())
        assert_same(found, plainly(model(name), dtype))
        counts.append(accepted(found))
    assert counts[2] > 30


HOW = {"plain": None, "ngram": NGRAM, "suffix": SUFFIX, "union": UNION}


@crossed(name=(*FAMILIES, "olmohybrid"), how=tuple(HOW))
def test_same_tokens(model: Callable[[str], Path], name: str, how: str) -> None:
    """In chunks and in company, then from the cache, then preempted at every third step."""
    llm = engine(model(name), speculative_config=HOW[how], max_num_batched_tokens=24, block_size=8)
    expected = plainly(model(name), "float32")
    for meddle in (None, None, preempt_every_third_step()):
        assert_same(run(llm, asks(), meddle), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_trees(model: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """Of a draft model without recurrent layers."""
    draft: dict[str, Any] = {"method": "draft_model", "model": str(write_llama(tmp_path)), "lengths": "fixed"}
    llm = engine(model(name), speculative_config=draft | {"tree": {"width": 3, "depth": 3}}, block_size=4)
    found = run(llm, asks())
    assert_same(found, plainly(model(name), "float32"))
    assert accepted(found) > 0


@pytest.mark.parametrize("name", FAMILIES)
def test_lengths_chosen_at_random(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    any_choices(monkeypatch)
    llm = engine(model(name), speculative_config={"method": "auto", "prompt_lookup_min": 1}, block_size=4)
    for _ in range(2):
        assert_same(run(llm, asks()), plainly(model(name), "float32"))


@pytest.mark.usefixtures("forked_ranks")
@crossed(name=FAMILIES, split=("tensor_parallel_size", "pipeline_parallel_size"))
def test_ranks(model: Callable[[str], Path], name: str, split: str) -> None:
    llm = engine(model(name), **{split: 2}, max_num_batched_tokens=40)
    assert_same(run(llm, asks()), plainly(model(name), "float32"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tiny_pool(model: Callable[[str], Path], name: str) -> None:
    """Requests push each other out, of blocks and of slots."""
    llm = engine(model(name), num_blocks=40, block_size=8, max_num_seqs=3)
    found = run(llm, asks())
    assert_same(found, plainly(model(name), "float32"))
    assert llm.engine.memory.room.slots == 9


def test_a_step_that_fails_in_the_middle(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers before the failure have stored their states already; the step is repeated from those it began with."""
    calls, usual = 0, DecoderLayer.__call__

    def failing(self: DecoderLayer, *given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 40:
            raise MemoryError
        return usual(self, *given)

    path = model("qwen3_5")
    expected = plainly(path, "float32")
    llm = engine(path, max_num_batched_tokens=80)  # passes of more rows than are recorded run their layers each time
    monkeypatch.setattr(DecoderLayer, "__call__", failing)
    groups = [llm.engine.add(ask.prompt, ask.params) for ask in asks()]
    failed = 0
    while llm.engine.busy:
        try:
            llm.engine.step()
        except MemoryError:
            failed += 1
        llm.engine.check()
    found = [llm.engine.completion(request, 0) for group in groups for request in group]
    assert calls > 40
    unbroken = [i for i, one in enumerate(found) if one.finish_reason == "length"]
    assert len(unbroken) >= len(found) - 1
    assert_same([found[i] for i in unbroken], [expected[i] for i in unbroken])


def test_completions_of_a_prompt_begin_with_one_state(model: Callable[[str], Path]) -> None:
    params = SamplingParams(n=4, temperature=0.9, seed=3, max_tokens=20, ignore_eos=True)
    ask = [Ask(tuple(random_tokens(37)), params)]
    alone = engine(model("qwen3_5"), enable_prefix_caching=False, speculative_config=None)
    llm = engine(model("qwen3_5"), block_size=8)
    found = run(llm, ask)
    assert_same(found, run(alone, ask))
    assert [one.metrics.cached_tokens for one in found] == [0, 32, 32, 32]


def test_where_the_cache_goes_on(model: Callable[[str], Path]) -> None:
    """At the end of a prompt, in the middle of a long one, and at the end of an answer."""
    llm = LLM(str(model("lfm2")), dtype="float32", max_model_len=512, block_size=8, speculative_config=NGRAM)
    fresh = LLM(
        str(model("lfm2")), dtype="float32", max_model_len=512, enable_prefix_caching=False, speculative_config=None
    )
    given = SamplingParams(temperature=0.0, max_tokens=45, ignore_eos=True, logprobs=0)
    prompt = tuple(random_tokens(301))

    def cached(tokens: tuple[int, ...]) -> tuple[int, Any]:
        (found,), expected = run(llm, [Ask(tokens, given)]), run(fresh, [Ask(tokens, given)])
        assert_same([found], expected)
        return found.metrics.cached_tokens, found

    assert cached(prompt)[0] == 0
    hit, answer = cached(prompt)
    assert hit == 296
    assert cached((*prompt[:280], 5, 6, 7))[0] == 256  # another text from there on: every 256 tokens
    further, _ = cached((*prompt, *answer.token_ids, 3, 4))
    assert 301 + 45 - 16 <= further <= 301 + 45


def test_checkpoints_of_an_answer_replace_each_other(model: Callable[[str], Path]) -> None:
    llm = engine(model("lfm2"), block_size=4, max_num_seqs=2)
    run(llm, [Ask(tuple(random_tokens(9)), SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True))])
    states = llm.engine._states
    assert states is not None
    assert sum(name is not None for name in states.slots._hash) == 2  # of the prompt, and of the answer's end
