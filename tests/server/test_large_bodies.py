"""Large bodies: a key has few of them here at once, so that none fills the memory or the loop's time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from parlay.config import ServerConfig
from parlay.server.keys import Keys
from parlay.server.middleware import _AT_ONCE, _AT_ONCE_OPEN, AccessLayer

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
        scope["state"]["account"].body.close()
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
    assert server.guard._budget.held == 0


def run(work: Callable[[], Any]) -> None:
    asyncio.run(work())


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("declared", [True, False])
def test_further_ones_of_a_key_wait_unread_and_another_key_s_do_not(declared: bool) -> None:
    async def main() -> None:
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

    run(main)


def test_small_ones_never_wait() -> None:
    async def main() -> None:
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

    run(main)


def test_a_slow_sender_without_keys_leaves_room() -> None:
    async def main() -> None:
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

    run(main)


def test_the_clock_stands_still_while_a_body_waits() -> None:
    async def main() -> None:
        async with serving(body_timeout=0.05) as server:
            first = [Upload("alice", 200 * KIB) for _ in range(_AT_ONCE)]
            for upload in (*first, last := Upload("alice", 200 * KIB)):
                server.ask(upload)
                upload.come(more=True)
                upload.come(more=False)
            await asyncio.sleep(0.1)
            assert (last.taken, last.status) == (0, 0)
        assert last.status == 200

    run(main)


def test_all_keys_together_hold_a_bounded_number_of_bytes() -> None:
    """Beyond it clients are told to come back; the refused body is taken from the wire and forgotten."""
    keys = Keys([(f"key{number}", f"key{number}-s-own-key") for number in range(64)])

    async def main() -> None:
        async with serving(keys=keys) as server:
            uploads = [Upload(f"key{number}", 4 << 20, 1 << 20) for number in range(64) for _ in range(2)]
            for upload in uploads:
                server.ask(upload)
                for left in (3, 2, 1, 0):
                    upload.come(more=left > 0)
            for _ in range(50):
                await turns()
            assert server.guard._budget.held <= 64 << 20
            assert {upload.status for upload in uploads} == {0, 429}
            assert all(upload.taken == 4 for upload in uploads)

    run(main)


def test_a_client_that_leaves_while_it_waits_holds_nothing() -> None:
    async def main() -> None:
        async with serving() as server:
            uploads = [Upload("alice", 200 * KIB) for _ in range(_AT_ONCE * 3)]
            for upload in uploads:
                server.ask(upload)
                upload.pieces.put_nowait({"type": "http.disconnect"})
            server.prepared.set()
            server.answered.set()
            await asyncio.gather(*server.tasks)
            assert server.guard._large["alice"]._value == _AT_ONCE

    run(main)
