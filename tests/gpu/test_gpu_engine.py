"""On a GPU: the same tokens from every method, batch, chunk and cache; `make gpu` runs this."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

from parlay import LLM, SamplingParams
from parlay.errors import ConfigError

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

PROMPTS = [
    "def fibonacci(n):\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "import os\n\ndef read(path):\n    with open(path) as file:\n        return file.read()\n\n" * 12,
    "x",
    "for i in range(10):\n    print(i)\nfor i in range(10):\n    print(i)\n",
]
KINDS = [
    SamplingParams(temperature=0.0, max_tokens=48),
    SamplingParams(temperature=0.8, seed=3, max_tokens=48),
    SamplingParams(temperature=1.0, seed=4, top_p=0.9, top_k=40, max_tokens=48),
    SamplingParams(temperature=0.7, seed=5, min_p=0.05, max_tokens=48, logprobs=2),
    SamplingParams(temperature=0.9, seed=6, repetition_penalty=1.2, max_tokens=48),
]
METHODS: dict[str, dict[str, Any] | None] = {
    "auto": {"method": "auto"},
    **{
        name: {"method": name, "lengths": "fixed", "num_speculative_tokens": 4}
        for name in ("ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator")
    },
    "tree": {"method": "eagle3", "lengths": "fixed", "num_speculative_tokens": 12, "tree": {"width": 4, "depth": 4}},
    "rejection": {"method": "draft_model", "verification": "rejection"},
}


def engine(**options: Any) -> LLM:
    return LLM("tiny-code", device="cuda", max_model_len=1024, **{"speculative_config": None, **options})


def tokens(llm: LLM, *, alone: bool = False) -> list[tuple[int, ...]]:
    pairs = [[(prompt, own)] for prompt, own in zip(PROMPTS, KINDS, strict=True)]
    groups = pairs if alone else [[one for pair in pairs for one in pair]]
    made = [llm.generate([p for p, _ in group], [k for _, k in group]) for group in groups]
    return [tuple(answer.outputs[0].token_ids) for group in made for answer in group]


@cache
def plain() -> list[tuple[int, ...]]:
    return tokens(engine(enable_prefix_caching=False), alone=True)


@pytest.fixture
def make() -> Iterator[Callable[..., LLM]]:
    made: list[LLM] = []

    def one(**options: Any) -> LLM:
        made.append(engine(**options))
        return made[-1]

    yield one
    for llm in made:
        llm.engine.close()


@pytest.mark.parametrize("method", METHODS)
def test_every_method(make: Callable[..., LLM], method: str) -> None:
    llm = make(speculative_config=METHODS[method])
    for _ in range(2):  # from the second time on from the cache, and from recordings
        found = tokens(llm)
        if method == "rejection":  # which keeps the distribution, not the tokens
            assert [len(own) for own in found] == [len(own) for own in plain()]
            assert found[0] == plain()[0]
        else:
            assert found == plain()


def test_together(make: Callable[..., LLM]) -> None:
    assert tokens(make()) == plain()


def test_in_chunks(make: Callable[..., LLM]) -> None:
    assert tokens(make(max_num_batched_tokens=32)) == plain()


def test_of_quantised_weights(make: Callable[..., LLM]) -> None:
    """Blocks become numbers on a GPU: the tokens of a quantised model are those of its dequantised one."""
    assert tokens(make(quantization="int8")) == tokens(make(quantization="int8"), alone=True)


def test_of_a_cache_in_eight_bits(make: Callable[..., LLM]) -> None:
    options = {"kv_cache_dtype": "int8"}
    expected = tokens(make(**options), alone=True)
    assert expected != plain()
    for more in ({}, {"max_num_batched_tokens": 32}, {"speculative_config": METHODS["eagle3"]}):
        assert tokens(make(**options, **more)) == expected


def test_nearly_the_tokens_of_a_processor() -> None:
    """Another device sums in another order; a text may part where two tokens are nearly alike, and not at once."""
    try:
        llm = LLM("tiny-code", max_model_len=1024, speculative_config=None)
    except ConfigError as error:  # torch may be older than what is tested on processors
        pytest.skip(str(error))
    for own, other in zip(tokens(llm, alone=True), plain(), strict=True):
        assert own[:4] == other[:4]
    llm.engine.close()
