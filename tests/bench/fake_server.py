"""A small HTTP server in a thread that answers like OpenAI's protocol, as wrongly as a test wants."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

# From a request's number (0 for the first) and body: status, and the bytes of the answer, chunk by chunk.
Answer = Callable[[int, dict[str, Any]], tuple[int, list[bytes]]]


def event(**data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def texts(*pieces: str, usage: int | None = None, chat: bool = False) -> list[bytes]:
    """Return a whole answer of these pieces, an event each."""
    key = "delta" if chat else "text"
    events = [event(choices=[{"index": 0, key: {"content": p} if chat else p}]) for p in pieces]
    events.append(event(choices=[{"index": 0, key: {} if chat else "", "finish_reason": "length"}]))
    if usage is not None:
        events.append(event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": usage}))
    return [*events, b"data: [DONE]\n\n"]


@dataclass
class FakeServer:
    answer: Answer
    metrics: list[str] = field(default_factory=list)
    port: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    open: int = 0
    most_open: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (line := await reader.readline()).strip():
                _, path, _ = line.decode().split()
                headers = {}
                while (line := await reader.readline()).strip():
                    name, _, value = line.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self.reply(path, headers, body, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def reply(self, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        self.paths.append(path)
        self.headers.append(headers)
        if path == "/v1/models":
            status, chunks = 200, [json.dumps({"data": [{"id": "fake"}]}).encode()]
        elif path == "/metrics":
            status, chunks = (200, [self.metrics.pop(0).encode()]) if self.metrics else (404, [b"{}"])
        else:
            number = len(self.seen)
            self.seen.append(json.loads(body))
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            status, chunks = self.answer(number, self.seen[-1])
        writer.write(f"HTTP/1.1 {status} Whatever\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        for chunk in chunks:
            if chunk == b"":  # the connection breaks here
                await writer.drain()
                writer.transport.abort()
                self.open -= 1
                return
            writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.001)
        if path not in ("/v1/models", "/metrics"):
            self.open -= 1
        writer.write(b"0\r\n\r\n")
        await writer.drain()


@contextmanager
def serving(answer: Answer, metrics: list[str] | None = None) -> Iterator[FakeServer]:
    server, started = FakeServer(answer, metrics or []), Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
        server.port = listening.sockets[0].getsockname()[1]
        server.stop = asyncio.Event()  # type: ignore[attr-defined]
        started.set()
        await server.stop.wait()  # type: ignore[attr-defined]
        listening.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    started.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(server.stop.set)  # type: ignore[attr-defined]
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
