"""Sending an answer to the client: whole or as server-sent events, and only while the client is connected."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from parlay.server.context import Context, RequestState, while_wanted
from parlay.server.errors import CLIENT_LEFT, ApiError, ClientLeftError, as_api_error, json_response
from parlay.server.metrics import PrometheusMetrics
from parlay.server.openai.events import Events
from parlay.server.openai.usage import request_metrics, usage
from parlay.types.output import RequestOutput
from parlay.types.params import SamplingParams
from parlay.types.prompt import Prompt

# The engine enforces the timeout itself; this is for an engine that does not answer at all, and for a client that
# takes an answer slowly.
_GRACE = 10.0
_encode = msgspec.json.Encoder().encode

T = TypeVar("T")


class AnswerFields(Protocol):
    """What is asked of how an answer is sent."""

    @property
    def stream(self) -> bool:
        """Send it as it is generated."""

    @property
    def include_usage(self) -> bool:
        """End a stream with the usage."""

    @property
    def continuous_usage(self) -> bool:
        """Add the usage so far to every chunk of a stream."""

    @property
    def return_metrics(self) -> bool:
        """Return acceptance beside the usage."""


@dataclass(slots=True, kw_only=True)
class AnswerShape(ABC):
    """The format of one endpoint's answers.

    Attributes:
        context: the parts of the server.
        fields: the request's own fields.
        params: the sampling parameters.
        warnings: texts for the client, beside its answer.
        without_output: the prompt alone is wanted.
    """

    context: Context
    fields: AnswerFields
    params: SamplingParams
    warnings: tuple[str, ...] = ()
    without_output: bool = False

    @property
    def reasoning_tokens(self) -> int:
        """Of all choices so far."""
        return 0

    @abstractmethod
    def events(self, number: int, output: RequestOutput) -> Iterable[dict[str, Any]]:
        """Yield the chunks with what is new for prompt `number`."""

    @abstractmethod
    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """Return the whole answer without its usage."""

    @abstractmethod
    def closing(self) -> dict[str, Any]:
        """Return a chunk without choices."""

    def complete(self, outputs: list[RequestOutput], took: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the whole answer with the result of `took`: its usage, and what comes beside that."""
        return {**self.whole(outputs), **took()}

    def warn(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return an answer, or its first chunk, with warnings for the client."""
        return warned(body, self.warnings)

    def encode(self, chunk: dict[str, Any]) -> bytes:
        """Return a chunk as an event of a stream."""
        return _event(chunk)

    def last(self, took: dict[str, Any], *, with_usage: bool) -> bytes:
        """Return the events that end a stream; with the usage, if that was asked for."""
        return (self.encode({**self.closing(), **took}) if with_usage else b"") + b"data: [DONE]\n\n"

    def named(self, error: ApiError) -> ApiError:
        """Return an error of the engine in the words of the request."""
        return error

    def failure(self, error: ApiError) -> bytes:
        """Return the event that ends a stream after an error; OpenAI's clients raise it."""
        return _event(error.body)


class Answer(Response):
    """Computes an answer while it is sent, so that a disconnected client ends both."""

    def __init__(self, prompts: list[Prompt], shape: AnswerShape) -> None:
        """Describe the answer to some prompts; nothing is computed before it is sent."""
        self._context, self._prompts, self._shape = shape.context, prompts, shape
        self._params, self._fields = shape.params, shape.fields
        self._metrics = self._fields.return_metrics or shape.context.config.per_request_spec_decode_metrics != "none"
        self._texts: dict[int, dict[int, list[str]]] = {}  # by prompt and completion, where they are logged
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compute and send, as an ASGI application."""
        state: RequestState = scope["state"]["request"]
        context = self._context
        try:
            context.check_ready()
            assert state.admitted is not None
            context.admission.widen(state.admitted, len(self._prompts) * self._params.candidates)
            state.requested = len(self._prompts) * self._params.n
            state.body.close()  # it has become prompts and parameters
            work = self._events(state, send) if self._fields.stream else self._whole(state, scope, receive, send)
            async with asyncio.timeout(context.config.request_timeout + _GRACE):
                await while_wanted(work, receive, context.admission.cut)
        except ClientLeftError:
            state.status = CLIENT_LEFT
        except Exception as error:
            refusal = self._shape.named(as_api_error(error))
            state.facts["error"] = str(refusal)
            if not state.began:
                await refusal.response()(scope, receive, send)
                return
            # The status is out: the error can only be an event.
            state.failed = refusal.status >= 500
            await send({"type": "http.response.body", "body": self._shape.failure(refusal)})
        finally:
            self._record(state)

    async def _whole(self, state: RequestState, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._outputs(state)) as growing:
            async for _ in growing:
                pass
        outputs = state.newest
        size = sum(len(o.prompt_token_ids) + sum(len(one.token_ids) for one in o.outputs) for o in outputs)
        answer = await self._context.threads.run(state.client.name, size, partial(self._answer, outputs))
        await answer(scope, receive, send)

    def _answer(self, outputs: list[RequestOutput]) -> Response:
        return json_response(self._shape.warn(self._shape.complete(outputs, partial(self._took, outputs))))

    async def _events(self, state: RequestState, send: Send) -> None:
        begun = False
        async with Events(send) as events, aclosing(self._outputs(state)) as growing:
            async for number, output in growing:
                chunks = list(self._shape.events(number, output))
                if self._fields.include_usage:
                    so_far = self._usage(state.newest) if self._fields.continuous_usage else None
                    chunks = [{**chunk, "usage": so_far} for chunk in chunks]
                if chunks and not begun:
                    chunks[0], begun = self._shape.warn(chunks[0]), True
                await events.write(b"".join(map(self._shape.encode, chunks)))
            took = self._took(state.newest)
            await events.write(self._shape.last(took, with_usage=self._fields.include_usage), more=False)

    async def _outputs(self, state: RequestState) -> AsyncGenerator[tuple[int, RequestOutput]]:
        """Yield what is new of the prompts' outputs, with their numbers; the state always has the newest.

        Raises:
            TimeoutError: the engine had not enough time.
        """
        context = self._context
        streams = [
            context.engine.generate(
                prompt,
                self._params,
                tenant=state.client.tenant,
                timeout=context.config.request_timeout,
                final_only=not self._fields.stream,
                deltas=self._fields.stream,
            )
            for prompt in self._prompts
        ]
        before: dict[tuple[int, int], float] = {}
        async with aclosing(merge(streams)) as merged:
            async for number, output in merged:
                state.outputs[number] = output
                if context.config.log_prompts:
                    for one in output.outputs:
                        self._texts.setdefault(number, {}).setdefault(one.index, []).append(one.text)
                if context.metrics is not None:
                    _measure(context.metrics, state, before, number, output)
                if output.error is not None:
                    raise output.error
                if any(one.finish_reason == "abort" for one in output.outputs):
                    raise TimeoutError
                yield number, output

    def _usage(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """Return the usage so far."""
        shape = self._shape
        return usage(outputs, without_output=shape.without_output, reasoning_tokens=shape.reasoning_tokens)

    def _took(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """Return the usage of all, and what comes beside it."""
        took: dict[str, Any] = {"usage": self._usage(outputs)}
        if self._metrics:
            detailed = self._context.config.per_request_spec_decode_metrics == "detailed"
            took["metrics"] = request_metrics(outputs, speculates=len(self._context.methods) > 1, detailed=detailed)
        return took

    def _record(self, state: RequestState) -> None:
        took = self._usage(state.newest)
        # Of an answer that was to come whole, nothing is known before its end.
        known = len(state.outputs) == len(self._prompts) or self._fields.stream
        state.facts |= {
            "stream": self._fields.stream,
            "prompts": len(self._prompts),
            "n": self._params.n,
            "prompt_tokens": took["prompt_tokens"] if known else None,
            "completion_tokens": took["completion_tokens"] if known else None,
        }
        if self._shape.warnings:
            state.facts["warnings"] = list(self._shape.warnings)
        if self._context.config.log_prompts:
            state.facts["log"] = [
                {
                    "prompt": output.prompt or list(output.prompt_token_ids),
                    "texts": ["".join(self._texts[number][one.index]) for one in output.outputs],
                }
                for number, output in sorted(state.outputs.items())
            ]


def _measure(
    metrics: PrometheusMetrics,
    state: RequestState,
    before: dict[tuple[int, int], float],
    number: int,
    output: RequestOutput,
) -> None:
    """Record the times of each completion's new tokens."""
    now = time.perf_counter()
    for one in output.outputs:
        key, tokens = (number, one.index), len(one.token_ids)
        if not tokens:
            continue
        then, before[key] = before.get(key), now
        if then is not None:
            metrics.observe_step(now - then, tokens, output.replica)
        elif one.finish_reason is None:
            metrics.observe_first(now - state.arrival, output.replica)
        else:  # all at once: the metrics say when they came
            times = one.metrics
            metrics.observe_first(times.first_token - times.arrival, output.replica)
            metrics.observe_step(times.finished - times.first_token, times.emitted - 1, output.replica)


def warned(body: dict[str, Any], warnings: tuple[str, ...]) -> dict[str, Any]:
    """Return an answer, or its first chunk, with warnings for the client."""
    return {**body, "warnings": list(warnings)} if warnings else body


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + _encode(chunk) + b"\n\n"


async def merge(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Yield what several iterators yield, each with the iterator's number.

    No item is left out; an iterator is asked for its next when the last one is taken.

    Raises:
        Exception: anything that one of them raises; the others are closed.
    """
    if len(streams) == 1:
        try:
            async for item in streams[0]:
                yield 0, item
        finally:
            await _close(streams[0])
        return
    ready: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()  # at most one of each
    taken = [asyncio.Event() for _ in streams]

    async def pump(number: int) -> None:
        end: Exception | None = None
        try:
            async for item in streams[number]:
                ready.put_nowait((number, item))
                await taken[number].wait()
                taken[number].clear()
        except Exception as error:
            end = error
        finally:
            await _close(streams[number])
        ready.put_nowait(end)

    tasks = [asyncio.create_task(pump(i)) for i in range(len(streams))]
    running = len(tasks)
    try:
        while running:
            found = await ready.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                running -= 1
            else:
                taken[found[0]].set()
                yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _close(stream: AsyncIterator[Any]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
