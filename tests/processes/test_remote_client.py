"""The engine in a process of its own: the same answers as in this one, and what happens when it ends."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from asking import essence, random_seed
from conftest import MakeLLM, Pair
from forked_engines import forking_engines
from serving import House, housed, last, until

from parlay import ConfigError, EngineDeadError, ModelError, ParlayError, RequestError, RequestOutput, SamplingParams
from parlay.server.remote.client import EngineClient
from parlay.types.stats import DraftStats

pytestmark = pytest.mark.processes

PROMPT = list(range(40, 52)) * 2
PARAMS = SamplingParams(temperature=0.7, seed=3, max_tokens=12, logprobs=1)
ENDLESS = SamplingParams(temperature=0.7, seed=3, max_tokens=480, ignore_eos=True)
OPTIONS = {"max_model_len": 512, "num_blocks": 256}
LIMIT = 30.0


@pytest.fixture(scope="module", autouse=True)
def _forked_engines() -> Iterator[None]:
    with forking_engines():
        yield


@pytest.fixture(scope="module")
def house(models: dict[str, Pair]) -> Iterator[House]:
    with housed(models["float32"].target, LIMIT, **OPTIONS) as house:
        yield house


@asynccontextmanager
async def begun(client: EngineClient, *prompts: Any) -> AsyncIterator[list[AsyncIterator[RequestOutput]]]:
    """Open streams that have given their first output."""
    streams = [client.generate(prompt, ENDLESS) for prompt in prompts]
    await asyncio.gather(*(anext(stream) for stream in streams))
    yield streams
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]


def idle(client: EngineClient) -> bool:
    stats = client.stats()
    return stats.running == stats.waiting == stats.blocks_used == 0


def whole(output: RequestOutput) -> Any:
    """Return everything but the clock's readings and the engine's own number."""
    scores = output.prompt_logprobs and [
        position and [(t, p.logprob.hex(), p.rank, p.decoded_token) for t, p in position.items()]
        for position in output.prompt_logprobs
    ]
    return output.prompt, output.prompt_token_ids, [(c.index, essence(c)) for c in output.outputs], scores


def random_params(rng: Random) -> SamplingParams:
    def maybe(share: float, value: Any, default: Any = None) -> Any:
        return value if rng.random() < share else default

    temperature, n = rng.choice([0.0, 0.7, 1.0]), maybe(0.3, rng.randint(2, 3), 1)
    form = maybe(0.2, rng.choice([{"regex": "[a-f]{3,9}"}, {"choice": ["yes", "no"]}]))
    return SamplingParams(
        n=n,
        best_of=maybe(0.3, n + 1) if temperature else None,
        temperature=temperature,
        top_k=maybe(0.3, rng.randint(1, 50), 0),
        top_p=maybe(0.3, rng.uniform(0.3, 1), 1.0),
        min_p=maybe(0.2, 0.05, 0.0),
        presence_penalty=maybe(0.2, 0.5, 0.0),
        repetition_penalty=maybe(0.2, 1.2, 1.0),
        seed=maybe(0.5, rng.getrandbits(64)),
        max_tokens=rng.randint(1, 40),
        stop=tuple(rng.choices("abcdefgh ", k=maybe(0.3, 2, 0))),
        include_stop_str_in_output=rng.random() < 0.5,
        bad_words=maybe(0.2, ["ab"], ()),
        logit_bias=maybe(0.2, {97: 2.5}),
        logprobs=rng.choice([None, 0, 3]),
        prompt_logprobs=maybe(0.2, rng.choice([0, 2])),
        structured_outputs=form,
        ignore_eos=form is None and rng.random() < 0.5,
        speculative=maybe(0.2, rng.choice([{"enabled": False}, {"num_speculative_tokens": 2}])),
        prediction=maybe(0.3, rng.choice(["abcd efgh", [97, 98, 99, 100], PROMPT])),
        return_rejected=rng.random() < 0.3,
    )


async def test_as_in_this_process(house: House, make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random parameters; no seeds for half of the requests, so that they come from the order of arrival."""
    rng = Random(random_seed())
    prompts: list[Any] = [
        "".join(rng.choices("abcd efgh", k=9)) * 2 if rng.random() < 0.3 else PROMPT[rng.randint(0, 9) :]
        for _ in range(40)
    ]
    params = [random_params(rng) for _ in prompts]
    expected = make_llm(**OPTIONS).generate(prompts, params)
    monkeypatch.setattr(house.client, "_arrivals", count())  # as if nobody had asked before
    asked = (last(house.client, *one, final_only=rng.random() < 0.5) for one in zip(prompts, params, strict=True))
    found = await asyncio.gather(*asked)
    for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert whole(ours) == whole(theirs), f"request {i} with PARLAY_TEST_SEED={random_seed()}: {params[i]}"
        assert [c.metrics.emitted for c in ours.outputs] == [c.metrics.emitted for c in theirs.outputs]


@pytest.mark.parametrize("final_only", [False, True])
async def test_rejected_guesses_and_predictions_travel(house: House, make_llm: MakeLLM, final_only: bool) -> None:
    offline = make_llm("ngram", **OPTIONS)
    texts = [None, "abcd abcd", [7, 8, 9]]
    params = [replace(PARAMS, n=2, max_tokens=60, return_rejected=True, prediction=text) for text in texts]
    for one, expected in zip(params, offline.generate([PROMPT] * 3, params), strict=True):
        found = await last(house.client, PROMPT, one, final_only=final_only)
        assert [c.rejected for c in found.outputs] == [c.rejected for c in expected.outputs]
        assert [c.sources for c in found.outputs] == [c.sources for c in expected.outputs]
        assert any(c.rejected for c in found.outputs)
        for completion in found.outputs:
            assert completion.rejected is not None
            assert len(completion.rejected) == completion.metrics.drafted - completion.metrics.accepted
    assert (await last(house.client, PROMPT, PARAMS)).outputs[0].rejected is None
    with pytest.raises(RequestError, match="prediction has 513 tokens"):
        await last(house.client, PROMPT, SamplingParams(prediction="x" * 513))


async def test_slow_readers_miss_no_tokens(house: House) -> None:
    """This process does nothing for a while: the engine goes on, and what was not told yet comes in few outputs."""
    steps = house.client.stats().turns
    async with begun(house.client, *(PROMPT[i:] for i in range(4))) as streams:
        time.sleep(1.5)  # the loop is to stand still
        seen = [[output async for output in stream] for stream in streams]
    await until(lambda: idle(house.client))
    assert house.client.stats().turns > steps
    assert max(map(len, seen)) < 240  # of 480 where nothing is put together
    for i, outputs in enumerate(seen):
        assert whole(outputs[-1]) == whole(await last(house.client, PROMPT[i:], ENDLESS))


async def test_leaving_frees_blocks(house: House) -> None:
    async with begun(house.client, PROMPT, PROMPT[3:]):
        await until(lambda: house.client.stats().blocks_used > 0)
    task = asyncio.create_task(last(house.client, PROMPT, ENDLESS))
    await until(lambda: bool(house.client._streams))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: idle(house.client))
    assert not house.client._streams
    assert house.client.stats().finished["abort"] >= 2


async def test_a_bad_request_costs_the_others_nothing(house: House) -> None:
    bad: list[Any] = ["", [999], {"text": "x"}, [1] * 600, b"x", None, "\ud800"]
    wrong = [SamplingParams(stop_token_ids=[999]), SamplingParams(speculative={"method": "eagle"})]
    wrong += [SamplingParams(max_tokens=1 << 70), SamplingParams(logits_processors=[lambda o, x: x])]
    asked = [last(house.client, p, PARAMS) for p in bad] + [last(house.client, PROMPT, p) for p in wrong]
    *refused, good = await asyncio.gather(*asked, last(house.client, PROMPT, PARAMS), return_exceptions=True)
    assert not house.client._streams
    assert all(isinstance(error, RequestError) for error in refused)
    assert good.finished


async def test_what_it_knows_and_counts(house: House) -> None:
    client = house.client
    before = client.stats()
    output = await last(client, PROMPT, ENDLESS)
    await until(lambda: client.stats().finished["length"] > before.finished.get("length", 0))
    stats = client.stats()
    assert client.state == "ready"
    assert client.max_model_len == 512
    assert client.facts.methods == ("none", "ngram")
    assert client.codec.decode(PROMPT)
    assert client.numerics_id.startswith("target-")
    assert stats.emitted - before.emitted == 480
    assert stats.turns - before.turns == output.metrics.steps
    assert (
        sum(stats.undrafted.values()) - sum(before.undrafted.values()) == output.metrics.steps - output.metrics.drafts
    )
    # A method whose guesses did not seem to pay may have no counters yet.
    nothing = DraftStats()
    earlier, ngram = (of.methods.get("ngram", nothing) for of in (before, stats))
    assert ngram.accepted - earlier.accepted == output.metrics.accepted
    assert ngram.drafted - earlier.drafted == output.metrics.drafted
    assert sum(ngram.accepted_per_position) == ngram.accepted
    assert min(stats.forward, stats.verify, stats.propose, stats.schedule) > 0
    assert stats.blocks == 256


async def test_killed_while_streaming(house: House) -> None:
    client = house.client
    pid = client.pid
    assert pid is not None
    async with begun(client, PROMPT, PROMPT[1:]) as streams:
        await until(lambda: client.stats().running == 2)
        os.kill(pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineDeadError, match="send the request again"):
                async for _ in stream:
                    pass
    assert client.state == "restarting"
    assert (client.stats().running, client.stats().blocks_used) == (0, 0)
    assert client.stats().emitted > 0  # what was counted is counted
    with pytest.raises(EngineDeadError, match="being restarted"):
        await last(client, PROMPT)
    with pytest.raises(ProcessLookupError):  # not even a zombie
        os.kill(pid, 0)
    await until(lambda: client.state == "ready")
    assert len(list(house.temporary.iterdir())) == 1
    assert (await last(client, PROMPT, PARAMS)).finished
    assert client.pid != pid
    assert client.restarts == 1


async def test_signals_of_a_terminal_and_a_service_manager_leave_it_to_the_front(house: House) -> None:
    async with begun(house.client, PROMPT) as (stream,):
        assert house.client.pid is not None
        os.kill(house.client.pid, signal.SIGINT)
        os.kill(house.client.pid, signal.SIGTERM)
        *_, output = [output async for output in stream]
    assert output.finished


async def test_closing_drains(house: House) -> None:
    """The last test of the shared engine: what is open finishes, what comes is refused."""
    client = house.client
    pid = client.pid
    short, endless = asyncio.create_task(last(client, PROMPT, ENDLESS)), client.generate(PROMPT, ENDLESS)
    await anext(endless)  # and nobody reads on
    closing = asyncio.create_task(client.close(5.0))  # a slow machine may need some of them
    await asyncio.sleep(0)
    assert client.state == "closed"
    with pytest.raises(ParlayError, match="the engine was closed"):
        await last(client, PROMPT)
    assert len((await short).outputs[0].token_ids) == 480
    await closing
    *_, output = [output async for output in endless]
    assert output.finished, "the answer was complete when the engine ended"
    await client.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid or 0, 0)
    assert not list(house.temporary.iterdir())


def test_wrong_options_are_refused_here(models: dict[str, Pair]) -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_model_len'"):
        EngineClient(models["float32"].target, max_model_lenn=3)


@pytest.mark.parametrize(
    ("more", "kind", "sentence"),
    [
        ({"model": "/no/such/model"}, ModelError, "/no/such/model"),
        ({"speculative_config": {"method": "ngrm"}}, ConfigError, "did you mean 'ngram'"),
    ],
)
def test_an_engine_that_cannot_start_says_why(
    models: dict[str, Pair], more: Any, kind: type[ParlayError], sentence: str
) -> None:
    client = EngineClient(**{"model": models["float32"].target, **more})
    with pytest.raises(kind, match=sentence):
        asyncio.run(asyncio.wait_for(client.start(), LIMIT))
    assert client.state == "closed"
    assert client.pid is None
