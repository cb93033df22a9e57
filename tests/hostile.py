"""Clients that mean harm or have bad luck, and one that watches whether it is served meanwhile."""

import json
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import httpx

SECONDS = 60.0


class Watch:
    """Reads a stream in a thread and takes the time of every event.

    Attributes:
        text: of the answer.
        times: when each event came, `time.perf_counter`.
        complete: whether the answer ended as it should.
        error: what the server said went wrong.
        cut: whether the connection ended in the middle.
        status: of the answer; 0 before there is one.
    """

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        """Begin."""
        self.text = ""
        self.times: list[float] = []
        self.complete = self.cut = False
        self.error: dict[str, Any] | None = None
        self.status = 0
        self._url, self._body = url, {**body, "stream": True}
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        url = self._url + "/v1/completions"
        try:
            with httpx.stream("POST", url, json=self._body, timeout=SECONDS, trust_env=False) as answer:
                self.status = answer.status_code
                if answer.is_error:
                    self.error = json.loads(answer.read())["error"]
                for line in answer.iter_lines():
                    self._take(line)
        except httpx.TransportError:
            self.cut = True

    def _take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.complete = True
        elif line.startswith("data: "):
            self.times.append(time.perf_counter())
            chunk = json.loads(line[6:])
            self.error = chunk.get("error")
            self.text += "".join(choice["text"] for choice in chunk.get("choices", ()))

    def join(self) -> "Watch":
        """Wait for the end."""
        self._thread.join(2 * SECONDS)
        return self

    @property
    def running(self) -> bool:
        """Whether events come."""
        return bool(self.times) and self._thread.is_alive()

    def gap(self, begin: float = 0.0, end: float = float("inf")) -> float:
        """Return the longest time between two events, of those that lie at least in part between two moments."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return max((later - earlier for earlier, later in pairs if later > begin and earlier < end), default=0.0)


class Wire:
    """A connection that says exactly what it is told to."""

    def __init__(self, port: int, *, buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(SECONDS)
        self.socket.connect(("127.0.0.1", port))

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Send all of it; False if the server does not want it."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def read(self) -> bytes:
        """Return everything until the server closes."""
        got = b""
        with suppress(OSError):
            while more := self.socket.recv(1 << 16):
                got += more
        return got

    def head(self) -> bytes:
        """Return what comes, up to the end of an answer's head."""
        got = b""
        with suppress(OSError):
            while b"\r\n\r\n" not in got and (more := self.socket.recv(1 << 16)):
                got += more
        return got


def request(body: bytes, *headers: str, path: str = "/v1/completions", length: int | None = None) -> bytes:
    """Return a POST request; `length` is what it says of itself."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    if not any(h.lower().startswith("transfer-encoding") for h in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def status(head: bytes) -> int:
    """Return an answer's status; 0 for none."""
    return int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0
