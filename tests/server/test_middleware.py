"""The layers before the application: heads that can be read in two ways or are too long, and large bodies."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hostile import Wire, status
from serving import Live, NoEngine

from parlay.config import ServerConfig
from parlay.server.keys import Keys
from parlay.server.middleware import _AT_ONCE, _AT_ONCE_OPEN, _MOST_HEAD, AccessLayer

KIB = 1 << 10
KEYS = Keys([("alice", "alice-s-own-key"), ("bob", "bob-s-own-key")])


class Upload:
    """A request whose body comes in pieces when the test says so."""

    def __init__(self, key: str, declared: int | None, piece: int = 100 * KIB) -> None:
        self.headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {key}-s-own-key".encode())]
        if declared is not None:
            self.headers.append((b"content-length", str(declared).encode()))
        self.taken, self.status, self.gone = 0, 0, False
        self.pieces: asyncio.Queue[Any] = asyncio.Queue()
        self.piece = piece

    def come(self, *, more: bool) -> None:
        self.pieces.put_nowait({"type": "http.request", "body": b"x" * self.piece, "more_body": more})

    async def receive(self) -> Any:
        message = await self.pieces.get()
        self.taken += 1
        return message

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)


class Server:
    """A guard before an application that reads bodies and then holds them until it is told to answer."""

    def __init__(self, keys: Keys = KEYS, **options: Any) -> None:
        self.log: list[dict[str, Any]] = []
        self.guard = AccessLayer(self._answer, ServerConfig(**options), keys, log=self.log.append)
        self.prepared, self.answered = asyncio.Event(), asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await self.prepared.wait()
        scope["state"]["request"].body.close()
        await self.answered.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def ask(self, upload: Upload) -> None:
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": upload.headers}
        self.tasks.append(asyncio.create_task(self.guard(scope, upload.receive, upload.send)))


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Server]:
    server = Server(**options)
    async with asyncio.timeout(20):
        yield server
        server.prepared.set()
        server.answered.set()
        await asyncio.gather(*server.tasks)
    assert server.guard._budget.used == 0


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("declared", [True, False])
async def test_further_ones_of_a_key_wait_unread_and_another_key_s_do_not(declared: bool) -> None:
    async with serving() as server:
        size = 200 * KIB if declared else None
        alice = [Upload("alice", size) for _ in range(40)]
        bob = Upload("bob", size)
        for upload in (*alice, bob):
            server.ask(upload)
            upload.come(more=True)
        await turns()
        for upload in (*alice, bob):
            upload.come(more=False)
        await turns()
        most = [2] * _AT_ONCE + [0 if declared else 1] * (40 - _AT_ONCE)
        assert sorted((upload.taken for upload in alice), reverse=True) == most
        assert bob.taken == 2
        server.prepared.set()  # and the next ones are read, long before these are answered
        await turns()
        assert all(upload.taken == 2 for upload in alice)
        assert {upload.status for upload in alice} == {0}
    assert {upload.status for upload in (*alice, bob)} == {200}


async def test_small_ones_never_wait() -> None:
    async with serving() as server:
        for _ in range(_AT_ONCE + 1):
            large = Upload("alice", 200 * KIB)
            server.ask(large)
            large.come(more=True)
        small = [Upload("alice", 10 * KIB, 10 * KIB) for _ in range(9)]
        for upload in small:
            server.ask(upload)
            upload.come(more=False)
        await turns()
        assert [upload.taken for upload in small] == [1] * 9
        for task in server.tasks[: _AT_ONCE + 1]:
            task.cancel()
        server.tasks = server.tasks[_AT_ONCE + 1 :]


async def test_a_slow_sender_without_keys_leaves_room() -> None:
    async with serving(keys=Keys(())) as server:
        slow = [Upload("", 200 * KIB) for _ in range(_AT_ONCE)]
        for upload in (*slow, other := Upload("", 200 * KIB)):
            server.ask(upload)
            upload.come(more=True)
        other.come(more=False)
        await turns()
        assert other.taken == 2
        for upload in slow:
            upload.come(more=False)
    assert _AT_ONCE < _AT_ONCE_OPEN


async def test_the_clock_stands_still_while_a_body_waits() -> None:
    async with serving(body_timeout=0.05) as server:
        first = [Upload("alice", 200 * KIB) for _ in range(_AT_ONCE)]
        for upload in (*first, last := Upload("alice", 200 * KIB)):
            server.ask(upload)
            upload.come(more=True)
            upload.come(more=False)
        await asyncio.sleep(0.1)
        assert (last.taken, last.status) == (0, 0)
    assert last.status == 200


async def test_all_keys_together_hold_a_bounded_number_of_bytes() -> None:
    """Beyond it clients are told to come back; the refused body is taken from the wire and forgotten."""
    keys = Keys([(f"key{number}", f"key{number}-s-own-key") for number in range(64)])
    async with serving(keys=keys) as server:
        uploads = [Upload(f"key{number}", 4 << 20, 1 << 20) for number in range(64) for _ in range(2)]
        for upload in uploads:
            server.ask(upload)
            for left in (3, 2, 1, 0):
                upload.come(more=left > 0)
        for _ in range(50):
            await turns()
        assert server.guard._budget.used <= 64 << 20
        assert {upload.status for upload in uploads} == {0, 429}
        assert all(upload.taken == 4 for upload in uploads)


async def test_a_client_that_leaves_while_it_waits_holds_nothing() -> None:
    async with serving() as server:
        uploads = [Upload("alice", 200 * KIB) for _ in range(_AT_ONCE * 3)]
        for upload in uploads:
            server.ask(upload)
            upload.pieces.put_nowait({"type": "http.disconnect"})
        server.prepared.set()
        server.answered.set()
        await asyncio.gather(*server.tasks)
        assert server.guard._large["alice"]._value == _AT_ONCE


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live(NoEngine(), allowed_origins=("https://page.example",)) as server:
        yield server


def head(method: str, *lines: str, path: str = "/health", version: str = "1.1") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/{version}", "Host: localhost", *lines, "", "")).encode()


def answers(live: Live, data: bytes) -> list[bytes]:
    """Return the heads of the answers on a connection until it is closed."""
    with Wire(live.port) as wire:
        assert wire.send(data)
        return [part.split(b"\r\n\r\n")[0] for part in wire.read().split(b"HTTP/1.1 ")[1:]]


SECOND = head("GET", path="/version")
LENGTH, CHUNKED = "Content-Length: 4", "Transfer-Encoding: chunked"
PREFLIGHT = ("Origin: https://page.example", "Access-Control-Request-Method: POST")


@pytest.mark.parametrize(
    "data",
    [
        # RFC 9112, 6.1: both; in either order; to a path that is open, and to what answers pages' preflights.
        head("POST", LENGTH, CHUNKED) + b"0\r\n\r\n",
        head("POST", CHUNKED, LENGTH) + b"0\r\n\r\n",
        head("GET", CHUNKED, "Content-Length: 0") + b"0\r\n\r\n",
        head("OPTIONS", *PREFLIGHT, CHUNKED, LENGTH) + b"0\r\n\r\n",
        head("GET", CHUNKED, version="1.0") + b"0\r\n\r\n",
        # h11's own: lengths that differ, one that is no number, an unknown coding, a space before a colon.
        head("POST", LENGTH, "Content-Length: 5") + b"{}{}",
        head("POST", "Content-Length: +4") + b"{}{}",
        head("POST", "Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n",
        head("POST", "Transfer-Encoding : chunked") + b"0\r\n\r\n",
    ],
)
def test_what_can_be_read_in_two_ways_is_refused_and_hides_no_second_request(live: Live, data: bytes) -> None:
    (answer,) = answers(live, data + SECOND)
    assert answer[:3] in (b"400", b"501")
    assert b"connection: close" in answer.lower()


def test_what_is_clear_is_answered_and_so_is_the_next_request(live: Live) -> None:
    for data in (head("GET"), head("GET", CHUNKED) + b"0\r\n\r\n", head("GET", LENGTH) + b"{}{}"):
        last = head("GET", "Connection: close")
        assert [answer[:3] for answer in answers(live, data + SECOND + last)] == [b"200"] * 3


@pytest.mark.parametrize("where", ["header", "headers", "query"])
@pytest.mark.parametrize(("length", "expected"), [(_MOST_HEAD, 200), (_MOST_HEAD + 1, 400), (70_000, 400)])
def test_the_longest_head(live: Live, length: int, expected: int, where: str) -> None:
    """Its bound holds to the byte, however the head comes."""
    if where == "query":
        bare = head("GET", "Connection: close", path="/health?")
        data = head("GET", "Connection: close", path="/health?" + "x" * (length - len(bare)))
    elif where == "header":
        data = head("GET", "Connection: close", "X: " + "x" * (length - len(head("GET", "Connection: close", "X: "))))
    else:
        lines = [f"X-{number}: y" for number in range(1000)]
        bare = head("GET", "Connection: close", *lines, "X: ")
        data = head("GET", "Connection: close", *lines, "X: " + "x" * (length - len(bare)))
    assert len(data) == length
    with Wire(live.port) as wire:
        wire.send(data)
        assert status(wire.head()) == expected
