"""What OpenAI's Python client makes of refusals, and of a server that is slow, full or gone."""

import threading
import time
from typing import Any

import openai
import pytest
from served import KEYS, Served, wait_until

pytestmark = pytest.mark.clients
pytest_plugins = ["servers"]

ASKED: dict[str, Any] = {"model": "tiny-code", "prompt": "x = ", "max_tokens": 4}
LONG: dict[str, Any] = {**ASKED, "max_tokens": 1900, "extra_body": {"ignore_eos": True}}


def make(served: Served, key: str = "any", **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "/v1", api_key=key, **{"max_retries": 0, "timeout": 60} | options)


@pytest.mark.parametrize(
    ("asked", "param", "words"),
    [
        ({"temperature": -1}, "temperature", "between 0"),
        ({"max_tokens": -2}, "max_tokens", "max_tokens"),
        ({"n": 99}, "n", "limit of 16"),
        ({"logit_bias": {"1": 1000}}, "logit_bias", "between -100"),
        ({"stop": ["x"] * 100}, "stop", "100 entries"),
        ({"suffix": "x"}, "suffix", "its end only; leave it out"),
        ({"extra_body": {"top_kk": 1}}, "top_kk", "did you mean 'top_k'"),
        ({"extra_body": {"speculative": {"method": "none of them"}}}, None, "not loaded"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": "x " * 4000}, "prompt", "maximum context length is 2048 tokens"),
        ({"prompt": [5000]}, "prompt", "not an id"),
    ],
)
def test_bad_requests(client: openai.OpenAI, asked: dict[str, Any], param: str | None, words: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=words) as refused:
            client.completions.create(**{**ASKED, **asked}, stream=stream)
        if param is not None:
            assert refused.value.param == param
        assert refused.value.type == "invalid_request_error"
        assert refused.value.request_id


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_litellm_knows_a_conversation_that_is_too_long(server: Served, provider: str) -> None:
    """Its callers then shorten it."""
    litellm = pytest.importorskip("litellm")
    messages = [{"role": "user", "content": "hello " * 3000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(f"{provider}/tiny-code", messages, api_base=server.url + "/v1", api_key="any")


def test_other_refusals(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-4'") as refused:
        client.completions.create(**{**ASKED, "model": "gpt-4"})
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="nothing here"):
        client.embeddings.create(model="tiny-code", input="x")
    with pytest.raises(openai.BadRequestError, match="messages") as refused_chat:
        client.chat.completions.create(model="tiny-code", messages=[])
    assert refused_chat.value.param == "messages"


def test_keys(keyed: Served) -> None:
    for wrong in ("wrong", KEYS["alice"] + "x", KEYS["alice"].upper()):
        with make(keyed, wrong) as client, pytest.raises(openai.AuthenticationError, match="API key") as refused:
            client.completions.create(**ASKED)
        assert refused.value.code == "invalid_api_key"
        with make(keyed, wrong) as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
    texts = set()
    for key in KEYS.values():
        with make(keyed, key) as client:
            assert client.models.list().data[0].id == "tiny-code"
            texts.add(client.completions.create(**ASKED, temperature=0).choices[0].text)
    assert len(texts) == 1
    log = "".join(keyed.log)
    assert '"key":"alice"' in log
    assert not any(key in log for key in KEYS.values())


def test_too_large(keyed: Served) -> None:
    with make(keyed, KEYS["alice"]) as client, pytest.raises(openai.APIStatusError, match="larger than") as refused:
        client.completions.create(**{**ASKED, "prompt": "x" * 30_000})
    assert refused.value.status_code == 413


def test_a_full_server(keyed: Served) -> None:
    """One key's third completion is refused, another key's is not; the client's own retries then succeed."""
    with make(keyed, KEYS["alice"]) as alice, make(keyed, KEYS["bob"]) as bob:
        streams = [alice.completions.create(**LONG, stream=True) for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="2") as refused:
            alice.completions.create(**ASKED)
        assert refused.value.response.headers["retry-after"] == "1"
        assert refused.value.code == "rate_limit_exceeded"
        assert bob.completions.create(**ASKED).choices
        closer = threading.Timer(0.3, lambda: [stream.close() for stream in streams])
        closer.start()
        assert alice.with_options(max_retries=4).completions.create(**ASKED).choices
        closer.join()


def test_a_client_that_gives_up(server: Served) -> None:
    began = time.monotonic()
    with make(server, timeout=0.2) as client, pytest.raises(openai.APITimeoutError):
        client.completions.create(**LONG, n=8)
    assert time.monotonic() - began < 5
    with make(server) as client:
        assert client.completions.create(**ASKED).choices


def test_a_server_that_ends() -> None:
    """Open streams finish, new requests are refused, then nobody is there."""
    with Served("--shutdown-timeout", "30") as served, make(served) as client:
        stream = client.completions.create(**LONG, stream=True)
        first = next(stream)
        ending = threading.Thread(target=served.stop)
        ending.start()

        def refused() -> bool:
            try:
                client.completions.create(**ASKED)
            except (openai.InternalServerError, openai.APIConnectionError) as error:
                return getattr(error, "status_code", 503) == 503
            return False

        wait_until(refused, 5)
        reasons = [chunk.choices[0].finish_reason for chunk in stream]
        assert first.choices[0].finish_reason is None
        assert reasons[-1] == "length"
        ending.join()
        with pytest.raises(openai.APIConnectionError):
            client.completions.create(**ASKED)
