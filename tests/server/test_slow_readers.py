"""A client that takes its answer so slowly that its time is up."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from parlay import CompletionOutput, RequestOutput
from parlay.config import ServerConfig
from parlay.server.admission import Admission
from parlay.server.app import create_app
from parlay.server.openai import answer

WORDS = Tokenizer(models.WordLevel({"w": 0, "a": 1}, unk_token="w"))
HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json")]


class Endless:
    """An engine that always has another token."""

    model_name, model_names = "endless", ("endless",)
    numerics_id, max_model_len, state = "none", 1 << 20, "ready"
    codec, sampling_defaults = SimpleNamespace(tokenizer=WORDS), MappingProxyType({})

    def __init__(self) -> None:
        self.left = False

    async def generate(self, *arguments: Any, **more: Any) -> AsyncIterator[RequestOutput]:
        try:
            while True:
                yield RequestOutput(0, None, (1,), (CompletionOutput(0, "a", (1,), ("target",)),))
                await asyncio.sleep(0)
        finally:
            self.left = True


def test_it_is_told_and_holds_no_place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(answer, "_GRACE", 0.0)
    engine, admission = Endless(), Admission(1)
    bodies: list[bytes] = []

    async def main() -> None:
        asked = [{"type": "http.request", "body": json.dumps({"prompt": [1], "stream": True}).encode()}]

        async def receive() -> Any:
            if asked:
                return asked.pop()
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            bodies.append(message.get("body", b""))
            if len(bodies) == 3:  # reads nothing more for now
                await asyncio.Event().wait()

        app = create_app(engine, ServerConfig(request_timeout=0.05), admission=admission)  # type: ignore[arg-type]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": HEADERS, "query_string": b""}
        async with asyncio.timeout(20):
            await app(scope, receive, send)

    asyncio.run(main())
    assert json.loads(bodies[-1].removeprefix(b"data: "))["error"]["code"] == "timeout"
    assert engine.left
    assert admission.open == 0
    assert "longer than the server allows" in capsys.readouterr().err
