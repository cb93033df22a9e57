"""Requests whose length can be read in two ways, and heads that are too long."""

from collections.abc import Iterator

import pytest
from hostile import Wire, status
from serving import Live

from parlay.server.middleware import _MOST_HEAD


class NoEngine:
    """An engine that is not needed."""

    model_name, model_names = "none", ("none",)
    numerics_id, max_model_len, state = "none", 8, "ready"


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
