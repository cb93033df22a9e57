"""How ranks of other machines join an engine: over TCP, each side proving that it knows the same key.

What is sent afterwards is data (`parlay.runner.orders`); nothing received is unpickled.
"""

import socket
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from queue import Empty, SimpleQueue
from threading import Thread, Timer
from time import monotonic

from parlay.errors import ConfigError, shown
from parlay.log import logger

_GREETING = 5  # seconds that the other side has to prove itself
_AT_ONCE = 64  # connections that may prove themselves at once; beyond, the oldest is closed: ranks take milliseconds
_POLL = 0.05  # seconds between two checks for ranks that have
_QUIET, _PROBES = 10, 3  # seconds of silence before and between keep-alive probes; how many may fail


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`.

    Raises:
        ConfigError: it has another form.
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ConfigError(f"an address of ranks is HOST:PORT, such as 10.0.0.1:29500, not {shown(text)}")
    return host.strip("[]"), int(port)


def listen(address: tuple[str, int]) -> socket.socket:
    """Return a socket on which ranks may join.

    Raises:
        ConfigError: this machine does not have the address, or another process has the port.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        raise ConfigError(f"ranks cannot join at {address[0]}:{address[1]}: {error.strerror}") from None


class RankListener:
    """Where ranks join. Many may prove themselves at once, so that a slow one does not keep others out."""

    def __init__(self, server: socket.socket, key: bytes) -> None:
        """Admit ranks on `server` that know the key, until it is closed."""
        self._server, self._key = server, key
        self._admitted = SimpleQueue[tuple[Connection, str]]()
        self._greeted = OrderedDict[socket.socket, None]()  # sockets that are proving themselves, in order of arrival

    def next(self, seconds: float) -> tuple[Connection, str]:
        """Return a connection to the next rank that knows the key, and this machine's address on it.

        Raises:
            TimeoutError: none came within so many seconds.
        """
        until = monotonic() + seconds
        while True:
            with suppress(Empty):
                return self._admitted.get_nowait()
            left = until - monotonic()
            if left <= 0:
                raise TimeoutError
            self._server.settimeout(min(left, _POLL))
            with suppress(TimeoutError):
                accepted, other = self._server.accept()
                self._greeted[accepted] = None
                if len(self._greeted) > _AT_ONCE:
                    _shut(self._greeted.popitem(last=False)[0])
                Thread(target=self._greet, args=(accepted, other[0]), name="parlay-greeting", daemon=True).start()

    def _greet(self, accepted: socket.socket, other: str) -> None:
        connection, host = _connection(accepted), accepted.getsockname()[0]
        try:
            with _greeting(accepted):
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
        except (AuthenticationError, OSError, EOFError) as error:
            logger.warning("%s was not admitted as a rank: %s", other, error or "it disconnected")
            connection.close()
        else:
            self._admitted.put((connection, host))
        finally:
            self._greeted.pop(accepted, None)
            accepted.close()

    def close(self) -> None:
        """Admit no more ranks."""
        self._server.close()
        for accepted in list(self._greeted):
            _shut(accepted)


def connect(address: tuple[str, int], key: bytes) -> tuple[Connection, str]:
    """Return a connection to rank 0, and this machine's address on it.

    Raises:
        ConfigError: rank 0 has another key.
        OSError: nothing listens there.
    """
    made = socket.create_connection(address, timeout=_GREETING)
    host: str = made.getsockname()[0]
    connection = _connection(made)
    try:
        with made, _greeting(made):
            answer_challenge(connection, key)
            deliver_challenge(connection, key)
    except AuthenticationError:
        connection.close()
        raise ConfigError(
            f"{address[0]}:{address[1]} has another key; set PARLAY_RANK_KEY to the same on all machines"
        ) from None
    except (OSError, EOFError):
        connection.close()
        raise ConnectionError(f"{address[0]}:{address[1]} disconnected") from None
    return connection, host


def _connection(made: socket.socket) -> Connection:
    """Return a connection by a socket, which may be closed: it sends at once and notices a machine that is gone."""
    made.settimeout(None)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _QUIET), ("TCP_KEEPINTVL", _QUIET), ("TCP_KEEPCNT", _PROBES)):
        with suppress(AttributeError):  # not on every system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(made.dup().detach())


@contextmanager
def _greeting(made: socket.socket) -> Iterator[None]:
    """A region that the other side has to let pass within some seconds in all, however it divides them."""
    late = Timer(_GREETING, _shut, (made,))
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def _shut(made: socket.socket) -> None:
    """End a connection that another thread may wait for."""
    with suppress(OSError):
        made.shutdown(socket.SHUT_RDWR)
