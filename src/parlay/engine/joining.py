"""How ranks of other machines join an engine: over TCP, each side proving that it knows the same key.

What is sent afterwards is data (`parlay.runner.orders`); nothing received is unpickled.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from parlay.errors import ConfigError, shown
from parlay.log import logger

Link = Connection  # to another rank

_GREETING = 5  # seconds that the other side has to prove itself
_QUIET, _PROBES = (
    10,
    3,
)  # seconds without a word, and between questions; unanswered ones until a machine counts as lost


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


def admit(server: socket.socket, key: bytes, seconds: float) -> tuple[Connection, str]:
    """Return a connection to the next rank that knows the key, and this machine's address on it.

    Raises:
        TimeoutError: none came within so many seconds.
    """
    server.settimeout(seconds)
    while True:
        accepted, other = server.accept()
        host: str = accepted.getsockname()[0]
        connection = _connection(accepted)
        try:
            with _greeting(connection):
                deliver_challenge(connection, key)
                answer_challenge(connection, key)
        except (AuthenticationError, OSError, EOFError) as error:
            logger.warning("%s was not admitted as a rank: %s", other[0], error or "it disconnected")
            connection.close()
        else:
            return connection, host


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
        with _greeting(connection):
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
    """Return a socket as a connection that sends at once and notices a machine that is gone."""
    made.settimeout(None)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _QUIET), ("TCP_KEEPINTVL", _QUIET), ("TCP_KEEPCNT", _PROBES)):
        with suppress(AttributeError):  # not on every system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(made.detach())


@contextmanager
def _greeting(connection: Connection) -> Iterator[None]:
    """A region in which the other side has to answer soon."""
    with socket.socket(fileno=connection.fileno()) as borrowed:
        try:
            borrowed.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _GREETING, 0))
            yield
            borrowed.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
        finally:
            borrowed.detach()
