"""The asynchronous engine alone, over a link that this test plays: what any kind of link may rely on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from conftest import Pair

from parlay import EngineDeadError, ParlayError, RequestError, RequestOutput, SamplingParams
from parlay.config import EngineConfig
from parlay.engine.memory import Memory
from parlay.link.engine import AsyncEngine, State
from parlay.link.protocol import (
    Abort,
    Add,
    Command,
    Delta,
    EngineReady,
    Failure,
    Outputs,
    ProtocolError,
    plain_metrics,
)
from parlay.sampling.seeds import arrival_seed
from parlay.text.tokenizer import TextCodec
from parlay.types.output import RequestMetrics
from parlay.types.stats import StatsSnapshot

SHORT = SamplingParams(max_tokens=4)


class Wire:
    """A link that keeps what it is told."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def send(self, command: Command) -> None:
        if isinstance(command, Add) and "logits_processors" in command.params:
            raise RequestError("not through here")
        self.commands.append(command)


class Played(AsyncEngine):
    """An engine whose answers the test gives."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(EngineConfig(model=str(pair.target), seed=5))
        self._codec = TextCodec(pair.target)
        self._facts = EngineReady("id", 64, 257, str(pair.target), ("none",), {}, Memory(0, 0, 0, 0))
        self._link = self.wire = Wire()
        self.up: State = "ready"

    @property
    def state(self) -> State:
        return self.up

    def stats(self) -> StatsSnapshot:
        return StatsSnapshot()

    def _unavailable(self) -> ParlayError:
        return EngineDeadError(f"it is {self.up}")

    def tell(self, key: int, tokens: list[int], finish: Any = None, index: int = 0) -> None:
        metrics = plain_metrics(RequestMetrics(emitted=len(tokens)))
        text = "".join(chr(token) for token in tokens)
        sources = ["target"] * len(tokens)
        self._take_outputs(
            Outputs([Delta(key, 7, index, tokens, text, sources, None, finish, None, metrics)], [], [])
        )

    def end(self) -> None:
        self.up = "restarting"
        self._fail_all(self._unavailable())


@pytest.fixture
def engine(models: dict[str, Pair]) -> Played:
    return Played(models["float32"])


async def begun(engine: Played, *arguments: Any, **more: Any) -> tuple[AsyncIterator[RequestOutput], Any]:
    """Return a stream whose request is on its way, and the task that awaits its first output."""
    stream = engine.generate(*arguments, **more)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    return stream, first


@pytest.mark.parametrize(("deltas", "second"), [(False, "abcd"), (True, "cd")])
async def test_what_was_told_meanwhile_comes_at_once(engine: Played, deltas: bool, second: str) -> None:
    stream, first = await begun(engine, [1, 2], SHORT, deltas=deltas)
    engine.tell(0, [97])
    engine.tell(0, [98])
    assert (await first).outputs[0].text == "ab"
    engine.tell(0, [99])
    engine.tell(0, [100], "length")
    output = await anext(stream)
    assert (output.outputs[0].text, output.finished, output.request_id) == (second, True, "7")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert [type(command) for command in engine.wire.commands] == [Add]
    assert not engine._streams


async def test_seeds_come_from_the_order_of_arrival(engine: Played) -> None:
    """Refused prompts and those with a seed of their own count too."""
    asked = [([1], SHORT), ([999], SHORT), ([1], SamplingParams(seed=3)), ([1], SHORT)]
    for prompt, params in asked:
        await begun(engine, prompt, params)
    adds = [command for command in engine.wire.commands if isinstance(command, Add)]
    assert [add.params["seed"] for add in adds] == [arrival_seed(5, 0), 3, arrival_seed(5, 3)]
    engine.end()


async def test_leaving_is_told_once(engine: Played) -> None:
    stream, first = await begun(engine, [1, 2], SHORT)
    engine.tell(0, [97])
    await first
    await stream.aclose()  # type: ignore[attr-defined]
    assert engine.wire.commands[1:] == [Abort(0)]
    engine.tell(0, [98], "length")  # was under way


async def test_the_links_end_fails_all_that_is_open(engine: Played) -> None:
    _, one = await begun(engine, [1, 2], SHORT)
    stream, other = await begun(engine, [1, 2], SHORT)
    _, complete = await begun(engine, [1, 2], SHORT)
    engine.tell(1, [97])
    await other
    engine.tell(2, [97], "stop")
    engine.end()
    for waiting in (one, anext(stream), anext(engine.generate([1], SHORT))):
        with pytest.raises(EngineDeadError, match="it is restarting"):
            await waiting
    assert (await complete).finished, "its answer was complete"
    assert not engine._streams


async def test_one_failure_is_one_requests(engine: Played) -> None:
    _, bad = await begun(engine, [1, 2], SHORT)
    _, good = await begun(engine, [1, 2], SHORT)
    engine._take_outputs(Outputs([], [], [Failure("RequestError", "no", 0), Failure("RequestError", "who", 9)]))
    with pytest.raises(RequestError, match="no"):
        await bad
    engine.tell(1, [97], "stop")
    assert (await good).finished


async def test_what_cannot_travel_is_refused(engine: Played) -> None:
    for params, more, match in (
        (SamplingParams(logits_processors=[lambda output, logits: logits]), {}, "not through here"),
        (SHORT, {"priority": "high"}, "priority must be an integer"),
    ):
        with pytest.raises(RequestError, match=match):
            await anext(engine.generate([1], params, **more))
    assert not engine.wire.commands
    assert not engine._streams


def test_a_reader_whose_loop_is_gone_is_left(engine: Played) -> None:
    """Nobody can tell it anything: its request is ended."""
    loop = asyncio.new_event_loop()
    stream, first = loop.run_until_complete(begun(engine, [1, 2], SHORT))
    engine.tell(0, [97])  # from a thread without a loop
    loop.run_until_complete(first)
    loop.close()
    engine.tell(0, [98])
    assert engine.wire.commands[1:] == [Abort(0)]
    assert not engine._streams
    del stream


async def test_whatever_goes_wrong_while_sending_leaves_nothing_open(engine: Played) -> None:
    def broken(command: Command) -> None:
        raise OSError("the wire is cut")

    engine.wire.send = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="cut"):
        await anext(engine.generate([1, 2], SHORT))
    assert not engine._streams


async def test_a_fault_of_this_side_is_one_request_s(engine: Played, caplog: pytest.LogCaptureFixture) -> None:
    (_, first), (_, second) = await begun(engine, [1], SHORT), await begun(engine, [2], SHORT)

    def broken(*news: Any) -> bool:
        raise ZeroDivisionError

    engine._streams[0].add = broken  # type: ignore[method-assign]
    metrics = plain_metrics(RequestMetrics(emitted=1))
    deltas = [Delta(key, 7, 0, [97], "a", ["target"], None, "stop", None, metrics) for key in (0, 1)]
    engine._take_outputs(Outputs(deltas, [], []))
    with pytest.raises(ParlayError, match="could not be processed"):
        await first
    assert (await second).outputs[0].text == "a"
    assert engine.wire.commands[-1] == Abort(0)
    assert not engine._streams.get(0)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("index", [1, -1, 1 << 40])
async def test_a_completion_that_there_is_not_contradicts(engine: Played, index: int) -> None:
    _, first = await begun(engine, [1], SHORT)
    with pytest.raises(ProtocolError):
        engine.tell(0, [97], index=index)
    engine.tell(0, [98], "stop")
    assert (await first).outputs[0].text == "b"
