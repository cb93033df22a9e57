"""An answer that is long in coming: its stream is never silent, so that no proxy or client gives up."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import httpx
import openai
import pytest
from serving import Live, NoEngine, complete

from parlay import CompletionOutput, EngineDeadError, ParlayError, RequestOutput
from parlay.server.openai import answer
from parlay.server.openai.events import Events

PING = b": ping\n\n"


class Slow(NoEngine):
    """An engine that takes its time before each of its two outputs."""

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


async def sent(engine_of: Callable[[Callable[[], Any]], Slow]) -> list[Any]:
    """Return the messages of one answer by an engine that is given what waits for two more pings."""
    messages: list[Any] = []
    more = asyncio.Event()

    async def send(message: Any) -> None:
        messages.append(message)
        more.set()

    def pings() -> int:
        return sum(message.get("body") == PING for message in messages)

    async def two_pings() -> None:
        wanted = pings() + 2
        while pings() < wanted:
            more.clear()
            await more.wait()

    await complete(engine_of(two_pings), send, log=lambda _: None)
    return messages


async def test_comments_come_before_the_first_event_and_between_two() -> None:
    head, *bodies = await sent(Slow)
    assert head["status"] == 200
    kinds = ["ping" if message["body"] == PING else "event" for message in bodies]
    assert kinds == ["ping", "ping", "event", "ping", "ping", "event", "event"]
    assert bodies[-1]["body"].endswith(b"data: [DONE]\n\n")
    assert not bodies[-1].get("more_body")


async def test_what_fails_after_a_comment_is_an_event() -> None:
    head, *bodies = await sent(lambda wait: Slow(wait, EngineDeadError("it died")))
    assert head["status"] == 200
    assert json.loads(bodies[-1]["body"].removeprefix(b"data: "))["error"]["message"] == "it died"


async def at_once() -> None:
    await asyncio.sleep(0)


async def test_what_fails_before_keeps_its_status() -> None:
    head, *_ = await sent(lambda wait: Slow(at_once, EngineDeadError("it died")))
    assert head["status"] == 503


async def test_a_client_that_takes_nothing_gets_no_comments() -> None:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)
        if len(messages) == 2:
            await asyncio.sleep(0.1)  # the client takes nothing for ten times as long as is quiet

    async with Events(send, quiet=0.01) as events:
        await events.write(b"data: 1\n\n")
    assert [message.get("body") for message in messages] == [None, b"data: 1\n\n"]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer, "Events", partial(Events, quiet=0.01))
        with Live(Slow(partial(asyncio.sleep, 0.05))) as server:
            yield server


def test_openai_s_client_skips_them(live: Live) -> None:
    client = openai.OpenAI(base_url=live.url + "/v1", api_key="none", http_client=httpx.Client(trust_env=False))
    chunks = list(client.completions.create(model="none", prompt=[1], stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "w0 w1 "


def test_a_whole_answer_is_nothing_but_the_answer(live: Live) -> None:
    """Blanks before it would take its status away from what fails later."""
    assert live.post("/v1/completions", {"prompt": [1]}).text.startswith("{")
