"""Streams over HTTP: what the front is handed and hands on grows with the answer, not with its square."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from serving import Live, engine_of, wait_for

from parlay import AsyncLLM, RequestOutput
from parlay.server.openai.answer import merge

ASKED = {"prompt": ["def fib(n):", "class Tree:"], "temperature": 0.5, "seed": 3, "n": 2, "max_tokens": 200}


class Counting:
    """An engine that counts the tokens and characters that it hands out."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self.tokens = self.characters = self.outputs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, *arguments: Any, **more: Any) -> AsyncIterator[RequestOutput]:
        async with aclosing(self._engine.generate(*arguments, **more)) as outputs:  # type: ignore[type-var]
            async for output in outputs:
                self.outputs += 1
                for one in output.outputs:
                    self.tokens += len(one.token_ids)
                    self.characters += len(one.text)
                yield output


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    with engine_of("tiny-code", speculative_config={"method": "ngram"}, max_model_len=512) as made:
        yield made


@pytest.mark.parametrize("more", [{}, {"return_sources": True, "return_token_ids": True}], ids=["text", "sources"])
def test_each_token_is_handed_on_once(engine: AsyncLLM, more: dict[str, Any]) -> None:
    counting = Counting(engine)
    with Live(counting) as live:
        whole = live.post("/v1/completions", {**ASKED, **more, "ignore_eos": True}).json()
        counting.tokens = counting.characters = counting.outputs = 0
        usage = {"include_usage": True}
        events = live.events("/v1/completions", **ASKED, **more, ignore_eos=True, stream_options=usage)
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 800
    texts, tokens, sources = ["", "", "", ""], [0] * 4, [""] * 4
    for choice in (choice for event in events for choice in event["choices"]):
        texts[choice["index"]] += choice["text"]
        tokens[choice["index"]] += len(choice.get("token_ids", ()))
        sources[choice["index"]] += "".join(text for text, _, part in choice.get("sources", ()) if part)
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert counting.outputs > 20, "it was no stream"
    assert counting.tokens == 800
    assert counting.characters == sum(map(len, texts))
    if more:
        assert tokens == [200] * 4
        assert sources == texts


def test_prompts_are_logged_with_the_whole_answer(engine: AsyncLLM) -> None:
    with Live(engine, log_prompts=True) as live:
        answer = live.post("/v1/completions", {**ASKED, "stream": True})
        assert answer.text.endswith("data: [DONE]\n\n")
        whole = live.post("/v1/completions", ASKED).json()
        wait_for(lambda: len(live.log) == 2)  # a request is logged after its last byte
        streamed, asked = live.log
    assert streamed["log"] == asked["log"]
    assert [text for one in asked["log"] for text in one["texts"]] == [c["text"] for c in whole["choices"]]


async def test_merging_leaves_nothing_out() -> None:
    """However slowly it is read; and no iterator runs ahead of its reader."""
    made = [0, 0, 0]

    async def numbers(of: int) -> AsyncIterator[int]:
        for number in range(20):
            made[of] += 1
            yield number

    seen: list[list[int]] = [[], [], []]
    async for of, number in merge([numbers(of) for of in range(3)]):
        seen[of].append(number)
        await asyncio.sleep(0)
        assert all(count <= len(had) + 2 for count, had in zip(made, seen, strict=True))
    assert seen == [list(range(20))] * 3


async def test_one_that_fails_ends_them_all() -> None:
    closed = []

    async def numbers(of: int) -> AsyncIterator[int]:
        try:
            while True:
                yield of
                await asyncio.sleep(0)
                if of == 1:
                    raise KeyError("one")
        finally:
            closed.append(of)

    with pytest.raises(KeyError, match="one"):
        async for _ in merge([numbers(of) for of in range(3)]):
            pass
    assert sorted(closed) == [0, 1, 2]
