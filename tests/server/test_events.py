"""An answer that is long in coming: its stream is never silent, so that no proxy or client gives up."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from serving import Live
from tokenizers import Tokenizer, models

from parlay import CompletionOutput, EngineDeadError, ParlayError, RequestOutput
from parlay.config import ServerConfig
from parlay.server.app import create_app
from parlay.server.openai import answer
from parlay.server.openai.events import Events

WORDS = Tokenizer(models.WordLevel({"w": 0, "a": 1}, unk_token="w"))
HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json")]
PING = b": ping\n\n"


class Slow:
    """An engine that takes its time before each of its two outputs."""

    model_name, model_names = "slow", ("slow",)
    numerics_id, max_model_len, state = "none", 1 << 20, "ready"
    codec, sampling_defaults = SimpleNamespace(tokenizer=WORDS), MappingProxyType({})

    def __init__(self, wait: Callable[[], Any], error: ParlayError | None = None) -> None:
        self.wait, self.error = wait, error

    async def generate(self, *arguments: Any, **more: Any) -> AsyncIterator[RequestOutput]:
        for number, reason in enumerate((None, "stop")):
            await self.wait()
            if self.error is not None:
                raise self.error
            yield RequestOutput(
                0, None, (1,), (CompletionOutput(0, f"w{number} ", (1,), ("target",), None, reason),), bool(number)
            )


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "Events", partial(Events, quiet=0.01))


def sent(engine_of: Callable[[Callable[[], Any]], Slow], stream: bool = True) -> list[Any]:
    """Return the messages of one answer by an engine that is given what waits for two more pings."""
    messages: list[Any] = []
    body = json.dumps({"prompt": [1], "stream": stream}).encode()

    async def main() -> None:
        asked, more = [{"type": "http.request", "body": body}], asyncio.Event()

        async def receive() -> Any:
            return asked.pop() if asked else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            messages.append(message)
            more.set()

        async def two_pings() -> None:
            wanted = sum(message.get("body") == PING for message in messages) + 2
            while sum(message.get("body") == PING for message in messages) < wanted:
                more.clear()
                await more.wait()

        app = create_app(engine_of(two_pings), ServerConfig(), log=lambda _: None)  # type: ignore[arg-type]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": HEADERS, "query_string": b""}
        async with asyncio.timeout(20):
            await app(scope, receive, send)

    asyncio.run(main())
    return messages


def test_comments_come_before_the_first_event_and_between_two() -> None:
    head, *bodies = sent(Slow)
    assert head["status"] == 200
    kinds = ["ping" if message["body"] == PING else "event" for message in bodies]
    assert kinds == ["ping", "ping", "event", "ping", "ping", "event", "event"]
    assert bodies[-1]["body"].endswith(b"data: [DONE]\n\n")
    assert not bodies[-1].get("more_body")


def test_what_fails_after_a_comment_is_an_event() -> None:
    head, *bodies = sent(lambda wait: Slow(wait, EngineDeadError("it died")))
    assert head["status"] == 200
    assert json.loads(bodies[-1]["body"].removeprefix(b"data: "))["error"]["message"] == "it died"


async def at_once() -> None:
    await asyncio.sleep(0)


def test_what_fails_before_keeps_its_status() -> None:
    head, *_ = sent(lambda wait: Slow(at_once, EngineDeadError("it died")))
    assert head["status"] == 503


def test_a_client_that_takes_nothing_gets_no_comments() -> None:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)
        if len(messages) == 2:
            await asyncio.sleep(0.1)  # the client takes nothing for ten times as long as is quiet

    async def main() -> None:
        async with Events(send, quiet=0.01) as events:
            await events.write(b"data: 1\n\n")

    asyncio.run(main())
    assert [message.get("body") for message in messages] == [None, b"data: 1\n\n"]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer, "Events", partial(Events, quiet=0.01))
        with Live(Slow(partial(asyncio.sleep, 0.05))) as server:
            yield server


def test_openai_s_client_skips_them(live: Live) -> None:
    client = openai.OpenAI(base_url=live.url + "/v1", api_key="none", http_client=httpx.Client(trust_env=False))
    chunks = list(client.completions.create(model="slow", prompt=[1], stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "w0 w1 "


def test_a_whole_answer_is_nothing_but_the_answer(live: Live) -> None:
    """Blanks before it would take its status away from what fails later."""
    assert live.post("/v1/completions", {"prompt": [1]}).text.startswith("{")
