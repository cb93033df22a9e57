"""One engine over the restarts of its process, which this test plays."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from serving import until

from parlay import EngineDeadError, ModelError, ParlayError
from parlay.engine.memory import Memory
from parlay.link.protocol import Add, Command, EngineLoading, EngineReady, Failure, KeepAlive, Outputs, Report, Stop
from parlay.server.remote import replica as replica_module
from parlay.server.remote.replica import Calls, Replica
from parlay.types.progress import Progress
from parlay.types.stats import StatsSnapshot

FACTS = EngineReady("id", 64, 257, "x", ("none",), {}, Memory(0, 0, 0, 0))


class Link:
    """A process that does as it is told, and says what the test says."""

    def __init__(self, house: "House", report: Callable[[Report], None], on_end: Callable[[], None]) -> None:
        self.report, self._on_end = report, on_end
        self.pid, self.exit_code = len(house.links) + 1, None
        self.commands: list[Command] = []
        self.killed = self.gone = False
        self._loop = asyncio.get_running_loop()
        house.links.append(self)

    def send(self, command: Command) -> None:
        self.commands.append(command)
        if isinstance(command, Stop):
            self.end(0)

    def kill(self) -> None:
        self.killed = True
        self.end(-9)

    def end(self, code: int) -> None:
        if not self.gone:
            self.gone, self.exit_code = True, code
            self._loop.call_soon(self._on_end)

    async def ended(self, seconds: float) -> None:
        await asyncio.sleep(0)
        if not self.gone:
            self.kill()


class CallReader:
    """A stream as a replica sees it."""

    unfinished, replica = 1, -1

    def __init__(self) -> None:
        self.error: ParlayError | None = None

    def fail(self, error: ParlayError) -> None:
        self.error = error


class House:
    """A replica and its processes."""

    def __init__(self, timeout: float = 100.0, ready: Callable[[Any, EngineReady], None] = lambda *_: None) -> None:
        self.links: list[Link] = []
        self.outputs: list[Outputs] = []
        self.progress: list[Progress] = []
        self.lost = 0
        self.troubles: list[Exception] = []  # of processes that cannot be started
        calls = Calls(self._link, ready, self.outputs.append, self.progress.append, self._lose)
        self.replica = Replica(0, "the engine", timeout, calls)

    def _link(self, report: Callable[[Report], None], on_end: Callable[[], None]) -> Any:
        if self.troubles:
            raise self.troubles.pop()
        return Link(self, report, on_end)

    def _lose(self, replica: Replica) -> None:
        self.lost += 1

    async def up(self, count: int = 1) -> Link:
        """Return the process of that number, once it serves."""
        started = None if self.links else asyncio.ensure_future(self.replica.start())
        await until(lambda: len(self.links) == count)
        self.links[-1].report(FACTS)
        await until(lambda: self.replica.state == "ready")
        if started is not None:
            await started
        return self.links[-1]

    async def close(self) -> None:
        await self.replica.retire()
        await self.replica.end()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "_FIRST_DELAY", 0.0)
    monkeypatch.setattr(replica_module, "_LONGEST_DELAY", 0.0)


def add(replica: Replica, key: int) -> CallReader:
    reader = CallReader()
    replica.add(Add(key, (1, 2), {}), reader)  # type: ignore[arg-type]
    return reader


async def test_a_death_fails_what_is_open_and_the_next_process_serves() -> None:
    house = House()
    first = await house.up()
    readers = [add(house.replica, key) for key in range(3)]
    house.replica.leave(2)
    first.report(Outputs([], [], [], StatsSnapshot(running=2, steps=7)))
    first.end(-11)
    await until(lambda: house.replica.state == "restarting")
    assert [type(reader.error) for reader in readers] == [EngineDeadError, EngineDeadError, type(None)]
    assert (house.replica.stats.running, house.replica.stats.steps) == (0, 7)
    assert (house.replica.open, house.lost) == ({}, 1)
    second = await house.up(2)
    assert (house.replica.restarts, house.replica.pid) == (1, 2)
    reader = add(house.replica, 5)
    assert [command.key for command in second.commands] == [5]  # type: ignore[union-attr]
    assert reader.error is None
    assert len(first.commands) == 3
    await house.close()
    assert isinstance(second.commands[-1], Stop)


async def test_one_that_does_not_come_up_is_tried_again() -> None:
    house = House()
    first = await house.up()
    house.troubles = [OSError("no memory for a process"), RuntimeError("nor for a thread")]
    first.end(1)
    for count in (2, 3, 4):
        await until(lambda count=count: len(house.links) == count)  # type: ignore[misc]
        if count == 2:
            house.links[-1].end(1)  # it dies
        elif count == 3:
            house.links[-1].report(Failure("ModelError", "gone"))  # it says why not, and is ended
    await house.up(4)
    assert house.replica.restarts == 5
    assert house.links[2].gone
    await house.close()


@pytest.mark.parametrize("again", [False, True])
async def test_one_that_stops_while_it_starts_is_killed(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped by a signal, or by what it waits for: no thread of it says a word."""
    monkeypatch.setattr(replica_module, "_START", 0.02)
    house = House(timeout=0.01)
    if not again:
        with pytest.raises(EngineDeadError, match="died while it started"):
            await house.replica.start()
        assert house.links[0].killed
        return
    (await house.up()).end(1)
    await until(lambda: len(house.links) == 2)
    await until(lambda: house.links[1].killed)
    await house.up(3)
    await house.close()


@pytest.mark.parametrize("report", [KeepAlive(), EngineLoading(Progress("weights", 1, 2))])
async def test_one_that_is_slow_to_start_is_not(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "_START", 0.05)
    house = House(timeout=0.05)
    started = asyncio.ensure_future(house.replica.start())
    await until(lambda: bool(house.links))
    for _ in range(12):
        await asyncio.sleep(0.01)
        house.links[0].report(report)
    house.links[0].report(FACTS)
    await started
    await asyncio.sleep(0.08)  # idle, it may say nothing for as long as it likes
    assert not house.links[0].killed
    await house.close()


async def test_one_that_hangs_with_open_requests_is_killed() -> None:
    house = House(timeout=0.02)
    link = await house.up()
    reader = add(house.replica, 1)
    reader.unfinished = 0  # the answer is complete: a reader may take longer than the engine
    await asyncio.sleep(0.06)
    assert not link.killed
    reader = add(house.replica, 2)
    await until(lambda: reader.error is not None)
    assert link.killed
    await house.up(2)
    await house.close()


@pytest.mark.parametrize("error", [ModelError("it computes otherwise"), ZeroDivisionError("a bug")])
async def test_one_that_must_not_serve_is_killed_and_whoever_waits_hears_why(error: Exception) -> None:
    def refuse(*_: Any) -> None:
        raise error

    house = House(ready=refuse)
    started = asyncio.ensure_future(house.replica.start())
    await until(lambda: bool(house.links))
    house.links[0].report(FACTS)
    with pytest.raises(type(error)):
        await started
    assert house.links[0].killed


async def test_nothing_is_restarted_while_it_ends() -> None:
    house = House()
    link = await house.up()
    await house.replica.retire()
    link.end(1)
    await until(lambda: house.lost == 1)
    await house.replica.end()
    assert house.replica.state == "closed"
    assert len(house.links) == 1
