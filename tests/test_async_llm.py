"""The asyncio interface: the same tokens as the offline one, however requests come and go."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import msgspec
import pytest
from asking import assert_whole, essence
from conftest import MakeLLM, Pair, proposer_options

from parlay import AsyncLLM, ConfigError, ParlayError, RequestError, RequestOutput, SamplingParams
from parlay.link.engine import AsyncEngine
from parlay.link.protocol import Outputs, encode
from parlay.text.detokenizer import Detokenizer

PROMPT = list(range(40, 52)) * 2
PARAMS = SamplingParams(temperature=0.7, seed=3, max_tokens=12, logprobs=1)
LONG = SamplingParams(temperature=0.7, seed=3, max_tokens=100, ignore_eos=True)
MakeAsync = Callable[..., AsyncLLM]


@pytest.fixture
def make(models: dict[str, Pair]) -> Iterator[MakeAsync]:
    """A factory of engines on the shared target, each used in one `asyncio.run`."""
    made: list[AsyncLLM] = []

    def start(method: str | None = None, **options: Any) -> AsyncLLM:
        pair = models["float32"]
        speculative = (
            None if method is None else {"method": method, "lengths": "fixed", **proposer_options(method, pair)}
        )
        llm = AsyncLLM(pair.target, speculative_config=speculative, max_model_len=128, **options)
        made.append(llm)
        return llm

    yield start
    for llm in made:
        asyncio.run(llm.close())
        assert not llm._link.thread.is_alive()
        if not llm._llm.engine.busy:
            assert_whole(llm._llm.engine)


async def last(llm: AsyncLLM, prompt: Any, params: SamplingParams | None = None, **more: Any) -> RequestOutput:
    *_, output = [output async for output in llm.generate(prompt, params, **more)]
    assert output.finished
    return output


def answer(output: RequestOutput) -> Any:
    return [essence(c) for c in output.outputs]


@pytest.mark.parametrize("method", [None, "ngram", "draft_model"])
def test_as_offline(make: MakeAsync, make_llm: MakeLLM, method: str | None) -> None:
    """Ten at once, without seeds of their own: those come from the order of arrival."""
    prompts = [PROMPT[: n + 1] for n in range(10)]
    params = SamplingParams(temperature=1.0, max_tokens=20, n=2, logprobs=0)

    async def main() -> list[RequestOutput]:
        async with make(method) as llm:
            return await asyncio.gather(*(last(llm, prompt, params) for prompt in prompts))

    offline = make_llm().generate(prompts, params)
    assert [answer(o) for o in asyncio.run(main())] == [answer(o) for o in offline]


@pytest.mark.parametrize("deltas", [False, True])
def test_a_request_is_aborted_by_its_id(make: MakeAsync, deltas: bool) -> None:
    """Its last output has what came so far; another request goes on."""

    async def main() -> tuple[list[RequestOutput], RequestOutput]:
        async with make() as llm:
            other = asyncio.ensure_future(last(llm, PROMPT, PARAMS))
            outputs = []
            async for output in llm.generate(PROMPT, replace(LONG, n=2), "mine", deltas=deltas):
                outputs.append(output)
                if len(outputs) == 4:
                    await llm.abort(["mine", "nobody's"])
                    await llm.abort("mine")
            assert not llm._streams.keys() - {0, 1}
            return outputs, await other

    outputs, other = asyncio.run(main())
    whole = outputs if deltas else outputs[-1:]
    tokens = [sum((o.outputs[i].token_ids for o in whole), ()) for i in range(2)]
    assert all(0 < len(own) < 100 for own in tokens)
    assert [c.finish_reason for c in outputs[-1].outputs] == ["abort", "abort"]
    assert {o.request_id for o in outputs} == {"mine"}
    assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
    assert other.outputs[0].finish_reason == "length"
    assert other.request_id is not None
    assert other.request_id.isdigit()


def test_a_request_is_aborted_while_its_prompt_is_encoded(make: MakeAsync, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parlay.link.engine._LONG", 1)  # in a thread

    async def main() -> RequestOutput:
        async with make() as llm:
            asked = asyncio.ensure_future(last(llm, "a long prompt", LONG, request_id="mine"))
            await asyncio.sleep(0)
            assert not llm._streams
            await llm.abort("mine")
            output = await asked
            assert not llm._keys_by_name
            assert not llm._aborted
            return output

    output = asyncio.run(main())
    assert (output.outputs[0].finish_reason, output.outputs[0].token_ids) == ("abort", ())


def test_ids_of_open_requests_are_taken(make: MakeAsync) -> None:
    async def main() -> None:
        async with make() as llm:
            async for output in llm.generate(PROMPT, LONG, request_id="mine"):
                if not output.finished:
                    with pytest.raises(RequestError, match="request_id: 'mine' is that of an open request"):
                        await last(llm, PROMPT, PARAMS, request_id="mine")
            assert (await last(llm, PROMPT, PARAMS, request_id="mine")).request_id == "mine"
            with pytest.raises(RequestError, match="request_id is text, not int"):
                await last(llm, PROMPT, PARAMS, request_id=3)

    asyncio.run(main())


def test_outputs_grow(make: MakeAsync) -> None:
    async def main() -> list[RequestOutput]:
        async with make("ngram") as llm:
            return [output async for output in llm.generate(PROMPT, LONG)]

    outputs = asyncio.run(main())
    lengths = [len(o.outputs[0].token_ids) for o in outputs]
    assert lengths == sorted(set(lengths))
    assert lengths[-1] == 100
    assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
    for output in outputs:
        assert outputs[-1].outputs[0].text.startswith(output.outputs[0].text)


@pytest.mark.parametrize("method", [None, "ngram"])
def test_deltas_add_up(make: MakeAsync, method: str | None) -> None:
    """A reader who now and then sleeps included."""
    params = SamplingParams(
        n=2, temperature=0.7, seed=3, max_tokens=90, logprobs=1, prompt_logprobs=0, return_rejected=True, stop="qqq"
    )

    async def main() -> tuple[list[RequestOutput], RequestOutput]:
        async with make(method) as llm:
            outputs = []
            async for output in llm.generate(PROMPT, params, deltas=True):
                outputs.append(output)
                await asyncio.sleep(0.01 * (len(outputs) % 9 == 0))
            return outputs, await last(llm, PROMPT, params)

    deltas, whole = asyncio.run(main())
    assert len(deltas) > 5
    for index, expected in enumerate(whole.outputs):
        ones = [delta.outputs[index] for delta in deltas]
        assert "".join(one.text for one in ones) == expected.text
        for name in ("token_ids", "sources", "logprobs", "rejected"):
            assert tuple(x for one in ones for x in getattr(one, name)) == getattr(expected, name), name
        assert (ones[-1].finish_reason, ones[-1].stop_reason) == (expected.finish_reason, expected.stop_reason)
        assert [one.metrics.emitted for one in ones] == list(accumulate(len(one.token_ids) for one in ones))
    assert deltas[-1].finished
    assert deltas[-1].prompt_logprobs == whole.prompt_logprobs


def test_a_token_costs_no_more_behind_a_long_answer(make: MakeAsync, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told of a step, handed to the reader and read of the text does not grow with the answer."""
    sizes: list[int] = []
    read: list[int] = []
    take, part = AsyncEngine._take_outputs, Detokenizer._from

    def weigh(self: AsyncEngine, outputs: Outputs) -> None:
        sizes.append(len(encode(msgspec.structs.replace(outputs, stats=None))))
        take(self, outputs)

    def count(self: Detokenizer, begin: int) -> str:
        found = part(self, begin)
        read.append(len(found))
        return found

    monkeypatch.setattr(AsyncEngine, "_take_outputs", weigh)
    monkeypatch.setattr(Detokenizer, "_from", count)

    async def main() -> list[RequestOutput]:
        async with make() as llm:
            params = replace(LONG, stop=("~~~~",), logprobs=1)
            return [output async for output in llm.generate(PROMPT, params, deltas=True)]

    outputs = asyncio.run(main())
    told = [size for size in sizes if size > 50]  # the others are snapshots
    assert len(told) == 100
    early, late = max(told[:20]), max(told[-20:-1])  # the last one has what was held back
    assert late <= early + 40, "clock readings and counters may get a few bytes longer"
    handed = [one for output in outputs for one in output.outputs]
    assert sum(len(one.token_ids) for one in handed) == sum(len(one.logprobs or ()) for one in handed) == 100
    text = "".join(one.text for one in handed)
    # Each step looks at its own characters and at as many as a stop string has; the end once at the whole.
    assert sum(read) <= 100 * 2 * 8 + 2 * len(text)


def test_a_slow_reader_misses_no_tokens(make: MakeAsync) -> None:
    async def main() -> tuple[list[int], RequestOutput]:
        async with make() as llm:
            seen, output = [], None
            async for output in llm.generate(PROMPT, LONG):
                seen.append(len(output.outputs[0].token_ids))
                if len(seen) == 1:
                    while llm._llm.engine.busy:
                        await asyncio.sleep(0.001)
            assert output is not None
            return seen, output

    seen, output = asyncio.run(main())
    assert len(seen) <= 3, "outputs that nobody took are not kept"
    assert output.finished
    assert seen[-1] == 100


def test_only_the_final_output(make: MakeAsync) -> None:
    async def main() -> list[RequestOutput]:
        async with make("ngram") as llm:
            return [output async for output in llm.generate(PROMPT, LONG, final_only=True)]

    (output,) = asyncio.run(main())
    assert output.finished
    assert len(output.outputs[0].token_ids) == 100


def test_cancelling_aborts(make: MakeAsync) -> None:
    async def main() -> None:
        async with make("draft_model") as llm:
            task = asyncio.create_task(last(llm, PROMPT, LONG))
            while not llm._llm.engine.busy:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert answer(await last(llm, PROMPT, PARAMS))
            assert not llm._llm.engine.busy
            assert not llm._link.server._open
            assert llm._llm.engine.stats.emitted < 112

    asyncio.run(main())


def test_leaving_the_loop_aborts(make: MakeAsync) -> None:
    async def main() -> None:
        async with make("ngram") as llm:
            outputs = llm.generate(PROMPT, LONG)
            await anext(outputs)
            await outputs.aclose()
            await last(llm, PROMPT, PARAMS)
            assert not llm._streams
            assert not llm._link.server._open

    asyncio.run(main())


WRONG_PLACES: list[tuple[dict[str, Any], str]] = [
    ({"priority": "high"}, "priority must be an integer, not 'high'"),
    ({"priority": None}, "priority must be an integer"),
    ({"priority": float("nan")}, "priority must be an integer"),
    ({"tenant": None}, "tenant must be text"),
    ({"tenant": "\ud800"}, "tenant must be valid Unicode"),
    ({"timeout": "5"}, "timeout must be a number of seconds"),
    ({"timeout": float("nan")}, "timeout must be a number of seconds"),
]


def test_a_bad_request_costs_the_others_nothing(make: MakeAsync, make_llm: MakeLLM) -> None:
    bad: list[Any] = ["", [999], {"text": "x"}, [1] * 400, b"x", None]

    async def main() -> list[Any]:
        async with make("ngram") as llm:
            asked = [last(llm, p, PARAMS) for p in bad]
            asked += [last(llm, PROMPT, PARAMS, **place) for place, _ in WRONG_PLACES]
            results = await asyncio.gather(*asked, last(llm, PROMPT, PARAMS), return_exceptions=True)
            assert not llm._streams
            return results

    *refused, good = asyncio.run(main())
    assert all(isinstance(error, RequestError) for error in refused)
    for error, (_, words) in zip(refused[len(bad) :], WRONG_PLACES, strict=True):
        assert words in str(error)
    assert answer(good) == answer(make_llm().generate(PROMPT, PARAMS)[0])


def test_a_request_that_fails_on_the_way_says_why(make: MakeAsync) -> None:
    def fail(output: list[int], logits: Any) -> Any:
        raise KeyError("nobody knows")

    async def main() -> tuple[Any, Any]:
        async with make("ngram") as llm:
            bad = SamplingParams(n=2, max_tokens=9, logits_processors=[fail])
            asked = last(llm, PROMPT, bad), last(llm, PROMPT, PARAMS)
            failed, good = await asyncio.gather(*asked, return_exceptions=True)
            assert not llm._streams
            assert not llm._link.server._open
            return failed, good

    failed, good = asyncio.run(main())
    assert isinstance(failed, RequestError)
    assert "raised KeyError: 'nobody knows'" in str(failed)
    assert good.outputs[0].finish_reason


def test_a_deadline(make: MakeAsync) -> None:
    async def main() -> RequestOutput:
        async with make() as llm:
            return await last(llm, PROMPT, LONG, timeout=0.0)

    assert asyncio.run(main()).outputs[0].finish_reason == "abort"


def test_closing_fails_what_is_open(make: MakeAsync) -> None:
    async def main() -> None:
        llm = make()
        outputs = llm.generate(PROMPT, LONG)
        await anext(outputs)
        await llm.close()
        await llm.close()
        with pytest.raises(ParlayError, match="the engine was closed; start another"):
            async for _ in outputs:
                pass
        with pytest.raises(ParlayError, match="the engine was closed; start another"):
            await last(llm, PROMPT)

    asyncio.run(main())


def test_an_engine_that_fails_says_so_to_everybody(make: MakeAsync, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        llm = make()
        left = iter(range(3))

        def step() -> Any:
            if next(left, None) is None:
                raise ZeroDivisionError("boom")
            return real()

        real = llm._llm.engine.step
        monkeypatch.setattr(llm._llm.engine, "step", step)
        results = await asyncio.gather(*(last(llm, PROMPT, LONG) for _ in range(3)), return_exceptions=True)
        for error in (*results, *await asyncio.gather(last(llm, PROMPT), return_exceptions=True)):
            assert isinstance(error, ParlayError)
            assert "the engine has failed (ZeroDivisionError: boom)" in str(error)

    asyncio.run(main())


def test_an_event_loop_that_is_gone(make: MakeAsync) -> None:
    """Whoever asked died without a word; the engine serves the next loop."""
    llm = make()
    loop = asyncio.new_event_loop()
    outputs = llm.generate(PROMPT, LONG)
    loop.run_until_complete(anext(outputs))
    loop.close()

    async def main() -> RequestOutput:
        return await last(llm, PROMPT, PARAMS)

    assert answer(asyncio.run(main()))


def test_chat(make: MakeAsync, make_llm: MakeLLM) -> None:
    hello = [{"role": "user", "content": "hi"}]

    async def main() -> RequestOutput:
        async with make("ngram") as llm:
            with pytest.raises(ConfigError, match="did you mean 'chat_template'"):
                await anext(llm.chat(hello, chat_templates=""))
            *_, output = [o async for o in llm.chat(hello, PARAMS, priority=1)]
            return output

    output = asyncio.run(main())
    assert output.prompt == "user: hi\nassistant:"
    assert answer(output) == answer(make_llm().chat(hello, PARAMS)[0])


def test_older_keywords_blame_the_caller(models: dict[str, Pair]) -> None:
    with pytest.warns(UserWarning, match="without effect here: use_v2_block_manager") as caught:
        llm = AsyncLLM(models["float32"].target, use_v2_block_manager=True, max_model_len=32)
    asyncio.run(llm.close())
    assert [w.filename for w in caught] == [__file__]
