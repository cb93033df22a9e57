"""One key after another: who is served when one key has much waiting, and what one key may hold."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest
from serving import until

from parlay.server.fair_queue import FairQueue, Threads


@pytest.mark.parametrize(
    ("places", "calls", "order"),
    [
        (1, "a0 a1 a2 a3 b0", "a0 b0 a1 a2 a3"),  # one key floods
        (1, "a0 a1 a2 b0 b1 c0", "a0 b0 c0 a1 b1 a2"),
        (1, "a0 a1 a2", "a0 a1 a2"),  # alone: in order of arrival
        (1, "a0 b0 c0 a1", "a0 b0 c0 a1"),
        (2, "a0 a1 a2 a3 b0 b1", "a0 b0 a1 b1 a2 a3"),
    ],
)
async def test_keys_take_turns(places: int, calls: str, order: str) -> None:
    """All of them came while the places were taken."""
    turns, begun, free = FairQueue(places), list[str](), asyncio.Event()

    async def work(name: str) -> None:
        begun.append(name)
        await asyncio.sleep(0)

    before = [asyncio.ensure_future(turns.run("first", free.wait)) for _ in range(places)]
    await asyncio.sleep(0)
    tasks = [asyncio.ensure_future(turns.run(name[0], partial(work, name))) for name in calls.split()]
    await asyncio.sleep(0)
    free.set()
    await asyncio.gather(*before, *tasks)
    assert begun == order.split()


@pytest.mark.parametrize("rests", [False, True])
async def test_a_place_rests_as_long_as_its_last_call_took(rests: bool) -> None:
    turns, clock = FairQueue(rests=rests), asyncio.get_running_loop().time
    times = list[float]()

    async def work() -> None:
        times.append(clock())
        await asyncio.sleep(0.05)
        times.append(clock())

    await asyncio.gather(turns.run("a", work), turns.run("b", work))
    assert (times[2] - times[1] >= 0.049) == rests


async def test_a_call_that_leaves_takes_no_turn() -> None:
    turns, free = FairQueue(), asyncio.Event()
    holder = asyncio.ensure_future(turns.run("a", free.wait))
    await asyncio.sleep(0)
    gone = [asyncio.ensure_future(turns.run("a", free.wait)) for _ in range(3)]
    stays = asyncio.ensure_future(turns.run("b", free.wait))
    await asyncio.sleep(0)
    for one in gone:
        one.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    assert list(turns._waiting) == ["b"]
    free.set()
    await asyncio.gather(holder, stays)
    assert turns._free == 1
    assert not turns._waiting


async def test_one_that_is_called_and_leaves_at_once_passes_its_turn_on() -> None:
    turns, free = FairQueue(), asyncio.Event()
    holder = asyncio.ensure_future(turns.run("a", free.wait))
    await asyncio.sleep(0)
    gone, stays = (asyncio.ensure_future(turns.run(key, free.wait)) for key in "bc")
    await asyncio.sleep(0)
    free.set()
    await holder  # the turn is `gone`'s by now
    gone.cancel()
    await stays
    assert turns._free == 1


async def test_what_has_begun_keeps_its_place_though_its_client_has_left() -> None:
    """A thread goes on: without this, a client that leaves at once would fill the thread's own queue."""
    turns, free, begun = FairQueue(), asyncio.Event(), []

    async def work() -> None:
        begun.append(1)
        await free.wait()
        raise ValueError("and nobody hears it")

    gone = asyncio.ensure_future(turns.run("a", work))
    await until(lambda: bool(begun))
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    other = asyncio.ensure_future(turns.run("b", work))
    await asyncio.sleep(0.01)
    assert begun == [1]
    free.set()
    with pytest.raises(ValueError, match="nobody"):
        await other


@pytest.mark.parametrize("size", [1 << 13, 1 << 18, 1 << 22])
async def test_long_and_huge_inputs_take_turns_in_their_threads(size: int) -> None:
    """One key has forty large bodies waiting; another key's is begun after those that run already."""
    threads, held, order = Threads(), Event(), list[str]()

    def work(name: str) -> str:
        held.wait(20)
        order.append(name)
        return name

    flood = [asyncio.ensure_future(threads.run("alice", size, lambda: work("alice"))) for _ in range(40)]
    await asyncio.sleep(0)
    bob = asyncio.ensure_future(threads.run("bob", size, lambda: work("bob")))
    await asyncio.sleep(0)
    held.set()
    assert await bob == "bob"
    await asyncio.gather(*flood)
    assert order.index("bob") <= 9  # of 40: those that ran, and a turn each


async def test_templates_take_turns() -> None:
    """And conversations of many messages keep nobody waiting who has few."""

    class Codec:
        def __init__(self) -> None:
            self.pool = ThreadPoolExecutor(8)

        def lane(self, template: str | None, count: int) -> str:
            return f"{template}{count > 200}"

        async def run_template(self, template: str | None, work: Callable[[], str], count: int) -> str:
            return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    threads, held, codec, order = Threads(), Event(), Codec(), []

    def work(name: str) -> str:
        held.wait(20)
        order.append(name)
        return name

    def ask(key: str, template: str | None, count: int, wait: bool = True) -> "asyncio.Future[str]":
        job = (lambda: work(key)) if wait else (lambda: key)
        return asyncio.ensure_future(threads.run_template(key, codec, template, count, job))  # type: ignore[arg-type]

    flood = [ask("alice", template, 1000) for template in [None] * 20]
    assert await ask("bob", None, 1, wait=False) == "bob"
    bob = ask("bob", None, 1000)
    await asyncio.sleep(0)
    held.set()
    await bob
    assert order.index("bob") <= 2  # one of alice's ran, and one had its turn before
    await asyncio.gather(*flood)
