"""The same-tokens guarantee on a running OpenAI-compatible server, of any engine: one request has one answer.

The server gets the same requests alone, again, together, among others and as streams, and without speculation if it
is parlay, since the protocol has no parameter for it. The text must not change, nor the tokens and log-probabilities
as far as it returns them. Requests are greedy, or sampled with a seed.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from parlay.errors import ConfigError, ParlayError, brief
from parlay.same_tokens.difference import ComparedAnswer, first_difference

KINDS: Mapping[str, Mapping[str, Any]] = {
    "temperature 0": {"temperature": 0.0},
    "temperature 0.8": {"temperature": 0.8},
    "penalties": {
        "temperature": 1.1,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.2,
        "top_p": 0.95,
        "stop": ["\n\n", " the "],
    },
}
_OTHERS = 12  # further requests that run at the same time
_OTHER = {"temperature": 0.9}
_TOP = 5  # log-probabilities per token; OpenAI gives no more
_SECONDS = 600.0  # for one answer


def compare_server(
    url: str, key: str | None, texts: Sequence[str], max_tokens: int, tick: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each order of requests and kind of parameters: whether all answers are those to each alone.

    Args:
        url: address of the server, with or without `/v1`.
        key: API key of the server, if it wants one.
        texts: prompts.
        max_tokens: length of each answer.
        tick: function called with a label before every row.

    Raises:
        ConfigError: the address cannot be used.
        ParlayError: the server cannot be reached, or refuses a request.
    """
    client = _Client(url, key, max_tokens)
    with ThreadPoolExecutor(len(texts) + _OTHERS) as pool:
        for kind, params in KINDS.items():
            bodies = [client.body(text, seed, params) for seed, text in enumerate(texts)]
            plain = [{**body, "speculative": {"enabled": False}} for body in bodies]
            beside = [client.body(text[: len(text) // 2 + 1], 100 + i, _OTHER) for i, text in enumerate(texts)]
            others = [beside[i % len(beside)] for i in range(_OTHERS)]
            tick(f"alone, {kind}")
            expected = list(map(client.complete, bodies))
            ways: dict[str, Callable[[], Iterator[ComparedAnswer]]] = {
                "again": lambda bodies=bodies: map(client.complete, bodies),  # type: ignore[misc]
                "together": lambda bodies=bodies: pool.map(client.complete, bodies),  # type: ignore[misc]
                "among others": lambda all=[*bodies, *others]: pool.map(client.complete, all),  # type: ignore[misc]
                "streamed": lambda bodies=bodies: pool.map(client.stream, bodies),  # type: ignore[misc]
            }
            if client.is_parlay:
                ways["without speculation"] = lambda plain=plain: map(client.complete, plain)  # type: ignore[misc]
            for way, answers in ways.items():
                tick(f"{way}, {kind}")
                found = list(answers())[: len(bodies)]
                difference = first_difference(found, expected)
                yield {
                    "method": client.model,
                    "way": way,
                    "parameters": kind,
                    "same": difference is None,
                    "difference": difference,
                    "tokens": sum(len(one.tokens) for one in found),
                    "accepted": 0,
                }


class _Client:
    """A client of one server; no proxy is used.

    Attributes:
        model: the server's name for what it serves.
        is_parlay: whether a request may switch speculation off.
    """

    def __init__(self, url: str, key: str | None, max_tokens: int) -> None:
        self._base, self._max_tokens = f"{_root_of(url)}/v1", max_tokens
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._opener = build_opener(ProxyHandler({}))
        try:
            first = json.loads(self._answer("/models"))["data"][0]
            self.model, self.is_parlay = str(first["id"]), first.get("owned_by") == "parlay"
        except (ValueError, LookupError, TypeError, AttributeError):
            raise ParlayError("the server's /v1/models names no model") from None

    def body(self, text: str, seed: int, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request."""
        fixed = {"model": self.model, "max_tokens": self._max_tokens, "logprobs": _TOP}
        return {**fixed, "prompt": text, "seed": seed, **params}

    def complete(self, body: dict[str, Any]) -> ComparedAnswer:
        """Return the answer as a whole."""
        return _join(self._answer("/completions", body))

    def stream(self, body: dict[str, Any]) -> ComparedAnswer:
        """Return the answer, sent as a stream."""
        text = self._answer("/completions", {**body, "stream": True})
        events = [line.removeprefix("data:").strip() for line in text.split("\n") if line.startswith("data:")]
        return _join(*[event for event in events if event != "[DONE]"])

    def _answer(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        try:
            with self._opener.open(Request(self._base + path, data, self._headers), timeout=_SECONDS) as response:
                return str(response.read().decode())
        except HTTPError as error:
            said = brief(error.read().decode(errors="replace"))
            raise ParlayError(f"the server refuses a request ({error.code}): {said}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise ParlayError(
                f"no server answers at {self._base} ({brief(str(error))}); start it, or give another --url"
            ) from None


def _root_of(url: str) -> str:
    """Return a server's address without a path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--url {url!r} is not the address of a server; write it as http://host:port")
    if parts.username or parts.password:
        raise ConfigError("leave user and password out of --url; the key comes from OPENAI_API_KEY")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _join(*events: str) -> ComparedAnswer:
    """Return the content of one answer's choices, or of its events' together."""
    text, tokens, logprobs, likely = "", list[str](), list[str](), list[Mapping[str, float]]()
    try:
        for event in map(json.loads, events):
            for choice in event.get("choices") or ():
                text += choice.get("text") or ""
                found = choice.get("logprobs") or {}
                tokens += found.get("tokens") or ()
                logprobs += (float(p).hex() for p in found.get("token_logprobs") or () if p is not None)
                likely += (one or {} for one in found.get("top_logprobs") or ())
    except (ValueError, AttributeError, TypeError) as error:
        raise ParlayError(f"the server's answer is not OpenAI's: {brief(str(error))}") from None
    return ComparedAnswer(text, tuple(tokens), tuple(logprobs), tuple(likely))
