"""The same-tokens guarantee on a running OpenAI-compatible server, of any engine: one request has one answer.

The server is asked the same things alone, again, together, among others and as a stream, and without speculation if
it is parlay, since the protocol has no parameter for it. The text must not change, nor the tokens and
log-probabilities as far as it returns them. Greedy requests, and sampled ones with a seed.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from parlay.bench.load import root_of
from parlay.errors import ParlayError, brief

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
_OTHERS = 12  # requests that run beside
_OTHER = {"temperature": 0.9}
_TOP = 5  # tokens whose log-probabilities are asked for; OpenAI gives no more
_SECONDS = 600.0  # for one answer


@dataclass(frozen=True, slots=True)
class Said:
    """An answer.

    Attributes:
        text: of it.
        tokens: each one's text; empty where the server tells none.
        logprobs: of these, exactly as sent.
        likely: the likeliest tokens at each place, with their log-probabilities.
    """

    text: str
    tokens: tuple[str, ...] = ()
    logprobs: tuple[str, ...] = ()
    likely: tuple[Mapping[str, float], ...] = ()


def compare_server(
    url: str, key: str | None, texts: Sequence[str], max_tokens: int, tick: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each way of asking and kind of parameters: whether all answers are those to each prompt alone.

    Args:
        url: of the server, with or without `/v1`.
        key: for it, if it wants one.
        texts: prompts.
        max_tokens: length of each answer.
        tick: called with a label before every row.

    Raises:
        ConfigError: the address cannot be used.
        ParlayError: the server cannot be reached, or refuses a request.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    client = httpx.Client(base_url=f"{root_of(url)}/v1", headers=headers, timeout=_SECONDS, trust_env=False)
    with client, ThreadPoolExecutor(len(texts) + _OTHERS) as pool:
        asking = _Asking(client, max_tokens)
        for kind, params in KINDS.items():
            tick(f"alone, {kind}")
            bodies = [asking.body(text, seed, params) for seed, text in enumerate(texts)]
            expected = [asking.ask(body) for body in bodies]
            others = [asking.body(text[: len(text) // 2 + 1], 100 + i, _OTHER) for i, text in enumerate(texts)]
            ways: dict[str, Callable[[], list[Said]]] = {
                "again": lambda bodies=bodies: [asking.ask(body) for body in bodies],  # type: ignore[misc]
                "together": lambda bodies=bodies: list(pool.map(asking.ask, bodies)),  # type: ignore[misc]
                "among others": lambda bodies=bodies, others=others: list(  # type: ignore[misc]
                    pool.map(asking.ask, [*bodies, *(others[i % len(others)] for i in range(_OTHERS))])
                )[: len(bodies)],
                "streamed": lambda bodies=bodies: list(pool.map(asking.stream, bodies)),  # type: ignore[misc]
            }
            if asking.switches:
                plain = [{**body, "speculative": {"enabled": False}} for body in bodies]
                ways["without speculation"] = lambda plain=plain: [asking.ask(body) for body in plain]  # type: ignore[misc]
            for way, answers in ways.items():
                tick(f"{way}, {kind}")
                found = answers()
                difference = first_difference(found, expected)
                yield {
                    "method": asking.model,
                    "way": way,
                    "parameters": kind,
                    "same": difference is None,
                    "difference": difference,
                    "tokens": sum(len(one.tokens) for one in found),
                    "accepted": 0,
                }


def first_difference(found: Sequence[Said], expected: Sequence[Said]) -> str | None:
    """Return where two lists of answers differ, or None; and by how much the logit was behind, if that is known."""
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        for j, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)):
            if x != y:
                table = b.likely[j] if j < len(b.likely) else {}
                gap = f", whose logit is {abs(table[y] - table[x]):.3g} away" if {x, y} <= table.keys() else ""
                return f"prompt {i}, token {j}: {x!r} instead of {y!r}{gap}"
            if a.logprobs[j : j + 1] != b.logprobs[j : j + 1]:
                return f"prompt {i}, token {j}: log-probabilities"
        if a.text != b.text:
            place = next((j for j, (x, y) in enumerate(zip(a.text, b.text, strict=False)) if x != y), None)
            where = min(len(a.text), len(b.text)) if place is None else place
            return f"prompt {i}, character {where}: {a.text[where : where + 9]!r}, not {b.text[where : where + 9]!r}"
    return None


class _Asking:
    """One server.

    Attributes:
        model: its name for what it serves.
        switches: whether a request may ask for plain decoding.
    """

    def __init__(self, client: httpx.Client, max_tokens: int) -> None:
        self._client = client
        self._max_tokens = max_tokens
        try:
            listed = self._checked(client.get("/models"))
            first = listed["data"][0]
            self.model, self.switches = str(first["id"]), first.get("owned_by") == "parlay"
        except (KeyError, IndexError, TypeError, AttributeError):
            raise ParlayError("the server's /v1/models names no model") from None
        except httpx.HTTPError as error:
            raise ParlayError(f"the server cannot be reached: {error}; start it, or give its --url") from None

    def body(self, text: str, seed: int, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request."""
        return {
            "model": self.model,
            "prompt": text,
            "max_tokens": self._max_tokens,
            "seed": seed,
            "logprobs": _TOP,
            **params,
        }

    def ask(self, body: dict[str, Any]) -> Said:
        """Return the answer as a whole."""
        try:
            answer = self._checked(self._client.post("/completions", json=body))
        except httpx.HTTPError as error:
            raise ParlayError(f"the server has failed: {error}") from None
        return _said([answer])

    def stream(self, body: dict[str, Any]) -> Said:
        """Return the answer, read piece by piece."""
        events = []
        try:
            with self._client.stream("POST", "/completions", json={**body, "stream": True}) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    self._checked(response)
                for line in response.iter_lines():
                    data = line.removeprefix("data:").strip()
                    if line.startswith("data:") and data != "[DONE]":
                        events.append(json.loads(data))
        except (httpx.HTTPError, ValueError) as error:
            raise ParlayError(f"the server has failed: {error}") from None
        return _said(events)

    def _checked(self, response: httpx.Response) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.status_code != httpx.codes.OK or not isinstance(answer, dict):
            raise ParlayError(f"the server refuses a request ({response.status_code}): {brief(response.text)}")
        return answer


def _said(events: Sequence[dict[str, Any]]) -> Said:
    """Return the content of one answer's choices, or of its events' together."""
    text, tokens, logprobs, likely = "", list[str](), list[str](), list[Mapping[str, float]]()
    for event in events:
        for choice in event.get("choices") or ():
            text += choice.get("text") or ""
            told = choice.get("logprobs") or {}
            tokens += told.get("tokens") or ()
            logprobs += (float(p).hex() for p in told.get("token_logprobs") or () if p is not None)
            likely += (one or {} for one in told.get("top_logprobs") or ())
    return Said(text, tuple(tokens), tuple(logprobs), tuple(likely))
