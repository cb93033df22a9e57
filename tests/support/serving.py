"""A server on a loopback port, for tests that ask it as clients do."""

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.types import Send
from tokenizers import Tokenizer, models

from parlay import AsyncLLM, RequestOutput, SamplingParams
from parlay.config import ServerConfig
from parlay.server.admission import Admission
from parlay.server.app import create_app
from parlay.server.keys import read_keys
from parlay.server.listen import Server
from parlay.server.remote.client import EngineClient

# An engine that guesses as often as it can, whatever the clock says.
GUESSING: dict[str, Any] = {"method": "ngram", "lengths": "fixed", "num_speculative_tokens": 4}


class Live:
    """Serves an engine in a thread of its own while used as a context manager.

    Attributes:
        log: the facts about each request that has ended.
    """

    def __init__(self, engine: Any, *, metrics: Any = None, page: Any = None, **options: Any) -> None:
        self.config = ServerConfig(port=0, **options)
        self.engine = engine
        self.log: list[dict[str, Any]] = []
        self._more = {"metrics": metrics, "page": page}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> "Live":
        self._thread.start()
        wait_for(lambda: hasattr(self, "server") and self.server.started)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=20, trust_env=False)
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self.server.drain()))
        self._thread.join(20)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.admission = Admission(self.config.max_open, self.config.max_open_per_key)
        keys = read_keys(self.config)
        methods = ("none", "ngram")
        more = {"keys": keys, "admission": self.admission, "methods": methods, "log": self.log.append, **self._more}
        app = create_app(self.engine, self.config, **more)
        server = Server(app, self.config, self.admission)
        self.server = server
        await server.serve()

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.http.post(path, json=body, **more)

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """Return the events of a streamed answer, less the mark of its end, which streams of responses have not."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        lines = [line[6:] for line in answer.text.split("\n") if line.startswith("data: ")]
        assert path == "/v1/responses" or lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]


@contextmanager
def engine_of(model: Path | str, **options: Any) -> Iterator[AsyncLLM]:
    """Run an engine; in the end it must be idle and whole."""
    engine = AsyncLLM(model, **options)
    yield engine
    assert not engine._llm.engine.busy
    engine._llm.engine.check()
    asyncio.run(engine.close())


@contextmanager
def live_and_guessing(**options: Any) -> Iterator[Live]:
    """Serve the embedded model with guesses from n-grams."""
    with engine_of("tiny-code", speculative_config=GUESSING) as engine, Live(engine, **options) as server:
        yield server


class NoEngine:
    """An engine that has no tokens to give, unless a test's own says how."""

    model_name, model_names = "none", ("none",)
    numerics_id, max_model_len, state = "none", 8, "ready"
    codec = SimpleNamespace(tokenizer=Tokenizer(models.WordLevel({"w": 0, "a": 1}, unk_token="w")))
    sampling_defaults: Mapping[str, Any] = MappingProxyType({})


async def complete(engine: NoEngine, send: Send, stream: bool = True, **options: Any) -> None:
    """Ask an application for a completion, without a socket; its client stays until all is sent."""
    asked = [{"type": "http.request", "body": json.dumps({"prompt": [1], "stream": stream}).encode()}]

    async def receive() -> Any:
        return asked.pop() if asked else await asyncio.Event().wait()

    app = create_app(engine, **{"config": ServerConfig(), **options})  # type: ignore[arg-type]
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    await app(
        {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""},
        receive,
        send,
    )


class House:
    """One event loop and one client of engines that several tests share: a start takes seconds."""

    def __init__(self, target: Path, temporary: Path, limit: float, **options: Any) -> None:
        self.temporary, self._limit = temporary, limit
        self.loop = asyncio.new_event_loop()
        speculative = {"method": "ngram", "lengths": "fixed", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
        self.client = EngineClient(target, speculative_config=speculative, **options)
        self.run(self.client.start())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, self._limit))


@contextmanager
def housed(target: Path, limit: float, **options: Any) -> Iterator[House]:
    """Start a client's engines; once they are closed no files of theirs may be left."""
    with pytest.MonkeyPatch.context() as patch:
        # A short name: sockets have little room for theirs.
        temporary = Path(tempfile.mkdtemp(prefix="p-", dir="/tmp"))
        patch.setattr(tempfile, "tempdir", str(temporary))
        house = House(target, temporary, limit, **options)
        yield house
        house.run(house.client.close())
        house.loop.close()
        assert not list(temporary.iterdir()), "files are left"
        temporary.rmdir()


async def last(client: EngineClient, prompt: Any, params: SamplingParams | None = None, **more: Any) -> RequestOutput:
    *_, output = [output async for output in client.generate(prompt, params, **more)]
    assert output.finished
    return output


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.002)


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until a condition holds; fail if it never does."""
    end, pause = time.monotonic() + seconds, 0.005
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(pause)
        pause = min(2 * pause, 0.04)  # a condition that asks a server takes its time from it
