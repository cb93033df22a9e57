"""The front's end of the link to an engine's process, over a process that this test plays."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from serving import until

from parlay import ConfigError, RequestError
from parlay.config import EngineConfig, SpeculativeConfig
from parlay.link.protocol import (
    Abort,
    Failure,
    KeepAlive,
    Outputs,
    ProtocolError,
    Report,
    Stop,
    decode_command,
    encode,
)
from parlay.server.remote import engine_link as link_module
from parlay.server.remote.engine_link import EngineLink
from parlay.server.remote.engine_process import COMMANDS, MESSAGES, REPORTS


class Process:
    """A process that is none: it ends when it is killed."""

    pid = 1

    def __init__(self, **options: Any) -> None:
        (self.folder, *_) = options["args"]
        self.sentinel, self._life = os.pipe()
        self.exitcode: int | None = None

    def start(self) -> None:
        if self.folder == "":
            raise OSError

    def end(self, code: int = 1) -> None:
        if self.exitcode is None:
            self.exitcode = code
            os.close(self._life)

    def kill(self) -> None:
        self.end(-9)

    def join(self) -> None:
        assert self.exitcode is not None, "the loop would wait"

    def close(self) -> None:
        os.close(self.sentinel)


class Line:
    """A link, and the other end of its sockets."""

    def __init__(self, take: Callable[[Report], None] | None = None) -> None:
        self.reports: list[Report] = []
        self.ends = 0
        config = EngineConfig(), SpeculativeConfig.parse("none")
        self.link = EngineLink(*config, {}, frozenset(), take or self.reports.append, self._end)
        self.process: Process = self.link._process  # type: ignore[assignment]
        self.context = zmq.Context()
        self.commands, self.out = self.context.socket(zmq.PULL), self.context.socket(zmq.PUSH)
        self.out.setsockopt(zmq.SNDHWM, MESSAGES)
        for socket, name in ((self.commands, COMMANDS), (self.out, REPORTS)):
            socket.connect(f"ipc://{self.link._folder}/{name}")

    def _end(self) -> None:
        self.ends += 1

    def dies(self) -> None:
        """The process is gone, and the loop has not heard of it yet."""
        self.context.destroy(linger=0)

    async def received(self) -> Any:
        while not self.commands.poll(0):
            await asyncio.sleep(0.001)
        return decode_command(self.commands.recv())


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(link_module, "get_context", lambda kind: SimpleNamespace(Process=Process))
    folder = Path(tempfile.mkdtemp(prefix="p-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir()), "files are left"
    folder.rmdir()


@asynccontextmanager
async def begun(take: Callable[[Report], None] | None = None) -> AsyncIterator[Line]:
    line = Line(take)
    try:
        async with asyncio.timeout(20):
            await until(lambda: bool(line.link._commands.poll(0, zmq.POLLOUT)))
            yield line
            line.process.end()
            await line.link.ended(1.0)
    finally:
        line.context.destroy(linger=0)
    assert line.ends == 1


async def test_commands_arrive_in_order() -> None:
    async with begun() as line:
        for key in range(1000):
            line.link.send(Abort(key))
        assert [(await line.received()).key for _ in range(1000)] == list(range(1000))


async def test_a_command_for_a_process_that_died_just_now_is_dropped() -> None:
    """The end follows, and fails the request as the death of an engine; nothing else does."""
    async with begun() as line:
        line.link.send(Abort(0))
        await line.received()
        line.dies()
        for key in range(1, 50):
            line.link.send(Abort(key))
            await asyncio.sleep(0.001)  # until its end of the socket is known to be gone
        with pytest.raises(zmq.Again):
            line.link._commands.send(b"", zmq.NOBLOCK)
        line.link.send(Abort(99))
        assert line.ends == 0
    line.link.send(Stop())  # and nothing after the end
    line.link.kill()


async def test_a_command_that_cannot_travel_is_refused() -> None:
    async with begun() as line:
        with pytest.raises(RequestError, match="64 bits"):
            line.link.send(Abort(1 << 70))
        line.link.send(Abort(3))
        assert (await line.received()).key == 3


async def test_what_a_process_said_last_is_heard_before_its_end() -> None:
    order: list[str] = []
    async with begun(lambda report: order.append(type(report).__name__)) as line:
        line.link._on_end = lambda: order.append("end")
        for report in (KeepAlive(), Failure("ParlayError", "no"), Outputs([], [], [])):
            line.out.send(encode(report))
        await asyncio.sleep(0)
        await until(lambda: bool(line.link._reports.poll(0)) or bool(order))
        line.process.end(3)
        await line.link.ended(5.0)
        line.ends = 1
        assert line.link.exit_code == 3
    assert order == ["KeepAlive", "Failure", "Outputs", "end"]


async def test_a_front_that_is_behind_loses_nothing() -> None:
    """The process cannot send more than a few messages ahead; all of them come."""
    async with begun() as line:
        sent = 0
        for _ in range(200):
            try:
                line.out.send(encode(Failure("ParlayError", "x" * 10_000, sent)), zmq.NOBLOCK)
                sent += 1
            except zmq.Again:
                break
        assert sent < 200
        await until(lambda: len(line.reports) == sent)
        assert [report.key for report in line.reports] == list(range(sent))  # type: ignore[union-attr]


# Bytes that are no report; the third one's type is none of the engine's, the last has a completion without fields.
NONSENSE = [b"\xc1", b"", encode(Abort(1)), b"\x95\xa7Outputs\x91\x01\x90\x90\xc0"]


@pytest.mark.parametrize("data", [*NONSENSE, *(Random(seed).randbytes(seed * 3) for seed in range(1, 8))])
async def test_a_process_that_talks_nonsense_is_killed(data: bytes) -> None:
    async with begun() as line:
        line.out.send(data)
        await until(lambda: line.ends == 1)
        assert line.link.exit_code == -9
        assert line.reports == []


async def test_a_process_that_contradicts_is_killed() -> None:
    def contradicted(report: Report) -> None:
        raise ProtocolError("no such completion")

    async with begun(contradicted) as line:
        line.out.send(encode(KeepAlive()))
        await until(lambda: line.ends == 1)
        assert line.link.exit_code == -9


@pytest.mark.parametrize("error", [ValueError("a bug in the metrics"), KeyError(1), IndexError()])
async def test_a_fault_of_the_front_kills_no_engine(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    reports: list[Report] = []

    def take(report: Report) -> None:
        reports.append(report)
        if len(reports) == 1:
            raise error

    async with begun(take) as line:
        for _ in range(3):
            line.out.send(encode(KeepAlive()))
        await until(lambda: len(reports) == 3)
        assert line.process.exitcode is None
    assert "could not be processed" in caplog.text


async def test_one_that_does_not_end_is_killed() -> None:
    async with begun() as line:
        await line.link.ended(0.01)
        assert line.link.exit_code == -9


async def test_leaving_without_a_loop_leaves_nothing() -> None:
    async with begun() as line:
        line.link.abandon()
        assert not Path(line.link._folder).exists()
        assert line.process.exitcode == -9


async def test_a_folder_with_too_long_a_name(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = played / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(ConfigError, match="set TMPDIR"):
        Line()
    deep.rmdir()


@pytest.mark.parametrize("where", ["socket", "process"])
@pytest.mark.parametrize("number", link_module.OUT_OF_FILES)
async def test_too_few_files(number: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a limit of 16 files leads to, whose remedy is another limit."""

    def fails(*arguments: Any) -> None:
        raise zmq.ZMQError(number) if where == "socket" else OSError(number, "too many")

    if where == "socket":
        monkeypatch.setattr(zmq.Socket, "bind", fails)
    else:
        monkeypatch.setattr(Process, "start", fails)
    with pytest.raises(ConfigError, match="ulimit -n"):
        Line()
