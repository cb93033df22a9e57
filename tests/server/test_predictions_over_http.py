"""Predicted outputs and rejected draft tokens over HTTP."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import openai
import pytest
from serving import Live, live_and_guessing

from parlay import LLM, AsyncLLM, SamplingParams

PROMPT = "def fibonacci(n):\n    if n < 2:\n        return n\n    return"
MESSAGES = [{"role": "user", "content": "Say something."}]
ASKED = {"max_tokens": 60, "temperature": 0.8, "seed": 5}
USAGE = {"include_usage": True}
BOTH = {"return_sources": True, "return_rejected": True}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_and_guessing(max_prompt_tokens=200) as server:
        yield server


@pytest.fixture(scope="module")
def text() -> str:
    """What plain decoding answers."""
    return LLM("tiny-code", speculative_config=None).generate(PROMPT, SamplingParams(**ASKED))[0].outputs[0].text


def details(body: Any) -> tuple[int, int]:
    found = body["usage"]["completion_tokens_details"]
    return found["accepted_prediction_tokens"], found["rejected_prediction_tokens"]


@pytest.mark.parametrize("parts", [False, True])
def test_a_prediction_makes_it_fast_and_changes_nothing(live: Live, text: str, parts: bool) -> None:
    half = len(text) // 2
    content = [{"type": "text", "text": text[:half]}, {"type": "text", "text": text[half:]}] if parts else text
    prediction = {"type": "content", "content": content}
    body = live.post("/v1/completions", {"prompt": PROMPT, **ASKED, "prediction": prediction, **BOTH}).json()
    (choice,) = body["choices"]
    assert choice["text"] == text
    accepted, rejected = details(body)
    assert accepted > 30
    assert rejected < 20
    assert "prediction" in {who for _, who, _ in choice["sources"]}
    asked = {"prompt": PROMPT, **ASKED, "prediction": prediction}
    streamed = live.events("/v1/completions", **asked, stream_options=USAGE)
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed[:-1]) == text
    assert details(streamed[-1]) == (accepted, rejected)
    assert len(streamed) - 1 <= 60 - accepted


def test_with_openais_own_client(live: Live) -> None:
    asked: dict[str, Any] = {"model": "tiny-code", "messages": MESSAGES, **ASKED}
    with openai.OpenAI(base_url=live.url + "/v1", api_key="any", max_retries=0, timeout=20) as client:
        expected = client.chat.completions.create(**asked).choices[0].message.content
        made = client.chat.completions.create(**asked, prediction={"type": "content", "content": expected or ""})
    assert made.choices[0].message.content == expected
    assert made.usage is not None
    assert made.usage.completion_tokens_details is not None
    assert (made.usage.completion_tokens_details.accepted_prediction_tokens or 0) > 30


def test_where_it_does_nothing(live: Live, text: str) -> None:
    for more in (
        {"prediction": {"type": "content", "content": text}, "speculative": {"enabled": False}},
        {"prediction": {"type": "content", "content": text}, "speculative": {"method": "none"}},
        {"prediction": {"type": "content", "content": ""}, "speculative": {"enabled": False}},
    ):
        body = live.post("/v1/completions", {"prompt": PROMPT, **ASKED, **more}).json()
        assert body["choices"][0]["text"] == text
        assert details(body) == (0, 0)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("prediction", "words"),
    [
        ({"content": "x"}, "`type`"),
        ("text", "object"),
        ({"type": "image", "content": "x"}, "image"),
        ({"type": "content"}, "`content`"),
        ({"type": "content", "content": 7}, "prediction.content"),
        ({"type": "content", "content": ["x"]}, "prediction.content"),
        ({"type": "content", "content": [{"type": "text"}]}, "`text`"),
        ({"type": "content", "content": "x", "length": 3}, "`length`"),
        ({"type": "content", "content": "x = 1\n" * 200}, "the limit is 200; shorten it"),
    ],
)
def test_wrong_predictions_are_named(live: Live, path: str, prediction: Any, words: str) -> None:
    for stream in (False, True):
        answer = live.post(path, {"prediction": prediction, "stream": stream, **_prompt(path)})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert words in error["message"]
        assert error["param"] == "prediction"


def _prompt(path: str) -> dict[str, Any]:
    return {"messages": MESSAGES} if "chat" in path else {"prompt": PROMPT}


def test_a_prediction_beyond_the_context_is_named() -> None:
    with Live(AsyncLLM("tiny-code", max_model_len=64)) as server:
        body = {"prompt": "x", "prediction": {"type": "content", "content": "x = 1\n" * 100}}
        error = server.post("/v1/completions", body).json()["error"]
        asyncio.run(server.engine.close())
    assert error["param"] == "prediction"
    assert "max_model_len=64" in error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("n", [1, 3])
def test_rejected_guesses(live: Live, path: str, n: int) -> None:
    """Streamed and whole alike; as many as `usage` and the engine's own statistics count."""
    body = {
        **_prompt(path),
        **ASKED,
        "n": n,
        **BOTH,
        "prediction": {"type": "content", "content": "    return n\n" * 3},
    }
    before = live.engine._llm.engine.snapshot().methods
    whole = live.post(path, body).json()
    after = live.engine._llm.engine.snapshot().methods
    chunks = live.events(path, **body, stream_options=USAGE)
    assert details(whole) == details(chunks[-1])
    streamed: list[list[list[Any]]] = [[] for _ in range(n)]
    for chunk in chunks:
        for choice in chunk["choices"]:
            text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            assert "".join(piece for piece, _, accepted in choice["sources"] if accepted) == text
            streamed[choice["index"]] += choice["sources"]
    rejected: Counter[str] = Counter()
    for choice, pieces in zip(whole["choices"], streamed, strict=True):
        assert choice["sources"] == pieces
        rejected.update(who for _, who, accepted in pieces if not accepted)
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert "".join(piece for piece, _, accepted in pieces if accepted) == text
        for (_, _, accepted), (_, who, fine) in pairwise(pieces):
            assert accepted or not fine or who == "target", "after rejected guesses comes the target's own token"
    assert rejected.total() == details(whole)[1] > 0
    counted = {
        who: m.drafted - m.accepted - (before[who].drafted - before[who].accepted if who in before else 0)
        for who, m in after.items()
    }
    assert rejected == {who: count for who, count in counted.items() if count}


def test_rejected_guesses_alone_ask_for_pieces_and_others_get_none(live: Live) -> None:
    body = {"prompt": PROMPT, **ASKED}
    (choice,) = live.post("/v1/completions", {**body, "return_rejected": True}).json()["choices"]
    assert any(not accepted for _, _, accepted in choice["sources"])
    (choice,) = live.post("/v1/completions", {**body, "return_sources": True}).json()["choices"]
    assert all(accepted for _, _, accepted in choice["sources"])
    (choice,) = live.post("/v1/completions", body).json()["choices"]
    assert "sources" not in choice
    tools = [{"type": "function", "function": {"name": "f"}}]
    refused = live.post("/v1/chat/completions", {"messages": MESSAGES, "tools": tools, "return_rejected": True})
    assert refused.json()["error"]["param"] == "return_rejected"
