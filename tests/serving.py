"""A server on a loopback port, for tests that ask it as clients do."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

from parlay.config import ServerConfig
from parlay.server.app import create_app
from parlay.server.gate import Gate
from parlay.server.keys import read_keys
from parlay.server.listen import Server


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
        self.gate = Gate(self.config.max_open, self.config.max_open_per_key)
        keys = read_keys(self.config)
        methods = ("none", "ngram")
        more = {"keys": keys, "gate": self.gate, "methods": methods, "log": self.log.append, **self._more}
        app = create_app(self.engine, self.config, **more)
        server = Server(app, self.config, self.gate)
        self.server = server
        await server.serve()

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.http.post(path, json=body, **more)


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until a condition holds; fail if it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
