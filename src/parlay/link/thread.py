"""The link to an engine that steps in a thread of this process."""

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

from parlay.engine.engine import Engine
from parlay.link.engine_server import EngineServer
from parlay.link.protocol import Command, Outputs
from parlay.log import logger


class ThreadLink:
    """A thread that alone touches an engine.

    Attributes:
        server: the server that runs in it.
        thread: the thread, which ends on `Stop` or when the engine fails.
    """

    def __init__(
        self,
        engine: Engine,
        on_outputs: Callable[[Outputs], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        """Start the thread.

        Args:
            engine: an engine that nothing else uses.
            on_outputs: called in the thread with all the engine's outputs.
            on_end: called there once, at last; with the error by which the engine has failed, if so.
        """
        self._transport = ThreadTransport(on_outputs)
        self._on_end, self._engine = on_end, engine
        self.server = EngineServer(engine, self._transport)
        self.thread = Thread(target=self._run, name="parlay-engine", daemon=True)
        self.thread.start()

    def send(self, command: Command) -> None:
        """Queue a command, which is passed as it is."""
        self._transport.put(command)

    def _run(self) -> None:
        failed: BaseException | None = None
        try:
            self.server.run()
        except BaseException as error:
            logger.exception("the engine has failed")
            failed = error
        self._engine.close()
        self._on_end(failed)


class ThreadTransport:
    """The other end: a queue of commands and wake-ups."""

    def __init__(self, on_outputs: Callable[[Outputs], None]) -> None:
        self._on_outputs = on_outputs
        self._queue: SimpleQueue[Command | None] = SimpleQueue()  # None for a wake-up
        self._first: Command | None = None  # what `wait` has found
        self._woken = False  # whether a wake-up was found while commands were looked for, so that it ended no `wait`

    def put(self, command: Command) -> None:
        """Queue a command; any thread may."""
        self._queue.put(command)

    def wake(self) -> None:
        """End a `wait`, this one or the next; any thread may."""
        self._queue.put(None)

    def wait(self, *, sending: bool, seconds: float | None = None) -> None:
        """Wait for a command or for `wake`, not for longer; outputs can always be taken."""
        if self._first is None and not self._woken:
            with suppress(Empty):
                self._first = self._queue.get(timeout=seconds)
        self._woken = False

    def receive(self) -> Command | None:
        """Return the next command that has come; None if there is none."""
        found, self._first = self._first, None
        while found is None:
            try:
                found = self._queue.get_nowait()
            except Empty:
                return None
            self._woken = self._woken or found is None
        return found

    def send(self, outputs: Outputs) -> bool:
        """Hand over outputs."""
        self._on_outputs(outputs)
        return True
