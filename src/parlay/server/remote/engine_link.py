"""One run of the engine's process, as the event loop of the front sees it: its messages, and its end."""

import asyncio
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from tempfile import mkdtemp

import msgspec
import zmq

from parlay.config import EngineConfig, SpeculativeConfig
from parlay.errors import ConfigError
from parlay.link.protocol import Command, ProtocolError, Report, decode_report, encode
from parlay.log import logger
from parlay.server.open_files import OUT_OF_FILES, too_few_files
from parlay.server.remote.engine_process import COMMANDS, MESSAGES, REPORTS, main

_ON_THEIR_WAY = 100  # milliseconds without a report, after which a process that has ended has said all


class EngineLink:
    """A process with an engine, and the two sockets that lead to it.

    Everything here happens on one event loop, and nothing in it waits for the process while that lives: commands are
    queued, reports and the process's end are calls.

    Attributes:
        pid: id of the process.
        exit_code: how it ended, as `multiprocessing` numbers it; None until then.
    """

    def __init__(
        self,
        config: EngineConfig,
        speculative: SpeculativeConfig,
        variables: Mapping[str, str],
        processors: frozenset[int],
        on_report: Callable[[Report], None],
        on_end: Callable[[], None],
    ) -> None:
        """Start a process; needs a running event loop.

        Args:
            config: the engine's options.
            speculative: how the engine speculates.
            variables: environment variables, set in the process alone.
            processors: processors that the process runs on; empty for those of this one.
            on_report: called with every message of the process.
            on_end: called once when the process has ended, in any way, after its last report.

        Raises:
            ConfigError: the folder for temporary files has too long a name for a socket, or the process may open too
                few files.
        """
        self._loop = asyncio.get_running_loop()
        self._on_report, self._on_end = on_report, on_end
        self._ended = self._loop.create_future()
        self._folder = mkdtemp(prefix="parlay-")  # which other users cannot enter
        self._context = zmq.Context(io_threads=1)
        try:
            # Commands wait while a step runs; there are as many as the front admits.
            self._commands = self._bind(zmq.PUSH, COMMANDS, zmq.SNDHWM, 0)
            self._reports = self._bind(zmq.PULL, REPORTS, zmq.RCVHWM, MESSAGES)
            # A spawned process shares nothing by accident: no locks, no sockets, no half-made state.
            self._process = get_context("spawn").Process(
                target=main,
                args=(self._folder, config, speculative, variables, processors),
                name="parlay-engine",
                daemon=True,
            )
            self._process.start()
        except BaseException as error:
            self._clean()
            if isinstance(error, OSError | zmq.ZMQError) and error.errno in OUT_OF_FILES:
                raise too_few_files() from None
            raise
        self.pid, self.exit_code = self._process.pid, self._process.exitcode
        self._loop.add_reader(self._reports.FD, self._read)
        self._loop.add_reader(self._process.sentinel, self._end)

    def _bind(self, kind: int, name: str, limit: int, messages: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(limit, messages)
        path = Path(self._folder, name)
        try:
            socket.bind(f"ipc://{path}")
        except zmq.ZMQError as error:
            if error.errno in OUT_OF_FILES:
                raise too_few_files() from None
            raise ConfigError(f"{path} cannot be a socket ({error}); set TMPDIR to another, shorter folder") from None
        return socket

    def send(self, command: Command) -> None:
        """Queue a command; one for a process that is gone is dropped, and `on_end` follows.

        Raises:
            RequestError: it cannot be encoded.
        """
        data = encode(command)
        if not self._ended.done():
            with suppress(zmq.Again):  # there is no limit, so no process is connected: it has died just now
                self._commands.send(data, zmq.NOBLOCK)

    async def ended(self, seconds: float) -> None:
        """Wait for the process to end by itself; after `seconds` it is killed."""
        try:
            await asyncio.wait_for(asyncio.shield(self._ended), seconds)
        except TimeoutError:
            self.kill()
            await self._ended

    def kill(self) -> None:
        """End the process at once; harmless if it has ended."""
        if not self._ended.done():
            self._process.kill()

    def abandon(self) -> None:
        """Leave nothing behind, without an event loop."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self) -> None:
        """Read all that has arrived: the descriptor signals what is new, not what is left.

        A process that sends an invalid message is not trusted any more, and is ended.
        """
        while not self._ended.done():
            try:
                data = self._reports.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._on_report(decode_report(data))
            except (msgspec.MsgspecError, ProtocolError):
                logger.exception("the engine's process sent an invalid report and is killed")
                self.kill()
            except Exception:  # it is not the engine that failed
                logger.exception("a report of the engine's process could not be processed")

    def _end(self) -> None:
        self._read()
        while self._reports.poll(_ON_THEIR_WAY):
            self._read()
        self._loop.remove_reader(self._process.sentinel)
        self._loop.remove_reader(self._reports.FD)
        self._process.join()
        self.exit_code = self._process.exitcode
        self._process.close()
        self._clean()
        self._ended.set_result(None)
        self._on_end()

    def _clean(self) -> None:
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)
