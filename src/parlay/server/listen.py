"""The server on its socket: uvicorn, with bounds on connections and heads, and an orderly end."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from parlay.config import ServerConfig
from parlay.errors import ConfigError
from parlay.server.gate import Gate

_MOST_HEAD = 64 << 10  # bytes


class Server(uvicorn.Server):
    """Ends when told to: refuses what is new, lets what is open finish, then leaves with status 0."""

    def __init__(self, app: ASGIApp, config: ServerConfig, gate: Gate) -> None:
        """Take note; `serve` listens."""
        self.gate = gate
        self.options = config
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                http=_protocol(config),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=int(config.keep_alive) or 1,
                timeout_graceful_shutdown=5,
                h11_max_incomplete_event_size=_MOST_HEAD,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT as a wish to end; a second one ends at once."""
        if threading.current_thread() is not threading.main_thread():  # others get no signals
            yield
            return
        loop = asyncio.get_running_loop()
        ending: list[asyncio.Task[None]] = []

        def end() -> None:
            if ending:
                self.gate.cut.set()
                self.should_exit = self.force_exit = True
            else:
                ending.append(loop.create_task(self.drain()))

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def drain(self) -> None:
        """Let nobody in, wait for what is open, then stop listening."""
        await self.gate.close(self.options.shutdown_timeout)
        self.should_exit = True

    async def startup(self, sockets: Any = None) -> None:
        """Listen, and say where."""
        try:
            await super().startup(sockets)
        except SystemExit:
            raise ConfigError(
                f"{self.options.host}:{self.options.port} cannot be listened on; choose another --host or --port"
            ) from None
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        where = f"[{host}]" if ":" in host else host
        print(f"parlay: listening on http://{where}:{port} (pid {os.getpid()})", file=sys.stderr, flush=True)


def _protocol(config: ServerConfig) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a limit on connections, and on the time that a request's head may take."""

    class Protocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._head: asyncio.TimerHandle | None = None
            if len(self.connections) > config.max_connections:
                transport.abort()
                return
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget_head()
            elif self._head is None:  # the next request of this connection has begun
                self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_head()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            self._head = self.loop.call_later(config.body_timeout, self.transport.abort)

        def _forget_head(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

    return Protocol
