"""Open-loop load on an OpenAI-compatible server: requests are sent when they are due, even while others wait.

The times are drawn before anything is sent. A time stamp is taken as soon as the event loop sees the bytes; the
delays of requests and of the loop itself are measured too, so that a client that cannot keep up shows in the report
and not only in the server's figures.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import httpx

from parlay.bench.options import LoadOptions
from parlay.bench.prompts import read_texts
from parlay.bench.protocol import load_prefixes
from parlay.checkpoints.find import ASSETS
from parlay.errors import ConfigError, ParlayError, brief
from parlay.text.tokenizer import TextCodec

_TICK = 0.01  # seconds between looks at how late the event loop is


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to send.

    Attributes:
        due: seconds after the start.
        prompt: its text.
        max_tokens: most tokens of the answer.
        seed: of its noise.
    """

    due: float
    prompt: str
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request's outcome; times in seconds after the start of the run.

    Attributes:
        due: when it should have been sent.
        ready: when the client had time for it.
        sent: when it was sent; later than `ready` where `max_concurrency` delayed it.
        events: when each event with text arrived.
        end: when the answer was complete, or the error occurred.
        prompt_tokens: as counted by the server, if it does.
        tokens: of the answer as counted by the server; events if it does not.
        status: of HTTP; 0 without a response.
        error: why there is no complete answer.
    """

    due: float
    ready: float
    sent: float
    end: float
    events: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    tokens: int = 0
    status: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that was measured in a run.

    Attributes:
        model: what was asked for.
        outcomes: one a request, in the order of their due times.
        lags: delays of the client's event loop, sampled, in seconds.
        before: the server's `/metrics` before the run; empty where it has none.
        after: the same after it.
    """

    model: str
    outcomes: tuple[Outcome, ...]
    lags: tuple[float, ...]
    before: str
    after: str


def arrivals(options: LoadOptions) -> Iterator[float]:
    """Yield when requests are due, in seconds: pauses are drawn from a gamma distribution of mean 1 / rate."""
    random = Random(f"arrivals {options.seed}")
    limit = inf if options.duration is None else options.duration
    count = options.num_prompts or (100 if options.duration is None else None)
    due, sent = 0.0, 0
    while due <= limit and sent != count:
        yield due
        sent += 1
        if options.request_rate != inf:
            due += random.gammavariate(options.burstiness, 1 / (options.request_rate * options.burstiness))


def asks(options: LoadOptions) -> list[Ask]:
    """Return the requests of a run; equal options give equal requests."""
    codec = TextCodec(ASSETS / "tiny-code")
    tokens = [token for prefix in load_prefixes() for token in prefix.tokens]
    random = Random(f"prompts {options.seed}")
    made = []
    if options.dataset is not None:
        texts = read_texts(Path(options.dataset))
        for due in arrivals(options):
            length = random.randint(*options.lengths(options.output_len))
            made.append(Ask(due, random.choice(texts), length, random.getrandbits(31)))
        return made
    for due in arrivals(options):
        start, length = random.randrange(len(tokens)), random.randint(*options.lengths(options.input_len))
        prompt = codec.decode([tokens[(start + i) % len(tokens)] for i in range(length)])
        made.append(Ask(due, prompt, random.randint(*options.lengths(options.output_len)), random.getrandbits(31)))
    return made


def measure(options: LoadOptions, key: str | None, tick: Callable[[str], None]) -> Run:
    """Run the load.

    Args:
        options: the load.
        key: for the server, if it wants one.
        tick: called with a label now and then.

    Raises:
        ConfigError: the address cannot be used.
        ParlayError: the server cannot be reached, names no model, or refuses the first request.
    """
    return asyncio.run(_measure(options, key, tick))


async def _measure(options: LoadOptions, key: str | None, tick: Callable[[str], None]) -> Run:
    root = root_of(options.base_url)
    headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {key}"} if key else {})
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    timeout = httpx.Timeout(options.timeout)
    async with httpx.AsyncClient(headers=headers, limits=limits, timeout=timeout, trust_env=False) as client:
        model = options.model or await _first_model(client, root)
        load = _Load(client, root, model, options)
        made = asks(options)
        for i in range(options.num_warmups):
            tick(f"warming up, {i + 1} of {options.num_warmups}")
            tried = await load.send(made[i % len(made)], perf_counter(), 0.0)
            if tried.error is not None:
                raise ParlayError(f"the server does not answer the first request: {tried.error}")
        before = await _metrics(client, root)
        outcomes, lags = await load.run(made, tick)
        return Run(model, tuple(outcomes), tuple(lags), before, await _metrics(client, root))


class _Load:
    def __init__(self, client: httpx.AsyncClient, root: str, model: str, options: LoadOptions) -> None:
        self._client = client
        self._options = options
        self._model = model
        self._url = f"{root}/v1/{'chat/completions' if options.endpoint == 'chat' else 'completions'}"
        self._slots = asyncio.Semaphore(options.max_concurrency) if options.max_concurrency else None

    async def run(self, made: Sequence[Ask], tick: Callable[[str], None]) -> tuple[list[Outcome], list[float]]:
        """Send every request when it is due, and wait for all answers."""
        lags: list[float] = []
        watcher = asyncio.create_task(_watch(lags))
        tasks: list[asyncio.Task[Outcome]] = []
        done = 0

        def count(_: object) -> None:
            nonlocal done
            done += 1
            tick(f"{len(tasks)} of {len(made)} sent, {done} answered")

        try:
            async with asyncio.TaskGroup() as group:
                began = perf_counter()
                for ask in made:
                    await asyncio.sleep(max(0.0, began + ask.due - perf_counter()))
                    tasks.append(group.create_task(self._when_free(ask, began)))
                    tasks[-1].add_done_callback(count)
        finally:
            watcher.cancel()
        return [task.result() for task in tasks], lags

    async def _when_free(self, ask: Ask, began: float) -> Outcome:
        ready = perf_counter() - began
        if self._slots is None:
            return await self.send(ask, began, ready)
        async with self._slots:
            return await self.send(ask, began, ready)

    async def send(self, ask: Ask, began: float, ready: float) -> Outcome:
        """Send one request and read its answer; errors become part of the outcome."""
        reading = _Reading()
        sent = perf_counter() - began
        error: str | None = None
        try:
            async with (
                asyncio.timeout(self._options.timeout),
                self._client.stream("POST", self._url, json=self._body(ask)) as response,
            ):
                reading.status = response.status_code
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    error = f"{response.status_code}: {_reason(response)}"
                else:
                    error = await reading.read(response.aiter_bytes(), began)
        except TimeoutError:
            error = f"no complete answer within {self._options.timeout:g} s"
        except httpx.HTTPError as problem:
            error = f"{type(problem).__name__}: {brief(str(problem))}"
        return Outcome(
            due=ask.due,
            ready=ready,
            sent=sent,
            end=perf_counter() - began,
            events=tuple(reading.events),
            prompt_tokens=reading.usage.get("prompt_tokens"),
            tokens=reading.usage.get("completion_tokens") or len(reading.events),
            status=reading.status,
            error=error,
        )

    def _body(self, ask: Ask) -> dict[str, Any]:
        chat = self._options.endpoint == "chat"
        return {
            "model": self._model,
            **({"messages": [{"role": "user", "content": ask.prompt}]} if chat else {"prompt": ask.prompt}),
            "max_tokens": ask.max_tokens,
            "temperature": self._options.temperature,
            "seed": ask.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self._options.ignore_eos else {}),
        }


class _Reading:
    """One answer as it comes in."""

    def __init__(self) -> None:
        self.status = 0
        self.events: list[float] = []
        self.usage: dict[str, Any] = {}

    async def read(self, chunks: AsyncIterator[bytes], began: float) -> str | None:
        """Read the stream to its end; returns why it is not complete, if so."""
        splitter = Splitter()
        ended = False
        async for chunk in chunks:
            now = perf_counter() - began
            for data in splitter.feed(chunk):
                if data == "[DONE]":
                    ended = True
                    continue
                try:
                    event = json.loads(data)
                    choices = event.get("choices") or []
                    self.usage = event.get("usage") or self.usage
                    if "error" in event:
                        return f"in the stream: {_message(event)}"
                    if any(_text(choice) for choice in choices):
                        self.events.append(now)
                    ended = ended or any(choice.get("finish_reason") for choice in choices)
                except (ValueError, AttributeError, TypeError):
                    return f"an event that is none of this protocol: {brief(data)}"
        return None if ended else "the answer broke off"


class Splitter:
    """Splits a stream of bytes into the data of server-sent events, wherever the chunks end."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yield the data of the events that are complete with this chunk."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" ").decode(errors="replace"))
            elif not line and self._data:
                yield "\n".join(self._data)
                self._data.clear()


async def _watch(lags: list[float]) -> None:
    while True:
        asleep = perf_counter()
        await asyncio.sleep(_TICK)
        lags.append(max(0.0, perf_counter() - asleep - _TICK))


def root_of(base_url: str) -> str:
    """Return a server's address without a path.

    Raises:
        ConfigError: it is none.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{base_url!r} is no address of a server; write it as http://host:port")
    if url.userinfo:
        raise ConfigError("leave user and password out of base_url; the key comes from OPENAI_API_KEY")
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


async def _first_model(client: httpx.AsyncClient, root: str) -> str:
    try:
        response = await client.get(f"{root}/v1/models")
    except httpx.HTTPError as problem:
        raise ParlayError(f"no server answers at {root} ({brief(str(problem)) or type(problem).__name__})") from None
    if response.status_code != httpx.codes.OK:
        raise ParlayError(f"{root}/v1/models answers {response.status_code}: {_reason(response)}")
    with suppress(ValueError, LookupError, TypeError):
        return str(response.json()["data"][0]["id"])
    raise ParlayError(f"{root}/v1/models names no model; give one with --model")


async def _metrics(client: httpx.AsyncClient, root: str) -> str:
    with suppress(httpx.HTTPError):
        response = await client.get(f"{root}/metrics")
        if response.status_code == httpx.codes.OK:
            return response.text
    return ""


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or {}
    return (
        choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
    )


def _reason(response: httpx.Response) -> str:
    with suppress(ValueError):
        return _message(response.json())
    return brief(response.text) or response.reason_phrase


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return brief(str(error.get("message", error) if isinstance(error, dict) else error))
