"""The socket: the limit on open files, and clients that take their answer too slowly."""

import asyncio
import errno
import json
import resource
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from serving import NoEngine, complete

from parlay import CompletionOutput, RequestOutput
from parlay.config import ServerConfig
from parlay.errors import ConfigError
from parlay.server.admission import Admission
from parlay.server.listen import bind
from parlay.server.open_files import room_for, too_few_files
from parlay.server.openai import answer

INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "room", "raised"),
    [
        (80, 80, 40, 80),  # half of so few are its own: the front needs about 25
        (256, 512, 256, 512),
        (300, 400, 200, 400),
        (1024, 1 << 20, 4096, 4352),
        (1024, INFINITE, 4096, 4352),
        (1 << 20, 1 << 20, 4096, None),
        (INFINITE, INFINITE, 4096, None),
        (1, 1, 1, 1),
    ],
)
def test_room(
    soft: int,
    hard: int,
    room: int,
    raised: int | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    assert room_for(4096) == room
    assert limits == ([] if raised is None else [(raised, hard)])
    if room < 4096:
        assert f"{raised} files may be open at once: {room} connections are accepted" in caplog.text
        assert "ulimit -n" in caplog.text
    else:
        assert caplog.text == ""


@pytest.mark.parametrize(("number", "words"), [(errno.EMFILE, "ulimit -n"), (errno.EADDRINUSE, "--port")])
def test_what_cannot_be_bound_says_the_remedy(number: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object, **more: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(socket.socket, "bind", fails)
    with pytest.raises(ConfigError, match=words):
        bind(ServerConfig(port=0))


def test_the_message_names_the_limit() -> None:
    assert str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) in str(too_few_files())


class Endless(NoEngine):
    """An engine that always has another token."""

    def __init__(self) -> None:
        self.left = False

    async def generate(self, *arguments: Any, **more: Any) -> AsyncIterator[RequestOutput]:
        try:
            while True:
                yield RequestOutput(0, None, (1,), (CompletionOutput(0, "a", (1,), ("target",)),))
                await asyncio.sleep(0)
        finally:
            self.left = True


async def test_it_is_told_and_holds_no_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answer, "_GRACE", 0.0)
    engine, admission = Endless(), Admission(1)
    bodies: list[bytes] = []

    async def send(message: Any) -> None:
        bodies.append(message.get("body", b""))
        if len(bodies) == 3:  # reads nothing more for now
            await asyncio.Event().wait()

    await complete(engine, send, config=ServerConfig(request_timeout=0.05), admission=admission)
    assert json.loads(bodies[-1].removeprefix(b"data: "))["error"]["code"] == "timeout"
    assert engine.left
    assert admission.open == 0
    assert "the request timed out" in capsys.readouterr().err
