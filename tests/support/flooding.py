"""One key that floods a server in a process of its own, and another key's client that measures how it is served."""

import http.client
import json
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from queue import Empty
from threading import Thread
from typing import Any

from server_process import processor_ticks
from serving import wait_for

SECONDS = 60.0
Flood = tuple[str, bytes, int]  # path, body, connections


def unknown_names() -> Flood:
    """Return bodies of 4 MB with 180,000 fields that nobody knows, each close to many known ones."""
    letters = "0123456789bfghjkqvwxyz"
    names = (
        f'"aeiorstnlp_cmu{letters[i % 22]}{letters[i // 22 % 22]}{letters[i // 484 % 22]}{letters[i // 10648]}":1'
        for i in range(180_000)
    )
    return "/v1/completions", ('{"prompt":"a","max_tokens":1,' + ",".join(names) + "}").encode(), 20


def empty_messages() -> Flood:
    """Return conversations of 95,000 empty messages."""
    body = {"messages": [{"role": "user", "content": ""}] * 95_000, "max_tokens": 1}
    return "/v1/chat/completions", json.dumps(body, separators=(",", ":")).encode(), 20


def waiting_bodies() -> Flood:
    """Return 400 bodies at once of 4 MB, each a prompt that is too long."""
    return "/v1/completions", json.dumps({"prompt": "word " * 820_000, "max_tokens": 1}).encode(), 400


FLOODS: dict[str, Callable[[], Flood]] = {
    "180,000 unknown fields": unknown_names,
    "95,000 empty messages": empty_messages,
    "400 bodies of 4 MB": waiting_bodies,
}


def post(connection: http.client.HTTPConnection, key: str, path: str, body: bytes) -> int:
    """Return the status of an answer that was read to its end."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def _flood(port: int, key: str, name: str, results: Any) -> None:
    os.nice(5)  # it shares the machine with the server, as it would not elsewhere
    path, body, connections = FLOODS[name]()

    def client() -> None:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
            with suppress(OSError, http.client.HTTPException):
                while True:
                    results.put(post(connection, key, path, body))
            connection.close()
            results.put(0)

    results.put(-1)
    for _ in range(connections):
        Thread(target=client, daemon=True).start()
    time.sleep(3600)


class Flooding:
    """A flood that stops and goes on.

    Attributes:
        statuses: those that it got, counted; 0 for a broken connection.
    """

    def __init__(self, pid: int) -> None:
        self.statuses: Counter[int] = Counter()
        self._pid = pid

    def stop(self) -> None:
        """Send nothing; what is under way stays so."""
        os.kill(self._pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Send again."""
        os.kill(self._pid, signal.SIGCONT)


@contextmanager
def flooded(port: int, key: str, name: str) -> Iterator[Flooding]:
    """Flood a server from a process."""
    context = get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_flood, args=(port, key, name, results), daemon=True)
    process.start()
    assert process.pid is not None
    flooding = Flooding(process.pid)
    try:
        assert results.get(timeout=SECONDS) == -1, "it has begun"
        yield flooding
    finally:
        with suppress(Empty):
            while True:
                flooding.statuses[results.get_nowait()] += 1
        process.kill()
        process.join()


class Neighbour:
    """Another key's client, which asks the same again and again."""

    def __init__(self, port: int, key: str, path: str, body: dict[str, Any]) -> None:
        self._port, self._key, self._path, self._body = port, key, path, json.dumps(body).encode()

    def median(self, seconds: float) -> float:
        """Return the median time of the answers that it gets meanwhile, in seconds."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=SECONDS)
        times, end = list[float](), time.monotonic() + seconds
        while time.monotonic() < end or not times:
            began = time.monotonic()
            status = post(connection, self._key, self._path, self._body)
            assert status == 200, status
            times.append(time.monotonic() - began)
        connection.close()
        return statistics.median(times)


def settle(pid: int) -> None:
    """Wait until a process has finished what a flood has left it."""
    wait_for(lambda: _ticks_while(pid, 0.3) <= 2, SECONDS)


def _ticks_while(pid: int, seconds: float) -> int:
    before = processor_ticks(pid)
    time.sleep(seconds)
    return processor_ticks(pid) - before
