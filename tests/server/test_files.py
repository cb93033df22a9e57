"""The limit on open files: how many connections it leaves, and what is said of it."""

import errno
import resource
import socket

import pytest

from parlay.config import ServerConfig
from parlay.errors import ConfigError
from parlay.server import files
from parlay.server.listen import bind
from parlay.server.open_files import room_for

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
    assert str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) in str(files.too_few_files())
