"""The server on its socket: uvicorn, with bounds on connections and heads, and a graceful end."""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from parlay.config import ServerConfig
from parlay.errors import ConfigError
from parlay.server.admission import Admission
from parlay.server.open_files import OUT_OF_FILES, room_for, too_few_files

_MOST_HEAD = 64 << 10  # bytes
_MOST_READ = 16 << 10  # bytes taken from a connection at once: parsed as many chunks, more would delay others
_ACCEPTED = 64  # connections accepted at once, for the same reason
_QUEUED = 2048  # connections that wait to be accepted


class Server(uvicorn.Server):
    """Shuts down gracefully: refuses new requests, lets open ones finish, then exits with status 0."""

    def __init__(self, app: ASGIApp, config: ServerConfig, admission: Admission) -> None:
        """Prepare; `serve` listens."""
        self.admission = admission
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
                backlog=_ACCEPTED,
                h11_max_incomplete_event_size=_MOST_HEAD,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT as requests to shut down; a second one ends at once."""
        if threading.current_thread() is not threading.main_thread():  # others get no signals
            yield
            return
        loop = asyncio.get_running_loop()
        ending: list[asyncio.Task[None]] = []

        def end() -> None:
            if ending:
                self.admission.cut.set()
                self.should_exit = self.force_exit = True
            else:
                if self.admission.open:
                    print(closing(self.admission.open, self.options.shutdown_timeout), file=sys.stderr, flush=True)
                ending.append(loop.create_task(self.drain()))

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def drain(self) -> None:
        """Admit no requests, wait for open ones, then stop listening."""
        await self.admission.close(self.options.shutdown_timeout)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        sockets = sockets or bind(self.options)
        try:
            await super().startup(sockets)
            for each in sockets:
                each.listen(_QUEUED)
        except OSError as error:
            raise _not_there(self.options, error) from None
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        where = f"[{host}]" if ":" in host else host
        print(f"parlay: listening on http://{where}:{port} (pid {os.getpid()})", file=sys.stderr, flush=True)


def closing(count: int, seconds: float) -> str:
    """Return what to say while open requests are waited for."""
    some = "1 open request" if count == 1 else f"{count} open requests"
    return f"parlay: waiting up to {seconds:g} s for {some}; Ctrl-C again ends at once"


def bind(config: ServerConfig) -> list[socket.socket]:
    """Bind the address, without listening yet: an address in use should be reported before a model is loaded.

    Raises:
        ConfigError: it is not free, or none of this machine's.
    """
    with ExitStack() as made:
        sockets = []
        try:
            places = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, address in dict.fromkeys(places):
                each = made.enter_context(socket.socket(family, kind, protocol))
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                each.bind(address)
                sockets.append(each)
        except OSError as error:
            raise _not_there(config, error) from None
        made.pop_all()
        return sockets


def _not_there(config: ServerConfig, error: OSError) -> ConfigError:
    if error.errno in OUT_OF_FILES:
        return too_few_files()
    return ConfigError(
        f"{config.host}:{config.port} cannot be listened on ({error.strerror}); choose another --host or --port"
    )


def _protocol(config: ServerConfig) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with bounds.

    On the number of connections, and on the time for a request's head and for taking an answer.
    """
    most = room_for(config.max_connections)

    class Protocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transport.max_size = _MOST_READ  # type: ignore[attr-defined]
            transport.set_write_buffer_limits(0)
            self._head: asyncio.TimerHandle | None = None
            self._untaken: asyncio.TimerHandle | None = None
            if len(self.connections) > most:
                transport.abort()
                return
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._head = _stopped(self._head)
            elif self._head is None:  # the next request of this connection has begun
                self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head, self._untaken = _stopped(self._head), _stopped(self._untaken)
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            """The system accepts no more of the answer for now: the client must take some of it."""
            super().pause_writing()
            self._await_taking()

        def resume_writing(self) -> None:
            self._untaken = _stopped(self._untaken)
            super().resume_writing()

        def _await_taking(self) -> None:
            left = self.transport.get_write_buffer_size()
            self._untaken = self.loop.call_later(config.body_timeout, self._check_taken, left)

        def _check_taken(self, before: int) -> None:
            if self.transport.get_write_buffer_size() < before:
                self._await_taking()
            else:
                self.transport.abort()

        def _await_head(self) -> None:
            self._head = self.loop.call_later(config.body_timeout, self.transport.abort)

    return Protocol


def _stopped(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Stop a timer, if there is one; return what stands in its place."""
    if timer is not None:
        timer.cancel()
    return None
