"""One engine in a separate process, which is restarted when it dies.

Everything happens on one event loop. The engine's death fails its open requests; it is then restarted, with delays
that grow while it does not come up.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

from parlay.errors import EngineDeadError
from parlay.link.engine import State
from parlay.link.protocol import Add, Command, EngineLoading, EngineReady, KeepAlive, Outputs, Report, Stop
from parlay.link.stream import Stream
from parlay.log import logger
from parlay.server.remote.engine_link import EngineLink
from parlay.types.progress import OnProgress
from parlay.types.stats import StatsSnapshot

DIED = "the engine died and is being restarted; send the request again"
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 30.0  # seconds before a restart; doubled after each that fails
_START = 60.0  # least seconds without a message after which a process that starts counts as hung
_STEADY, _GRACE = 60.0, 5.0  # seconds after which an engine counts as healthy; for the process to end by itself


@dataclass(frozen=True, slots=True)
class Calls:
    """A replica's callbacks.

    Attributes:
        link: starts a process; given the function for its reports, and the one to call at its end.
        ready: checks the engine's description, by raising if it must not serve.
        outputs: takes the engine's outputs.
        progress: called with how far the weights are loaded.
        lost: called when the process has ended, with all that it had.
    """

    link: Callable[[Callable[[Report], None], Callable[[], None]], EngineLink]
    ready: Callable[["Replica", EngineReady], None]
    outputs: Callable[[Outputs], None]
    progress: OnProgress
    lost: Callable[["Replica"], None]


class Heartbeat:
    """Expires when no message comes for a while; runs only between `begin` and `end`, on the running event loop."""

    def __init__(self, seconds: float, waiting: Callable[[], bool], expired: Callable[[], None]) -> None:
        """Start nothing yet.

        Args:
            seconds: time without a message, after which it expires.
            waiting: whether anything is still expected.
            expired: called when it expires.
        """
        self._seconds = seconds
        self._waiting, self._expired = waiting, expired
        self._timer: asyncio.TimerHandle | None = None
        self._last_beat = 0.0

    def begin(self) -> None:
        """Expect a message from now on, unless one is expected already."""
        if self._timer is None:
            self.beat()
            self._set(self._seconds)

    def beat(self) -> None:
        """Record a message."""
        self._last_beat = monotonic()

    def end(self) -> None:
        """Expect nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._waiting():
            return
        left = self._last_beat + self._seconds - monotonic()
        if left > 0:
            self._set(left)
        else:
            self._expired()


class Replica:
    """An engine over the restarts of its process.

    Attributes:
        number: number of the replica, from 0 on.
        state: `starting` until it is first loaded, `ready`, `restarting` after its death, or `closed`.
        facts: the engine's description, from then until its process ends.
        stats: the newest snapshot, at most about 0.1 s old; it counts from the engine's last start.
        restarts: how often it was restarted.
        open: open requests that still have a reader, by the front's keys.
    """

    def __init__(self, number: int, name: str, engine_timeout: float, calls: Calls) -> None:
        """Start nothing yet.

        Args:
            number: number of the replica.
            name: its name in the log.
            engine_timeout: seconds without a message after which the process counts as hung, see `EngineClient`.
            calls: the replica's callbacks.
        """
        self.number = number
        self.state: State = "starting"
        self.facts: EngineReady | None = None
        self.stats = StatsSnapshot()
        self.restarts = 0
        self.open: dict[int, Stream] = {}
        self._name, self._calls = name, calls
        self._link: EngineLink | None = None
        self._started: asyncio.Future[None] | None = None  # set by the engine that is being started
        self._restarting: asyncio.Task[None] | None = None
        self._delay, self._up_since = _FIRST_DELAY, 0.0
        self._served = False  # when it was retired
        self._heartbeat = Heartbeat(engine_timeout, lambda: self.load > 0, self._kill_hung)
        self._start_heartbeat = Heartbeat(max(engine_timeout, _START), lambda: self._starting, self._kill_hung)

    @property
    def pid(self) -> int | None:
        """Id of the process; None where there is none."""
        return None if self._link is None else self._link.pid

    @property
    def load(self) -> int:
        """How many completions it has to finish."""
        return sum(stream.unfinished for stream in self.open.values())

    @property
    def _starting(self) -> bool:
        return self._started is not None and not self._started.done()

    async def start(self) -> None:
        """Start the process and wait until its engine is loaded. To be called once.

        Raises:
            ConfigError, ModelError, CapacityError: see `LLM`, or anything that `Calls.ready` raises.
            EngineDeadError: the process died while it started.
        """
        await self._launch()
        if self.state == "starting":
            self.state = "ready"

    async def retire(self) -> None:
        """Restart no more, and finish open requests. Idempotent."""
        if self.state != "closed":
            self._served, self.state = self.state == "ready", "closed"
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])

    async def end(self) -> None:
        """End the process, after `retire`."""
        if (link := self._link) is not None:
            if self._served:
                link.send(Stop())
            else:  # it may be loading, and receive nothing
                link.kill()
            await link.ended(_GRACE)

    def abandon(self) -> None:
        """Leave nothing behind, without an event loop."""
        if self._link is not None:
            self._link.abandon()

    # ------------------------------------------------------------------------------------------------- requests

    def add(self, add: Add, stream: Stream) -> None:
        """Send a request whose answer goes to a stream.

        Raises:
            RequestError: it cannot be encoded.
        """
        assert self._link is not None
        self._link.send(add)
        stream.replica = self.number
        self.open[add.key] = stream
        self._heartbeat.begin()

    def send(self, command: Command) -> None:
        """Send another command; does nothing where there is no process."""
        if self._link is not None:
            self._link.send(command)

    def leave(self, key: int) -> None:
        """Forget a request whose reader is gone, if this replica has it."""
        self.open.pop(key, None)
        if not self.open:
            self._heartbeat.end()

    # ---------------------------------------------------------------------------------------------- the process

    async def _launch(self) -> None:
        """Start a process and wait until it is ready or has failed."""
        self._started = asyncio.get_running_loop().create_future()
        self._link = self._calls.link(self._on_report, self._ended)
        self._start_heartbeat.begin()
        try:
            await self._started
        finally:
            self._start_heartbeat.end()
        if self._link is None:
            raise EngineDeadError(
                f"{self._name}'s process died as soon as it had started; see what it wrote to stderr"
            )

    def _ended(self) -> None:
        """The process is gone."""
        link, self._link, self.facts = self._link, None, None
        # Its counters are kept until the next one's first report; its open requests are lost.
        self.stats = replace(self.stats, running=0, waiting=0, blocks_used=0)
        if self._started is not None and self._starting:
            how = "" if link is None else f" (exit code {link.exit_code})"
            self._started.set_exception(
                EngineDeadError(f"{self._name}'s process died while it started{how}; see what it wrote to stderr")
            )
        elif self.state == "ready":
            code = link and link.exit_code
            logger.error("%s's process died (exit code %s) and is being restarted", self._name, code)
            self.state = "restarting"
            self._restarting = asyncio.get_running_loop().create_task(self._restart())
        lost, self.open = self.open, {}
        for stream in lost.values():
            stream.fail(EngineDeadError(DIED))
        self._heartbeat.end()
        self._calls.lost(self)

    async def _restart(self) -> None:
        now = asyncio.get_running_loop().time
        if now() - self._up_since > _STEADY:
            self._delay = _FIRST_DELAY
        while True:
            delay, self._delay = self._delay, min(2 * self._delay, _LONGEST_DELAY)
            await asyncio.sleep(delay)
            self.restarts += 1
            try:
                await self._launch()
            except Exception as error:  # the cause may be gone by the next try
                logger.error("%s cannot be restarted: %s", self._name, error)
                if self._link is not None:
                    await self._link.ended(_GRACE)
            else:
                self.state, self._up_since = "ready", now()
                return

    def _kill_hung(self) -> None:
        """The engine hangs: it can only be killed."""
        if self._link is not None:
            logger.error("%s sent nothing within --engine-timeout and is killed", self._name)
            self._link.kill()

    def _on_report(self, report: Report) -> None:
        """Pass the engine's reports on."""
        self._heartbeat.beat()
        self._start_heartbeat.beat()
        if isinstance(report, Outputs):
            if report.stats is not None:
                self.stats = report.stats
            self._calls.outputs(report)
        elif isinstance(report, EngineLoading):
            self._calls.progress(report.progress)
        elif isinstance(report, KeepAlive) or self._started is None or not self._starting:
            pass  # a heartbeat, or the waiter is gone
        elif isinstance(report, EngineReady):
            self._on_ready(report, self._started)
        else:
            self._started.set_exception(report.error())

    def _on_ready(self, facts: EngineReady, started: "asyncio.Future[None]") -> None:
        """The engine is loaded, and serves unless a check fails."""
        try:
            self._calls.ready(self, facts)
        except Exception as error:  # what waits for `started` must not wait for ever
            started.set_exception(error)
            assert self._link is not None
            self._link.kill()
        else:
            self.facts = facts
            started.set_result(None)
