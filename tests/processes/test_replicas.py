"""Two engines behind one front: the tokens of one, and what happens when one of them ends."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from asking import essence, random_seed
from conftest import MakeLLM, Pair
from forked_engines import forking_engines
from serving import House, housed, last, until

from parlay import CapacityError, ConfigError, EngineDeadError, RequestOutput, SamplingParams, env
from parlay.link.protocol import EngineReady
from parlay.server.remote import client as client_module
from parlay.server.remote.client import EngineClient
from parlay.server.remote.engine_link import EngineLink
from parlay.system import allowed_processors

pytestmark = pytest.mark.processes

PROMPT = list(range(40, 52)) * 2
ENDLESS = SamplingParams(temperature=0.7, seed=3, max_tokens=480, ignore_eos=True)
SHORT = SamplingParams(max_tokens=3)
OPTIONS = {"max_model_len": 512, "num_blocks": 256}
LIMIT = 60.0


@pytest.fixture(scope="module", autouse=True)
def _forked_engines() -> Iterator[None]:
    with forking_engines():
        yield


@pytest.fixture(scope="module")
def house(models: dict[str, Pair]) -> Iterator[House]:
    with housed(models["float32"].target, LIMIT, data_parallel_size=2, engine_timeout=5.0, **OPTIONS) as house:
        yield house
        house.run(until(lambda: all(replica.state == "ready" for replica in house.client.replicas)))
        pids = [replica.pid for replica in house.client.replicas]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)


@asynccontextmanager
async def begun(client: EngineClient, number: int) -> AsyncIterator[dict[int, list[AsyncIterator[RequestOutput]]]]:
    """Open streams that have given their first output, by who computes them."""
    streams = [client.generate([*PROMPT, i], ENDLESS) for i in range(number)]
    firsts = await asyncio.gather(*(anext(stream) for stream in streams))
    by_replica: dict[int, list[AsyncIterator[RequestOutput]]] = {0: [], 1: []}
    for stream, first in zip(streams, firsts, strict=True):
        by_replica[first.replica].append(stream)
    assert by_replica[0]
    assert by_replica[1]
    yield by_replica
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]


def idle(client: EngineClient) -> bool:
    stats = client.stats()
    return stats.running == stats.waiting == stats.blocks_used == 0 and not client._streams


async def test_the_tokens_of_one_engine(house: House, make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the requests has a seed: those come from the order of arrival at the front, whoever computes them."""
    rng = Random(random_seed())
    prompts = [[rng.randrange(256), *PROMPT[: rng.randrange(20)]] for _ in range(40)]
    params = [SamplingParams(temperature=1.0, max_tokens=12, logprobs=1, n=rng.choice([1, 1, 2])) for _ in prompts]
    expected = make_llm(**OPTIONS).generate(prompts, params)
    monkeypatch.setattr(house.client, "_arrivals", count())  # as if nobody had asked before
    asked = (last(house.client, *one, tenant=rng.choice("ab")) for one in zip(prompts, params, strict=True))
    found = await asyncio.gather(*asked)
    assert {output.replica for output in found} == {0, 1}
    for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert list(map(essence, ours.outputs)) == list(map(essence, theirs.outputs)), f"request {i}"
    assert len({output.outputs[0].token_ids for output in found}) > 20


async def test_a_conversation_stays_with_its_cache(house: House) -> None:
    talks = [[i, *PROMPT] for i in range(100, 103)]
    homes: list[set[int]] = [set() for _ in talks]
    for turn in range(4):
        for i, talk in enumerate(talks):
            output = await last(house.client, talk, SHORT)
            homes[i].add(output.replica)
            if turn:
                assert output.metrics.cached_tokens >= (len(output.prompt_token_ids) - 24) // 16 * 16 > 0
            talks[i] = [*talk, *output.outputs[0].token_ids, *range(20)]
    assert [len(home) for home in homes] == [1, 1, 1]
    assert set.union(*homes) == {0, 1}


async def test_a_killed_one_costs_its_own_requests(house: House) -> None:
    client = house.client
    victim = client.replicas[1]
    pid, other = victim.pid, client.replicas[0].pid
    restarts = victim.restarts, client.restarts
    assert pid is not None
    async with begun(client, 6) as streams:
        os.kill(pid, signal.SIGKILL)
        for stream in streams[1]:
            with pytest.raises(EngineDeadError, match="died and is being restarted; send the request again"):
                async for _ in stream:
                    pass
        assert (client.state, victim.state) == ("ready", "restarting")
        assert (await last(client, PROMPT, SHORT)).replica == 0  # who serves meanwhile
        for stream in streams[0]:
            *_, output = [output async for output in stream]
            assert len(output.outputs[0].token_ids) == 480
    await until(lambda: victim.state == "ready")
    async with begun(client, 4):  # both compute again
        pass
    await until(lambda: idle(client))
    assert (victim.restarts, client.restarts) == (restarts[0] + 1, restarts[1] + 1)
    assert client.replicas[0].pid == other
    assert victim.pid not in (pid, None)


# ----------------------------------------------------------------------------------------------------- who may serve


class Otherwise(EngineLink):
    """A process that says to compute otherwise from its `first` start on; counts them."""

    first, starts = 0, 0

    def __init__(self, *arguments: Any) -> None:
        *options, on_report, on_end = arguments
        number, Otherwise.starts = Otherwise.starts, Otherwise.starts + 1

        def tell(report: Any) -> None:
            if isinstance(report, EngineReady) and number >= Otherwise.first:
                parts = report.numerics_id.split("/")
                parts[2] = "kernels-of-its-own"
                report = msgspec.structs.replace(report, numerics_id="/".join(parts))
            on_report(report)

        super().__init__(*options, tell, on_end)


@pytest.fixture
def otherwise(monkeypatch: pytest.MonkeyPatch) -> type[Otherwise]:
    monkeypatch.setattr(client_module, "EngineLink", Otherwise)
    Otherwise.first, Otherwise.starts = 1, 0
    return Otherwise


async def test_another_numerics_id_is_refused(models: dict[str, Pair], otherwise: type[Otherwise]) -> None:
    client = EngineClient(models["float32"].target, data_parallel_size=2, **OPTIONS)
    with pytest.raises(ConfigError, match=r"replica 1 would give other tokens .* kernels-of-its-own instead of \S+;"):
        await client.start()
    assert client.state == "closed"
    assert [replica.pid for replica in client.replicas] == [None, None]


async def test_one_that_comes_back_otherwise_is_kept_out(
    models: dict[str, Pair], otherwise: type[Otherwise], caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again as one that does not start; once it is as it was, it serves."""
    otherwise.first = 2
    async with EngineClient(models["float32"].target, data_parallel_size=2, **OPTIONS) as client:
        numerics = client.numerics_id
        os.kill(client.replicas[1].pid or 0, signal.SIGKILL)
        await until(lambda: otherwise.starts > 3)  # once in vain
        otherwise.first = 10**9
        await until(lambda: client.replicas[1].state == "ready")
        assert client.state == "ready"
        assert client.numerics_id == numerics
        assert client.restarts == 2
    assert "replica 1 cannot be restarted: replica 1 would give other tokens" in caplog.text


# --------------------------------------------------------------------------------------------- what they share


def test_threads_and_memory_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAY_THREADS", "7")
    monkeypatch.setenv("PARLAY_MEMORY", "1000")
    assert env.share(1) == {}
    assert env.share(3) == {"PARLAY_THREADS": "2", "PARLAY_MEMORY": "333"}
    assert env.share(20)["PARLAY_THREADS"] == "1"
    assert env.share(2, 8)["PARLAY_THREADS"] == "3"
    assert env.share(2, 2)["PARLAY_THREADS"] == "2"


async def test_a_replica_has_its_share_alone(models: dict[str, Pair], make_llm: MakeLLM, monkeypatch: Any) -> None:
    """Memory that one engine can do with is too little for two, which is said."""
    target = models["float32"].target
    memory = make_llm(**OPTIONS).engine.memory
    monkeypatch.setenv("PARLAY_MEMORY", str((memory.weights + memory.cache) * 3 // 2))
    async with EngineClient(target, **OPTIONS):
        pass
    with pytest.raises(CapacityError, match=r"each of 2 replicas may take as much: fewer \(data_parallel_size\)"):
        await EngineClient(target, data_parallel_size=2, **OPTIONS).start()


async def test_replicas_stay_on_their_processors(models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with two memory nodes, a restart included; each has as many threads as processors at most."""
    allowed = sorted(allowed_processors())
    if len(allowed) < 2:
        pytest.skip("one processor is one node, and a system that does not say which there are has none")
    nodes = [frozenset(allowed[:1]), frozenset(allowed[1:])]
    monkeypatch.setattr(client_module, "memory_nodes", lambda: nodes)
    async with EngineClient(models["float32"].target, data_parallel_size=2, **OPTIONS) as client:
        assert client._shares[0]["PARLAY_THREADS"] == "1"
        on = [os.sched_getaffinity(replica.pid or 0) for replica in client.replicas]
        assert on == nodes
        os.kill(client.replicas[1].pid or 0, signal.SIGKILL)
        await until(lambda: client.restarts == 1 and client.replicas[1].state == "ready")
        pid = client.replicas[1].pid
        threads = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
        assert all(os.sched_getaffinity(thread) == nodes[1] for thread in threads)


def test_more_replicas_than_threads_are_warned_of(
    models: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PARLAY_THREADS", "2")
    for replicas in (2, 3):
        EngineClient(models["float32"].target, data_parallel_size=replicas)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "data_parallel_size=3 exceeds the threads there are (2)"
    ]
