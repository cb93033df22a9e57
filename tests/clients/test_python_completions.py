"""OpenAI's Python client on models and completions: whole or streamed, speculating or not, the offline tokens."""

import asyncio
from typing import Any

import httpx
import openai
import pytest
from served import Served, wait_until

from parlay import LLM, RequestOutput, SamplingParams

pytestmark = pytest.mark.clients
pytest_plugins = ["servers"]

MODEL = "tiny-code"
CODE = "def fibonacci(n):\n    if n < 2:\n        return n\n    return"
LIST = "names = ['a', 'b', 'c', 'd', 'a', 'b',"
# Parameters of OpenAI's, and others, which its client sends as extra_body.
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"temperature": 0, "max_tokens": 64}, {}),
    "sampled": ({"temperature": 0.9, "top_p": 0.95, "seed": 7, "max_tokens": 48}, {}),
    "several": ({"n": 3, "temperature": 0.8, "seed": 1, "max_tokens": 24}, {}),
    "scored": ({"logprobs": 3, "temperature": 0.7, "seed": 2, "max_tokens": 24}, {}),
    "penalties": ({"presence_penalty": 0.7, "frequency_penalty": 0.3, "temperature": 0, "max_tokens": 40}, {}),
    "stop": ({"stop": ["\n\n", "else"], "temperature": 0, "max_tokens": 80}, {}),
    "one_stop": ({"stop": "\n", "temperature": 0.5, "seed": 3, "max_tokens": 40, "n": 2}, {}),
    "bias": ({"logit_bias": {"95": 8, "11": -100}, "temperature": 0, "max_tokens": 24}, {}),
    "ours": (
        {"temperature": 0.8, "seed": 9, "max_tokens": 40},
        {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.2, "min_tokens": 5, "bad_words": ["self"]},
    ),
    "stop_tokens": ({"temperature": 0, "max_tokens": 40}, {"stop_token_ids": [199, 12], "ignore_eos": True}),
    "grammar": (
        {"temperature": 1, "seed": 4, "max_tokens": 24},
        {"structured_outputs": {"regex": "[a-z]{3}=[0-9]+;"}},
    ),
}
WHOLE_ONLY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "best": ({"best_of": 4, "n": 2, "temperature": 1, "seed": 5, "max_tokens": 16}, {}),
}
PLAIN = {"speculative": {"enabled": False}}

Essence = tuple[str, tuple[int, ...], list[float] | None, str | None]


def expected(outputs: list[RequestOutput]) -> list[Essence]:
    found: list[Essence] = []
    for one in (one for output in outputs for one in output.outputs):
        scores = one.logprobs and [table[t].logprob for t, table in zip(one.token_ids, one.logprobs, strict=True)]
        found.append((one.text, one.token_ids, scores or None, one.finish_reason))
    return found


def gathered(chunks: list[Any]) -> list[Essence]:
    """Return what the choices of chunks come to; a whole answer is one chunk."""
    found: dict[int, Essence] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        text, tokens, scores, reason = found.get(choice.index, ("", (), None, None))
        assert reason is None, "a choice went on after its end"
        if choice.logprobs is not None:
            scores = (scores or []) + choice.logprobs.token_logprobs
        found[choice.index] = (text + choice.text, (*tokens, *choice.token_ids), scores, choice.finish_reason)
    return [found[index] for index in sorted(found)]


def prompts(offline: LLM) -> dict[str, tuple[Any, Any]]:
    """Return prompts as they are sent, and as the offline engine takes them."""
    ids = [list(offline.engine.encode(text)) for text in (CODE, LIST)]
    offline_ids: Any = [{"prompt_token_ids": tokens} for tokens in ids]
    return {
        "text": (CODE, [CODE]),
        "texts": ([CODE, LIST], [CODE, LIST]),
        "ids": (ids[0], offline_ids[:1]),
        "several_ids": (ids, offline_ids),
    }


@pytest.mark.parametrize("form", ["text", "texts", "ids", "several_ids"])
@pytest.mark.parametrize("name", [*ASKED, *WHOLE_ONLY])
def test_answers_are_the_offline_ones(client: openai.OpenAI, offline: LLM, name: str, form: str) -> None:
    asked, extra = (ASKED | WHOLE_ONLY)[name]
    sent, prompt = prompts(offline)[form]
    truth = expected(offline.generate(prompt, SamplingParams(**asked, **extra)))
    for more in ({}, PLAIN):
        body = {**extra, **more, "return_token_ids": True}
        whole = client.completions.create(model=MODEL, prompt=sent, **asked, extra_body=body)
        assert gathered([whole]) == truth
        assert whole.usage is not None
        candidates = asked.get("best_of", asked.get("n", 1)) // asked.get("n", 1)
        assert whole.usage.completion_tokens >= sum(len(tokens) for _, tokens, _, _ in truth) * (candidates == 1)
        if name in ASKED:
            streamed = client.completions.create(model=MODEL, prompt=sent, **asked, extra_body=body, stream=True)
            assert gathered(list(streamed)) == truth


def test_all_at_once(server: Served, offline: LLM) -> None:
    """The asynchronous client, every request in flight together: batches differ, tokens do not."""
    truth = {
        name: expected(offline.generate([CODE, LIST], SamplingParams(**asked, **extra)))
        for name, (asked, extra) in ASKED.items()
    }

    async def ask(client: openai.AsyncOpenAI, name: str, stream: bool, more: dict[str, Any]) -> list[Essence]:
        asked, extra = ASKED[name]
        body = {**extra, **more, "return_token_ids": True}
        made: Any = await client.completions.create(
            model=MODEL, prompt=[CODE, LIST], **asked, stream=stream, extra_body=body
        )
        return gathered([chunk async for chunk in made] if stream else [made])

    async def ask_all() -> list[tuple[str, list[Essence]]]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as client:
            asks = [(name, stream, more) for name in ASKED for stream in (False, True) for more in ({}, PLAIN)]
            answers = await asyncio.gather(*(ask(client, *one) for one in asks))
            return [(name, answer) for (name, _, _), answer in zip(asks, answers, strict=True)]

    for name, answer in asyncio.run(ask_all()):
        assert answer == truth[name], name


def test_echo(client: openai.OpenAI, offline: LLM) -> None:
    params = SamplingParams(max_tokens=6, temperature=0, logprobs=2, prompt_logprobs=2)
    (output,) = offline.generate(CODE, params)
    assert output.prompt_logprobs is not None
    scores = [t and t[i].logprob for i, t in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)]
    asked: dict[str, Any] = {"model": MODEL, "prompt": CODE, "echo": True, "logprobs": 2, "temperature": 0}
    for tokens in (6, 0):
        (choice,) = client.completions.create(**asked, max_tokens=tokens).choices
        assert choice.text == CODE + (output.outputs[0].text if tokens else "")
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs is not None
        assert choice.logprobs.token_logprobs[: len(scores)] == scores
        assert len(choice.logprobs.token_logprobs) == len(scores) + tokens
        assert choice.logprobs.text_offset is not None
        pieces = zip(choice.logprobs.tokens or (), choice.logprobs.text_offset, strict=True)
        # The token that ends an answer has a place, but no text.
        assert all(choice.text.startswith(text, offset) or offset == len(choice.text) for text, offset in pieces)
    chunks = list(client.completions.create(**asked, max_tokens=6, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == CODE + output.outputs[0].text


def test_usage(client: openai.OpenAI, offline: LLM) -> None:
    """With stream_options the last chunk alone has it; it tells of guesses, as does the sources field."""
    asked: dict[str, Any] = {"model": MODEL, "prompt": LIST, "max_tokens": 100, "temperature": 0}
    whole = client.completions.create(**asked).usage
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True},
                                            extra_body={"return_sources": True}))  # fmt: skip
    assert whole is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens == whole.prompt_tokens == len(offline.engine.encode(LIST))
    assert usage.completion_tokens == whole.completion_tokens == 100
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    details = usage.completion_tokens_details
    assert details is not None
    sources = [piece for chunk in chunks[:-1] for piece in chunk.choices[0].sources]  # type: ignore[attr-defined]
    assert details.accepted_prediction_tokens == sum(who == "ngram" for _, who, _ in sources) > 20
    assert len(chunks) < 100 - 20  # what a step accepts is one event
    assert usage.prompt_tokens_details is not None
    assert all(c.usage is None for c in client.completions.create(**asked, stream=True))


def test_a_stream_that_is_closed_ends(server: Served, client: openai.OpenAI) -> None:
    before = len([line for line in server.log if '"status":499' in line])
    with client.completions.create(
        model=MODEL, prompt=CODE, max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    running = "vllm:num_requests_running{"

    def idle() -> bool:
        text = httpx.get(server.url + "/metrics", trust_env=False).text
        (line,) = [line for line in text.splitlines() if line.startswith(running)]
        return float(line.split()[-1]) == 0

    wait_until(idle, 2)
    wait_until(lambda: len([line for line in server.log if '"status":499' in line]) > before, 2)
