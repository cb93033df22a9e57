"""Clients that mean harm or have bad luck, and one that watches whether it is served meanwhile."""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import pairwise
from math import inf
from multiprocessing import get_context
from typing import Any

import httpx

SECONDS = 60.0


class Watch:
    """Reads a stream in a thread and takes the time of every event.

    Attributes:
        text: of the answer.
        times: when each event came, by the clock.
        complete: whether the answer ended as it should.
        error: what the server said went wrong.
        cut: whether the connection ended in the middle.
        status: of the answer; 0 before there is one.
    """

    def __init__(self, url: str, body: dict[str, Any], clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin."""
        self._clock = clock
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
            self.times.append(self._clock())
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
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    if not any(h.lower().startswith("transfer-encoding") for h in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def status(head: bytes) -> int:
    """Return an answer's status; 0 for none."""
    return int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0


class Patrol:
    """Asks for the same stream over and over from a process of its own, and takes the times of all events."""

    def __init__(
        self, url: str, body: dict[str, Any], rest: float = 0.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Begin; between two streams wait for `rest` seconds."""
        context = get_context("spawn")
        self._over = context.Event()
        self._results, far = context.Pipe(duplex=False)
        self._process = context.Process(target=_patrol, args=(url, body, rest, clock, self._over, far), daemon=True)
        self._process.start()
        self._results.recv()  # the first stream has begun

    def end(self) -> list[tuple[list[float], str, Any]]:
        """Return of each stream the times of its events, its text, and what went wrong."""
        self._over.set()
        found: list[tuple[list[float], str, Any]] = self._results.recv()
        self._process.join()
        return found


def _patrol(url: str, body: dict[str, Any], rest: float, clock: Callable[[], float], over: Any, results: Any) -> None:
    streams: list[tuple[list[float], str, Any]] = []
    while not over.is_set():
        watch = Watch(url, body, clock)
        while not streams and not watch.running:
            time.sleep(0.01)
        if not streams:
            results.send(None)
        watch.join()
        streams.append((watch.times, watch.text, watch.error or (None if watch.complete else "cut")))
        over.wait(rest)
    results.send(streams)


def longest(streams: list[tuple[list[float], str, Any]], begin: float = 0.0, end: float = inf) -> float:
    """Return the longest time between two events of a stream, of those that a span of time touches."""
    pairs = (pair for times, _, _ in streams for pair in pairwise(times))
    return max((later - earlier for earlier, later in pairs if later > begin and earlier < end), default=0.0)


# ------------------------------------------------------------------------------------------------------- bodies

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MANY = 1_200_000  # small things that fit into the 4 MiB that a body may have


def completion(**fields: Any) -> bytes:
    return json.dumps({"prompt": "x", "max_tokens": 2, **fields}).encode()


def conversation(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, **fields}).encode()


def _schema(schema: Any) -> bytes:
    return conversation(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})


def _nested(depth: int) -> bytes:
    schema = '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth
    return _schema(0).replace(b'"schema": 0', b'"schema": ' + schema.encode())


def _rules(count: int) -> str:
    rules = (f'r{i} ::= "a{i}" r{(i + 1) % count} | "b"' for i in range(count))
    return "root ::= " + " | ".join(f"r{i}" for i in range(count)) + "\n" + "\n".join(rules)


def _tools(count: int, name: str) -> list[dict[str, Any]]:
    form = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(100)}}
    return [{"type": "function", "function": {"name": f"{name}{i}", "parameters": form}} for i in range(count)]


# What it is: path, the body, and the statuses that may answer it.
BODIES: dict[str, tuple[str, Callable[[], bytes], set[int]]] = {
    "no JSON": (COMPLETIONS, lambda: b"{" * 1000, {400}),
    "invalid UTF-8": (COMPLETIONS, lambda: b'{"prompt": "' + b"\xff" * 1000 + b'"}', {400}),
    "NaN": (COMPLETIONS, lambda: b'{"prompt": "x", "temperature": NaN}', {400}),
    "infinity": (COMPLETIONS, lambda: b'{"prompt": "x", "temperature": 1e999}', {400}),
    "nested 100,000 deep": (COMPLETIONS, lambda: b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", {400}),
    "a million lists": (COMPLETIONS, lambda: b'{"prompt":[' + b"[]," * MANY + b"[]]}", {400}),
    "a million token ids": (COMPLETIONS, lambda: b'{"prompt":[' + b"1," * MANY + b"1]}", {400}),
    "a million objects beside": (
        COMPLETIONS, lambda: b'{"prompt":"x","metadata":{"a":[' + b"{}," * MANY + b"1]}}", {200},
    ),
    "a million allowed ids": (
        COMPLETIONS, lambda: b'{"prompt":"x","max_tokens":1,"allowed_token_ids":[' + b"1," * MANY + b"1]}", {200},
    ),
    "a number of 4 million digits": (COMPLETIONS, lambda: b'{"prompt":"x","seed":' + b"1" * 4_000_000 + b"}", {400}),
    "a field's name of 4 MB": (COMPLETIONS, lambda: b'{"' + b"k" * 4_000_000 + b'":1}', {400}),
    "a prompt of 4 MB": (COMPLETIONS, lambda: completion(prompt="word " * 800_000), {400}),
    "tokens of 400 kB": ("/tokenize", lambda: b'{"prompt":"' + b"word " * 80_000 + b'"}', {200}),
    "tokens of 4 MB": ("/tokenize", lambda: b'{"prompt":"' + b"word " * 800_000 + b'"}', {200}),
    "text of 100,000 tokens": ("/detokenize", lambda: b'{"tokens":[' + b"65," * 100_000 + b"65]}", {200}),
    "text of a million tokens": ("/detokenize", lambda: b'{"tokens":[' + b"65," * MANY + b"65]}", {200}),
    "10,000 stop strings": (COMPLETIONS, lambda: completion(stop=[f"x{i}" for i in range(10_000)]), {400}),
    "logit_bias out of range": (COMPLETIONS, lambda: completion(logit_bias={"99999999": 1}), {400}),
    "300,000 biases": (COMPLETIONS, lambda: completion(logit_bias={str(i): 1 for i in range(300_000)}), {400}),
    "a schema of 10 MB": (CHAT, lambda: _schema({"enum": ["x" * 100] * 100_000}), {413}),
    "a schema of 4 MB": (CHAT, lambda: _schema({"enum": ["x" * 100] * 35_000}), {400}),
    "a schema nested 30 deep": (CHAT, lambda: _nested(25), {200}),
    "a schema nested 1,000 deep": (CHAT, lambda: _nested(1000), {400}),
    "a grammar of 1,500 rules": (
        COMPLETIONS, lambda: completion(structured_outputs={"grammar": _rules(1500)}), {200},
    ),
    "a huge regular expression": (
        COMPLETIONS,
        lambda: completion(structured_outputs={"regex": "|".join(f"x{i}y*" * 9 for i in range(999))}),
        {200},
    ),
    "repeated repetition": (
        COMPLETIONS, lambda: completion(structured_outputs={"regex": "((a{999}){999}){999}"}), {400},
    ),
    "10,000 messages": (CHAT, lambda: conversation(messages=[{"role": "user", "content": "hi"}] * 10_000), {400}),
    "240,000 empty messages": (CHAT, lambda: b'{"messages":[' + b'{"role":"user"},' * 240_000 + b"{}]}", {400}),
    "tools with strange names": (
        CHAT, lambda: conversation(tools=_tools(3, "\n\"'\0"), tool_choice="required"), {400},
    ),
    "300 tools of 100 fields": (
        CHAT, lambda: conversation(tools=_tools(300, "f"), tool_choice="required"), {200, 400},
    ),
    "scores of 6 long prompts": (
        COMPLETIONS,
        lambda: completion(prompt=[[i % 256 for i in range(j, 1500 + j)] for j in range(6)], prompt_logprobs=20),
        {200},
    ),
}  # fmt: skip


# -------------------------------------------------------------------------------------------------- connections


def huge_length(port: int) -> set[int]:
    with Wire(port) as wire:
        wire.send(request(b"", length=100 << 20))
        part = b"x" * (1 << 20)
        for _ in range(100):
            wire.send(part)
        return {status(wire.head())}


def huge_chunks(port: int) -> set[int]:
    with Wire(port) as wire:
        wire.send(request(b"", "Transfer-Encoding: chunked"))
        part = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
        for _ in range(100):
            wire.send(part)
        wire.send(b"0\r\n\r\n")
        return {status(wire.head())}


def tiny_chunks(port: int) -> set[int]:
    with Wire(port) as wire:
        wire.send(request(b"1\r\na\r\n" * 300_000 + b"0\r\n\r\n", "Transfer-Encoding: chunked"))
        return {status(wire.head())}


def many_headers(port: int) -> set[int]:
    with Wire(port) as wire, Wire(port) as other:
        wire.send(request(completion(), *[f"a{i}: b" for i in range(5000)]))
        other.send(request(completion(), *[f"a{i}: b" for i in range(100_000)]))
        return {status(wire.head()), status(other.head())}


def pipelined(port: int) -> set[int]:
    ask = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n"
    with Wire(port) as wire:
        wire.send((ask + b"\r\n") * 500 + ask + b"Connection: close\r\n\r\n")
        return {status(b"HTTP/1.1 " + one) for one in wire.read().split(b"HTTP/1.1 ")[1:]}


def idle(port: int, count: int = 3000) -> set[int]:
    """Open connections that say nothing, ask over another one, and close them."""
    with ExitStack() as wires:
        for _ in range(count):
            wires.enter_context(Wire(port))
        with Wire(port) as wire:
            wire.send(request(completion()))
            return {status(wire.head())}


def slow(port: int) -> set[int]:
    """Send heads and bodies byte by byte, until the server has had enough."""
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(port)) for _ in range(200)]
        texts = [request(completion())[i % 2 and -30 :] for i in range(200)]
        for i, wire in enumerate(wires):
            if i % 2:
                wire.send(request(completion())[:-30])
        for place in range(30):
            for wire, text in zip(wires, texts, strict=True):
                wire.send(text[place : place + 1])
            time.sleep(0.1)
        return {status(wire.head()) for wire in wires}


def unread(port: int) -> set[int]:
    """Ask for long streams and read nothing of them."""
    body = completion(prompt=[5, 6], n=8, max_tokens=400, ignore_eos=True, logprobs=5, stream=True)
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(port, buffer=2048)) for _ in range(8)]
        for wire in wires:
            wire.send(request(body))
        time.sleep(3)
    return {200}


# Whatever answers them; 0 is a connection that was closed without an answer.
CONNECTIONS: dict[str, tuple[Callable[[int], set[int]], set[int]]] = {
    "a body of 100 MB": (huge_length, {413}),
    "a body of 100 MB in chunks": (huge_chunks, {413}),
    "a body in chunks of a byte": (tiny_chunks, {400, 408}),
    "thousands of headers": (many_headers, {200, 400}),
    "500 requests in one go": (pipelined, {200}),
    "3,000 idle connections": (idle, {200}),
    "heads and bodies byte by byte": (slow, {0, 200, 408}),
    "streams that nobody reads": (unread, {200}),
}


# What ECMA-48 terminals obey, and what Unicode turns around or hides; their numbers are those of the standards.
TERMINAL = {
    "clear the screen": "\x1b[2J\x1b[31mOWNED\x07",
    "a forged line": "\r\n12:00:00  200  POST  /v1/completions  fake",
    "a title": "\x1b]0;title\x07",
    "an eight-bit introducer": "\x9b31m",
    "backspaces": "secret\x08\x08\x08\x08\x08\x08",
    "delete": "\x7f",
    "right to left": "\u202ecod.exe",
    "an isolate": "\u2066x\u2069",
    "line and paragraph separators": "a\u2028b\u2029c",
    "a zero-width space": "pass\u200bword",
    "a tag": "\U000e0041",
    "half a pair": "\ud800",
}
