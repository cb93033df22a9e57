"""What OpenAI's Python client makes of refusals, and of a server that is slow, full or gone."""

import threading
from typing import Any

import openai
import pytest
from served import KEYS, Served

pytestmark = pytest.mark.clients
pytest_plugins = ["servers"]

ASKED: dict[str, Any] = {"model": "tiny-code", "prompt": "x = ", "max_tokens": 4}
LONG: dict[str, Any] = {**ASKED, "max_tokens": 1900, "extra_body": {"ignore_eos": True}}


def make(served: Served, key: str = "any", **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "/v1", api_key=key, **{"max_retries": 0, "timeout": 60} | options)


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_litellm_knows_a_conversation_that_is_too_long(server: Served, provider: str) -> None:
    """Its callers then shorten it."""
    litellm = pytest.importorskip("litellm")
    messages = [{"role": "user", "content": "hello " * 3000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(f"{provider}/tiny-code", messages, api_base=server.url + "/v1", api_key="any")


def test_other_refusals(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'gpt-4' does not exist") as refused:
        client.completions.create(**{**ASKED, "model": "gpt-4"})
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="no such endpoint"):
        client.embeddings.create(model="tiny-code", input="x")
    with pytest.raises(openai.BadRequestError, match="messages") as refused_chat:
        client.chat.completions.create(model="tiny-code", messages=[])
    assert refused_chat.value.param == "messages"


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
    with make(server, timeout=0.2) as client, pytest.raises(openai.APITimeoutError):
        client.completions.create(**LONG, n=8)
    with make(server) as client:
        assert client.completions.create(**ASKED).choices
