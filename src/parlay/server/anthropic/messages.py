"""`/v1/messages`: Anthropic's form of a conversation, answered with chat completions' code."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec
from starlette.responses import Response

from parlay.errors import ParlayError
from parlay.server.anthropic.blocks import Content, Event
from parlay.server.anthropic.conversation import chat_body, functions_of
from parlay.server.anthropic.fields import MessagesFields
from parlay.server.context import Context
from parlay.server.errors import CONTEXT_LENGTH, ApiError, as_api_error, json_response
from parlay.server.openai.answer import Answer, AnswerShape, warned
from parlay.server.openai.bodies import read_body
from parlay.server.openai.chat import ChatShape, read_chat
from parlay.server.openai.fields import parse
from parlay.server.openai.prompts import chat_prompt
from parlay.server.openai.response_format import Names
from parlay.text.chat import ChatOptions
from parlay.types.output import RequestOutput
from parlay.types.prompt import Prompt

_FORM = "output_config"
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_KINDS = {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}
_NAMES = {"stop": "stop_sequences", "reasoning_effort": "output_config.effort"}
_COUNTS = re.compile(r"is (\d+) tokens, but the prompt has (\d+) tokens")
_encode = msgspec.json.Encoder().encode


async def messages(context: Context) -> Answer:
    """Answer a request.

    Raises:
        ApiError, RequestError: something in the body cannot be served.
    """
    shape, prompt = await _read(context, completes=True)
    shape.begin(prompt)
    return Answer([prompt], shape)


async def count_tokens(context: Context) -> Response:
    """Return how many tokens a request's prompt has.

    Raises:
        ApiError, RequestError: something in the body cannot be served.
    """
    shape, prompt = await _read(context, completes=False)
    assert isinstance(prompt, dict)
    return json_response(warned({"input_tokens": len(prompt["prompt_token_ids"])}, shape.warnings))


async def _read(context: Context, *, completes: bool) -> tuple["MessageShape", Prompt]:
    try:
        shape, conversation, options = await read_body(context, _shape_of, completes=completes)
        return shape, await chat_prompt(context, conversation, options)
    except (ApiError, ParlayError) as error:
        raise _named(as_api_error(error)) from None


def _shape_of(context: Context, body: dict[str, Any]) -> tuple["MessageShape", list[dict[str, Any]], ChatOptions]:
    if body.get("thread"):  # clients send whole conversations then
        unsupported = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        message = "threads are not kept; send the whole conversation, without thread"
        raise ApiError(400, message, param="thread", code="unsupported_parameter", details=unsupported)
    fields, sampling, warnings = parse(MessagesFields, body, strict=context.config.strict_fields)
    functions = functions_of(fields.tools)
    without_output = sampling.get("max_tokens") == 0 and type(sampling["max_tokens"]) is int
    if without_output:  # the prompt is wanted in the cache
        sampling["max_tokens"] = 1
    names = Names(_FORM, f"{_FORM}.format", "tools[{}].input_schema", frozenset(functions.strict))
    chat, conversation, options = read_chat(context, {**sampling, **chat_body(fields, functions)}, names)
    shape = MessageShape(
        context=context,
        fields=fields,
        params=chat.params,
        warnings=(*warnings, *functions.warnings, *chat.warnings),
        without_output=without_output,
        chat=chat,
    )
    return shape, conversation, options


@dataclass(slots=True, kw_only=True)
class MessageShape(AnswerShape):
    """The format of messages: chat's own chunks, converted."""

    fields: MessagesFields
    chat: ChatShape
    content: Content = field(default_factory=Content)
    head: dict[str, Any] = field(init=False)
    begun: bool = False
    finish: str = "stop"
    stop: str | None = None  # the stop sequence that ended it
    _calls: bool = False  # whether it ends with calls

    def __post_init__(self) -> None:
        self.head = {
            "id": f"msg_{uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self.context.engine.model_name,
        }

    def begin(self, prompt: Prompt) -> None:
        """Set the prompt; see `ChatShape.begin`."""
        self.chat.begin(prompt)
        self.params = self.chat.params

    @property
    def reasoning_tokens(self) -> int:
        """Of the answer so far."""
        return self.chat.reasoning_tokens

    def events(self, number: int, output: RequestOutput) -> Iterator[Event]:
        """Yield the events that tell what is new."""
        if not self.begun:
            self.begun = True
            cached = output.metrics.cached_tokens
            counts = _counts(len(output.prompt_token_ids), cached, 0)
            begins = {**self.head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": counts}
            yield {"type": "message_start", "message": begins}
        for chunk in self.chat.events(number, output):
            for choice in chunk["choices"]:
                yield from self._take(choice)

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """Return the whole message without its usage."""
        for chunk in self.chat.events(0, outputs[0]):
            for choice in chunk["choices"]:
                self._take(choice)
        self.content.close()
        return {**self.head, "content": self.content.blocks, **self._end}

    def complete(self, outputs: list[RequestOutput], took: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the whole message."""
        return {**self.whole(outputs), **_with_usage(took())}

    def closing(self) -> dict[str, Any]:
        """Return the event that tells why a stream ends, but for its usage."""
        return {"type": "message_delta", "delta": self._end}

    def encode(self, chunk: Event) -> bytes:
        """Return an event as the stream has it."""
        return b"event: %b\ndata: %b\n\n" % (str(chunk["type"]).encode(), _encode(chunk))

    def last(self, took: dict[str, Any], *, with_usage: bool) -> bytes:
        """Return the events that end a stream."""
        ends = [*self.content.close(), {**self.closing(), **_with_usage(took)}, {"type": "message_stop"}]
        return b"".join(map(self.encode, ends))

    def named(self, error: ApiError) -> ApiError:
        """Return an error of the engine in the words of the request."""
        return _named(self.chat.named(error))

    def failure(self, error: ApiError) -> bytes:
        """Return the event of a stream that ends with an error."""
        return self.encode(error.body)

    def _take(self, choice: dict[str, Any]) -> list[Event]:
        """Add what is new of chat's one choice; return the events for it."""
        if self.without_output:
            self.finish = "length"
            return []
        delta = choice["delta"]
        events = self.content.write(delta.get("reasoning_content") or "", "thinking")
        events += self.content.write(delta.get("content") or "")
        for call in delta.get("tool_calls") or ():
            events += self.content.call(call)
        if choice["finish_reason"] is not None:
            self.finish = choice["finish_reason"]
            self.stop = choice["stop_reason"] if isinstance(choice["stop_reason"], str) else None
            # A call that a stop sequence has cut off is none to be run.
            self._calls = self.content.called and self.finish != "length" and not (self.stop and self.content.cut)
        return events

    @property
    def _end(self) -> dict[str, Any]:
        if self._calls:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        reason = "stop_sequence" if self.stop is not None else _REASONS[self.finish]
        return {"stop_reason": reason, "stop_sequence": self.stop}


def _named(error: ApiError) -> ApiError:
    """Return an error in Anthropic's words, by which its clients know what to do about it."""
    message, param = str(error), error.param
    if error.code == CONTEXT_LENGTH:
        counts = _COUNTS.search(message)
        exceeds = "" if counts is None else f"{counts[2]} tokens > {counts[1]} maximum; "
        message = f"prompt is too long: {exceeds}{message}"
    elif param in _NAMES:
        message, param = re.sub(rf"\b{param}\b", _NAMES[param], message), _NAMES[param]
    kind, headers, details = _KINDS.get(error.status), error.headers, error.details
    return ApiError(
        error.status, message, param=param, code=error.code, kind=kind, headers=headers, details=details
    )  # fmt: skip


def _with_usage(took: dict[str, Any]) -> dict[str, Any]:
    """Return what comes beside a message, its usage in Anthropic's words."""
    usage = took["usage"]
    counts = _counts(
        usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]
    )
    thought = usage["completion_tokens_details"]["reasoning_tokens"]
    more = {"output_tokens_details": {"thinking_tokens": thought}, "speculation": usage["speculation"]}
    return {**took, "usage": {**counts, **more}}


def _counts(prompt: int, cached: int, output: int) -> dict[str, Any]:
    """Return numbers of tokens; those of the prompt that were cached are counted apart."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }
