"""What the server refuses, bounds and survives."""

import contextlib
import gzip
import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from checkpoints import write_llama
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import Live, engine_of, wait_for

from parlay import AsyncLLM, RequestOutput
from parlay.config import ServerConfig
from parlay.errors import ConfigError
from parlay.server.keys import read_keys
from parlay.server.openai.fields import KNOWN, SAMPLING

KEYS = ("the-first-key", "the-other-key")
LONG = {"prompt": [1, 2, 3], "max_tokens": 480, "ignore_eos": True, "temperature": 0}


class Watcher:
    """Metrics that remember."""

    def __init__(self) -> None:
        self.firsts: list[float] = []
        self.steps: list[int] = []
        self.ends: list[tuple[str, int, Sequence[RequestOutput]]] = []
        self.requested: list[int] = []  # by each of them

    def observe_first(self, seconds: float, replica: int) -> None:
        self.firsts.append(seconds)

    def observe_step(self, seconds: float, tokens: int, replica: int) -> None:
        self.steps.append(tokens)

    def observe_end(
        self, path: str, status: int, outputs: Sequence[RequestOutput], *, requested: int = 0, failed: bool = False
    ) -> None:
        self.ends.append((path, status, outputs))
        self.requested.append(requested)

    def expose(self) -> tuple[bytes, str]:
        return b"ends %d\n" % len(self.ends), "text/plain"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("serve") / "target", seed=2, scale=7.0, calm=0.2)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[AsyncLLM]:
    with engine_of(model, served_model_name="small") as made:
        yield made


@pytest.fixture(scope="module")
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture(scope="module")
def live(engine: AsyncLLM, watcher: Watcher) -> Iterator[Live]:
    limits = {"max_body_bytes": 20_000, "max_json_depth": 20, "body_timeout": 0.5, "max_open": 8, "max_n": 4}
    with Live(engine, metrics=watcher, page=("<p>", "default-src 'none'"), **limits) as server:
        yield server


def error(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    body = answer.json()["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert "\n" not in body["message"]
    assert answer.headers["X-Request-Id"]
    return dict(body)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": "x", "max_token": 1}, "max_token", "did you mean 'max_tokens'"),
        ({"prompt": "x", "suffix": "y"}, "suffix", "fill-in-the-middle is not supported; leave it out"),
        ({"prompt": "x", "functions": [{"name": "f"}]}, "functions", "older form"),
        ({"prompt": "x", "logits_processors": ["f"]}, "logits_processors", "cannot be sent"),
        ({"prompt": "x", "temperature": -1}, "temperature", "between 0"),
        ({"prompt": "x", "temperature": "hot"}, "temperature", "must be a number"),
        ({"prompt": "x", "stream": "yes"}, "stream", "bool"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options", "stream"),
        (
            {"prompt": "x", "stream": True, "stream_options": {"include_usages": True}},
            "stream_options",
            "did you mean 'include_usage'",
        ),
        ({"prompt": "x", "stream": True, "stream_options": {"include_usage": 1}}, "stream_options", "true or false"),
        ({"prompt": "x", "n": 5}, "n", "limit of 4"),
        ({"prompt": "x", "logprobs": 21}, "logprobs", "limit of 20"),
        ({"prompt": ["x"] * 9}, None, "the limit is 8"),
        ({"prompt": "x", "stop": ["y"] * 10_00}, "stop", "1000 entries"),
        ({"prompt": "x", "stop": "y" * 1025}, "stop", "1025 characters"),
        ({"prompt": "x", "logit_bias": {str(i): 0 for i in range(1025)}}, "logit_bias", "1025 entries"),
        ({"prompt": "x", "logit_bias": {"1": 101}}, "logit_bias", "between -100"),
        ({"prompt": "x", "logit_bias": {"99999": 1}}, "logit_bias", "vocabulary"),
        ({"prompt": "x", "best_of": 2, "stream": True}, "best_of", "streamed"),
        ({"prompt": "x", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream"),
        ({"prompt": "x", "speculative": {"method": "ngrm"}}, None, "not loaded"),
        ({"prompt": "x", "structured_outputs": {"regex": "("}}, "structured_outputs", "regex"),
        ({}, "prompt", "required"),
        ({"prompt": []}, "prompt", "must be text"),
        ({"prompt": [[]]}, "prompt", "none of them empty"),
        ({"prompt": [1, "x"]}, "prompt", "must hold"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": [1 << 40]}, "prompt", "not an id"),
        ({"prompt": [1] * 600}, "prompt", "leaves no room"),
        ({"prompt": "x" * 19_000}, "prompt", "characters, more than fit"),
        ({"prompt": "x", "metadata": json.loads("[" * 30 + "]" * 30)}, None, "deep"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(live: Live, body: dict[str, Any], param: str | None, words: str) -> None:
    settled = "stream" in body or "best_of" in body or "stream_options" in body
    for asked in [body] if settled else [body, {**body, "stream": True}]:
        found = error(live.post("/v1/completions", asked), 400)
        assert words in found["message"]
        assert found["type"] == "invalid_request_error"
        if param is not None:
            assert found["param"] == param
        assert (found["code"] == "context_length_exceeded") is (
            words in ("leaves no room", "characters, more than fit")
        )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "chat_template": "x"}, "chat_template"),
        ({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}}, "response_format"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x"}], "functions": [{}]}, "functions"),
    ],
)
def test_wrong_chats_are_named(live: Live, body: dict[str, Any], param: str | None) -> None:
    found = error(live.post("/v1/chat/completions", body), 400)
    if param is not None:
        assert found["param"] == param


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"prompt": "\xff"}', 400),
        (b'{"prompt": "\\ud800"}', 400),
        (b'{"prompt": "x", "temperature": NaN}', 400),
        (b'{"prompt": "x", "temperature": 1e999}', 400),
        (b'{"prompt": "x", "seed": 1' + b"0" * 5000 + b"}", 400),
        (b"[" * 10_000, 400),
        (b" " * 20_001, 413),
        (b" " * 300_000, 413),
    ],
)
def test_wrong_bodies(live: Live, content: bytes, status: int) -> None:
    headers = {"Content-Type": "application/json"}
    error(live.http.post("/v1/completions", content=content, headers=headers), status)
    # Without a Content-Length too.
    error(live.http.post("/v1/completions", content=iter([content[:7], content[7:]]), headers=headers), status)


def test_statuses(live: Live) -> None:
    assert error(live.post("/v1/completions", {"prompt": "x", "model": "other"}), 404)["param"] == "model"
    assert error(live.http.get("/v1/models/other"), 404)["code"] == "model_not_found"
    error(live.http.get("/nowhere"), 404)
    assert "POST" in live.http.get("/v1/completions").headers["allow"]
    error(live.http.get("/v1/completions"), 405)
    assert live.http.options("/v1/responses/input_tokens").headers["allow"] == "POST"
    assert live.http.options("/v1/responses/resp_1").headers["allow"] == "DELETE, GET"
    form = live.http.post("/v1/completions", data={"prompt": "x"})
    error(form, 415)
    packed = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    answer = live.http.post("/v1/completions", content=gzip.compress(b"{}"), headers=packed)
    assert "Content-Encoding" in error(answer, 415)["message"]
    assert answer.headers["accept-encoding"] == "identity"
    plain = {"Content-Encoding": "identity", "Content-Type": "application/json"}
    marked = b"\xef\xbb\xbf" + b'{"prompt": "x", "max_tokens": 1}'
    assert live.http.post("/v1/completions", content=marked, headers=plain).status_code == 200
    page = live.http.get("/")
    assert (page.text, page.headers["Content-Security-Policy"]) == ("<p>", "default-src 'none'")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PATHS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]


@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_body_makes_the_server_fail(live: Live, data: Any) -> None:
    names = st.sampled_from(sorted(KNOWN))
    body = data.draw(st.dictionaries(names | st.text(max_size=5), JSON, max_size=4))
    if data.draw(st.booleans()):
        body |= {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "tokens": [1]}
        body = {k: v for k, v in body.items() if k in SAMPLING or k in ("prompt", "stop", "echo", "stream")}
    body["max_tokens"] = 2
    answer = live.post(data.draw(st.sampled_from(PATHS)), body)
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        error(answer, answer.status_code)
    assert '"type":"server_error"' not in answer.text


def idle(live: Live) -> bool:
    return live.admission.open == 0 and not live.engine._llm.engine.busy


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_requests(live: Live, watcher: Watcher, stream: bool) -> None:
    slow = {**LONG, "prompt": [[i, 5] for i in range(8)], "stream": stream}
    pool = live.engine._llm.engine._pool
    assert idle(live)
    body = json.dumps(slow).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with contextlib.closing(socket.create_connection(("127.0.0.1", live.port))) as client:
        client.sendall(head + body)
        wait_for(lambda: live.admission.open == 8)
        # Meanwhile there is room for nobody else, and that is said at once.
        answer = live.post("/v1/completions", {"prompt": "x"})
        assert answer.status_code in (200, 429)
        if answer.status_code == 429:
            assert error(answer, 429)["code"] == "rate_limit_exceeded"
            assert answer.headers["Retry-After"]
        if stream:
            assert client.recv(10)
    wait_for(lambda: idle(live))
    wait_for(lambda: any(status == 499 for _, status, _ in watcher.ends))
    *_, (left, asked) = [(end[2], n) for end, n in zip(watcher.ends, watcher.requested, strict=True) if end[1] == 499]
    assert asked == 8
    assert sum(len(output.outputs[0].token_ids) for output in left) < 8 * 480
    live.engine._llm.engine.check()
    assert pool is live.engine._llm.engine._pool


def test_metrics_are_told(live: Live, watcher: Watcher) -> None:
    firsts, steps = len(watcher.firsts), sum(watcher.steps)
    assert live.post("/v1/completions", {**LONG, "max_tokens": 9}).status_code == 200
    assert len(watcher.firsts) == firsts + 1
    assert 0 < sum(watcher.steps) - steps < 9
    assert watcher.ends[-1][0] == "/v1/completions"
    assert live.http.get("/metrics").text.startswith("ends ")


def test_slow_bodies_and_slow_heads_are_cut_off(live: Live) -> None:
    for content, words in (
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", b" 408 "),
        (b"POST /v1/completions HTTP/1.1\r\nHost:", b""),
    ):
        with contextlib.closing(socket.create_connection(("127.0.0.1", live.port))) as client:
            client.settimeout(10)
            client.sendall(content)
            got = b""
            with contextlib.suppress(ConnectionResetError):
                while more := client.recv(4096):
                    got += more
            assert words in got


def test_keys(engine: AsyncLLM, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nalice alices-own-key\n")
    with Live(engine, api_key=KEYS, api_key_file=str(file), max_open_per_key=2) as live:
        assert live.http.get("/health").status_code == 200
        for wrong in ({}, {"Authorization": "Bearer nope"}, {"Authorization": f"Basic {KEYS[0]}"}):
            assert error(live.http.get("/v1/models", headers=wrong), 401)["code"] == "invalid_api_key"
        assert live.http.post("/v1/completions", content=b"{" * 50_000).status_code == 401
        cached = []
        for key in (*KEYS, "alices-own-key", KEYS[0]):
            answer = live.post(
                "/v1/completions", {**LONG, "prompt": [7] * 64, "max_tokens": 1},
                headers={"Authorization": f"Bearer {key}"},
            )  # fmt: skip
            cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached[:3] == [0, 0, 0]  # nobody learns what the others asked
        assert cached[3] > 0
        busy = {**LONG, "n": 3}
        error(live.post("/v1/completions", busy, headers={"Authorization": f"Bearer {KEYS[0]}"}), 400)
    lines = live.log
    assert {line["key"] for line in lines if line["status"] == 200} == {"key1", "key2", "alice"}
    assert not any(key in json.dumps(lines) for key in (*KEYS, "alices-own-key"))
    with pytest.raises(ConfigError, match="no keys"):
        read_keys(ServerConfig(api_key_file=os.devnull))
    with pytest.raises(ConfigError) as caught:
        ServerConfig(api_key=("short",))
    assert "short" not in str(caught.value)


def test_prompts_are_logged_only_when_asked(engine: AsyncLLM) -> None:
    for asked in (False, True):
        with Live(engine, log_prompts=asked) as live:
            assert live.post("/v1/completions", {"prompt": "a secret", "max_tokens": 1}).status_code == 200
            assert live.post("/v1/completions", {"prompt": "a secret", "max_tokens": 0}).status_code == 400
            image = {"type": "image_url", "image_url": "a secret"}
            for more in ({"role": "user", "content": {"a": "a secret"}}, {"role": "user", "content": [image]}, {}):
                chat = {"messages": [{"content": "a secret", **more}]}
                assert error(live.post("/v1/chat/completions", chat), 400)["param"] == "messages"
        assert ("a secret" in json.dumps(live.log)) is asked


def test_time_limits(engine: AsyncLLM) -> None:
    with Live(engine, request_timeout=0.02) as live:
        assert error(live.post("/v1/completions", {**LONG, "n": 8}), 504)["code"] == "timeout"
        answer = live.post("/v1/completions", {**LONG, "n": 8, "stream": True})
        assert answer.status_code == 504 or '"code":"timeout"' in answer.text
