"""`/v1/responses`: OpenAI's newer form of a conversation, answered with chat completions' code."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Any
from uuid import uuid4

import msgspec
from starlette.responses import Response

from parlay.errors import ParlayError, shown
from parlay.server.context import Context
from parlay.server.errors import ApiError, json_response
from parlay.server.openai.answer import Answer, AnswerShape, warned
from parlay.server.openai.bodies import read_body
from parlay.server.openai.chat import ChatShape, read_chat
from parlay.server.openai.fields import check_model, parse
from parlay.server.openai.prompts import chat_prompt
from parlay.server.openai.response_format import RESPONSES
from parlay.server.openai.responses_fields import ResponseFields, chat_fields
from parlay.server.openai.responses_input import Message, messages_of
from parlay.server.openai.responses_store import ResponseStore, StoredResponse
from parlay.server.openai.responses_stream import Event, ResponseOutput
from parlay.server.openai.responses_tools import Functions, functions_of
from parlay.text.chat import ChatOptions
from parlay.types.output import RequestOutput
from parlay.types.prompt import Prompt

# What the fields of chat completions are called here.
_PARAMS = {
    "messages": "input", "max_completion_tokens": "max_output_tokens", "response_format": "text",
    "verbosity": "text", "reasoning_effort": "reasoning",
}  # fmt: skip
# Fields that a response has as they were asked.
_REPEATED = (
    "instructions", "previous_response_id", "store", "max_output_tokens", "max_tool_calls", "parallel_tool_calls",
    "tool_choice", "truncation", "user", "safety_identifier", "prompt_cache_key",
)  # fmt: skip
_encode = msgspec.json.Encoder().encode


async def responses(context: Context) -> Answer:
    """Answer a request.

    Raises:
        ApiError, RequestError: something in the body cannot be served.
    """
    shape, messages, options = await read_body(context, _read)
    with _own_params():
        prompt = await chat_prompt(context, messages, options)
    shape.begin(prompt)
    return Answer([prompt], shape)


async def count_input(context: Context) -> Response:
    """Return how many tokens the input of a response has.

    Raises:
        ApiError, RequestError: something in the body cannot be served.
    """
    shape, messages, options = await read_body(context, _read, completes=False)
    with _own_params():
        prompt = await chat_prompt(context, messages, options)
    assert isinstance(prompt, dict)
    counted = {"object": "response.input_tokens", "input_tokens": len(prompt["prompt_token_ids"])}
    return json_response(warned(counted, shape.warnings))


async def response(context: Context) -> Response:
    """Return a stored response; with `stream=true` as the events of a stream, from `starting_after` on.

    Raises:
        ApiError: there is none, or a parameter is malformed.
    """
    query = context.request.query_params
    body = context.store.get(context.request.path_params["name"], context.state.client.owner).body
    wanted, after = query.get("stream", "false"), query.get("starting_after", "-1")
    if wanted.lower() not in ("true", "false", "1", "0", ""):
        raise ApiError(400, f"stream is true or false, not {shown(wanted)}", param="stream")
    if wanted.lower() not in ("true", "1"):
        return Response(body, media_type="application/json")
    if re.fullmatch(r"-?\d{1,9}", after, re.ASCII) is None:
        raise ApiError(400, f"starting_after is a number, not {shown(after)}", param="starting_after")
    return await context.run(len(body), lambda: _replayed(body, int(after)))


def _replayed(body: bytes, after: int) -> Response:
    """Return the events of a stored response whose numbers are above `after`."""
    response = msgspec.json.decode(body)
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "completed_at": None}
    made = ResponseOutput()
    events: list[Event] = [{"type": f"response.{state}", "response": begun} for state in ("created", "in_progress")]
    events += chain.from_iterable(map(made.replay, response["output"]))
    events.append({"type": f"response.{response['status']}", "response": response})
    numbered = ({**event, "sequence_number": number} for number, event in enumerate(events))
    content = b"".join(_event(event) for event in numbered if event["sequence_number"] > after)
    return Response(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def _event(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), _encode(event))


async def forget(context: Context) -> Response:
    """Delete a stored response.

    Raises:
        ApiError: there is none.
    """
    name = context.request.path_params["name"]
    context.store.delete(name, context.state.client.owner)
    return json_response({"id": name, "object": "response", "deleted": True})


@contextmanager
def _own_params() -> Iterator[None]:
    """A region whose errors name a response's own fields in place of those of chat completions."""
    try:
        yield
    except (ApiError, ParlayError) as error:
        error.param = _PARAMS.get(str(error.param), error.param)
        raise


def _read(context: Context, body: dict[str, Any]) -> tuple["ResponseShape", list[Message], ChatOptions]:
    store, owner = context.store, context.state.client.owner
    fields, sampling, warnings = parse(ResponseFields, body, strict=context.config.strict_fields)
    check_model(fields.model, context.engine.model_names)
    given = _referred(fields.input, store, owner)
    fields = _updated(fields, given)
    functions = functions_of(fields.tools, _added(given))
    chat = chat_fields(fields, functions)
    before: list[Message] = []
    if fields.previous_response_id:
        before = store.get(fields.previous_response_id, owner, "previous_response_id").messages()
    conversation = messages_of(given, before)
    system = [] if fields.instructions is None else [{"role": "system", "content": fields.instructions}]
    format = (fields.text or {}).get("format") or {}
    names = replace(RESPONSES, strict=frozenset(functions.strict), strict_format=format.get("strict") is True)
    with _own_params():
        shape, messages, options = read_chat(
            context, {**sampling, **chat, "messages": [*system, *conversation]}, names
        )
    warnings = (*warnings, *functions.warnings, *shape.warnings)
    shaped = ResponseShape(
        context=context,
        fields=fields,
        params=shape.params,
        warnings=warnings,
        chat=shape,
        conversation=conversation,
        functions=functions,
    )
    return shaped, messages, options


def _referred(given: str | list[dict[str, Any]], store: ResponseStore, owner: str) -> str | list[dict[str, Any]]:
    """Return an input with items in place of references to those that are stored."""
    if isinstance(given, str):
        return given
    wanted = [str(item.get("id")) for item in given if item.get("type") == "item_reference"]
    items = store.items(wanted, owner)
    # Each once: a long item that is referred to often would be a prompt far longer than its request.
    return [items.pop(str(item.get("id")), item) if item.get("type") == "item_reference" else item for item in given]


def _updated(fields: ResponseFields, given: str | list[dict[str, Any]]) -> ResponseFields:
    """Return the fields as the updates of the configuration among an input's items leave them."""
    text, reasoning = fields.text, fields.reasoning
    for item in () if isinstance(given, str) else given:
        if item.get("type") == "configuration_update":
            text = _merged(text, item.get("text"))
            reasoning = _merged(reasoning, item.get("reasoning"))
    return replace(fields, text=text, reasoning=reasoning)


def _merged(given: dict[str, Any] | None, update: Any) -> dict[str, Any] | None:
    return {**(given or {}), **update} if isinstance(update, dict) else given


def _added(given: str | list[dict[str, Any]]) -> list[Any]:
    """Return the tools that the items of an input add."""
    items = [] if isinstance(given, str) else given
    lists = [item.get("tools") for item in items if item.get("type") in ("additional_tools", "tool_search_output")]
    return [tool for tools in lists if isinstance(tools, list) for tool in tools]


class Scores:
    """Log-probabilities of an answer's tokens, of which its text is given those that it consists of.

    Attributes:
        left: those that no text was given.
    """

    def __init__(self) -> None:
        self.left: list[dict[str, Any]] = []
        self._tokens = 0  # of the answer so far

    def extend(self, entries: list[dict[str, Any]], reasoning: int) -> None:
        """Add entries in the form of chat completions; the first `reasoning` tokens of an answer are no text."""
        self.left += entries[max(reasoning - self._tokens, 0) :]
        self._tokens += len(entries)

    def take(self, text: str, *, calls: bool) -> list[dict[str, Any]]:
        """Return the entries of the next piece of the text; `calls`: whether the tokens after it are of calls."""
        if not text and not calls:
            return []
        taken = len(self.left)
        if calls:
            sizes = accumulate(len(entry["bytes"] or ()) for entry in self.left)
            taken = sum(size < len(text.encode()) for size in sizes) + bool(text)
        found, self.left = self.left[:taken], [] if calls else self.left[taken:]
        return found


@dataclass(slots=True, kw_only=True)
class ResponseShape(AnswerShape):
    """The format of responses: chat's own chunks and messages, converted."""

    fields: ResponseFields
    chat: ChatShape
    conversation: list[Message]
    functions: Functions
    output: ResponseOutput = field(init=False)
    head: dict[str, Any] = field(init=False)
    scores: Scores = field(default_factory=Scores)
    sent: int = 0  # events
    finish: str | None = None

    def begin(self, prompt: Prompt) -> None:
        """Set the prompt; see `ChatShape.begin`."""
        self.chat.begin(prompt)
        self.params = self.chat.params

    def __post_init__(self) -> None:
        fields, params = self.fields, self.params
        self.output = ResponseOutput(self.functions.origins)
        form = (fields.text or {}).get("format") or {"type": "text"}
        self.head = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": self.context.now(),
            "model": self.context.engine.model_name,
            **{name: getattr(fields, name) for name in _REPEATED},
            "metadata": fields.metadata or {},
            "tools": [_shown(tool) for tool in fields.tools],
            "text": {"format": form},
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_logprobs": fields.top_logprobs,
            "background": False,
            "reasoning": {"effort": (self.fields.reasoning or {}).get("effort"), "summary": None},
            "service_tier": "default",
        }
        if self.warnings:
            self.head["warnings"] = list(self.warnings)

    @property
    def reasoning_tokens(self) -> int:
        """Of the answer so far."""
        return self.chat.reasoning_tokens

    def warn(self, body: dict[str, Any]) -> dict[str, Any]:
        """Leave an answer as it is: the response itself has the warnings."""
        return body

    def events(self, number: int, output: RequestOutput) -> Iterator[Event]:
        """Yield the events that tell what is new."""
        if not self.sent:
            yield self._numbered({"type": "response.created", "response": self._response("in_progress")})
            yield self._numbered({"type": "response.in_progress", "response": self._response("in_progress")})
        for chunk in self.chat.events(number, output):
            for choice in chunk["choices"]:
                yield from map(self._numbered, self._take(choice))

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """Return the whole response, but for its usage."""
        for chunk in self.chat.events(0, outputs[0]):
            for choice in chunk["choices"]:
                self._take(choice)
        return self._response(self._status)

    def named(self, error: ApiError) -> ApiError:
        """Return an error of the engine in the words of the request."""
        error = self.chat.named(error)
        error.param = _PARAMS.get(str(error.param), error.param)
        return error

    def closing(self) -> dict[str, Any]:
        """Return the response that the last event has, but for its usage."""
        return self._response(self._status)

    def complete(self, outputs: list[RequestOutput], took: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the whole response, which is then stored."""
        return self._finished(self.whole(outputs), took())

    def encode(self, chunk: Event) -> bytes:
        """Return an event as the stream has it."""
        return _event(chunk)

    def last(self, took: dict[str, Any], *, with_usage: bool) -> bytes:
        """Return the event that ends a stream."""
        response = self._finished(self.closing(), took)
        return self.encode(self._numbered({"type": f"response.{self._status}", "response": response}))

    def failure(self, error: ApiError) -> bytes:
        """Return the event of a stream that ends with an error."""
        response = {**self._response("failed"), "error": {"code": "server_error", "message": str(error)}}
        return self.encode(self._numbered({"type": "response.failed", "response": response}))

    def _take(self, choice: dict[str, Any]) -> list[Event]:
        """Add what is new of chat's one choice; return the events for it."""
        delta, scored = choice["delta"], choice["logprobs"]
        if scored is not None:
            self.scores.extend(scored["content"], self.reasoning_tokens)
        text = delta.get("content") or ""
        found = [
            self.output.write(delta.get("reasoning_content") or "", "reasoning"),
            self.output.write(text, logprobs=self.scores.take(text, calls=bool(delta.get("tool_calls")))),
            *(self.output.call(call) for call in delta.get("tool_calls") or ()),
        ]
        if choice["finish_reason"] is not None:
            self.finish = choice["finish_reason"]
            found.append(self.output.end(self._status, self.scores.left))
        return list(chain.from_iterable(found))

    @property
    def _status(self) -> str:
        return "incomplete" if self.finish == "length" else "completed"

    def _response(self, status: str) -> dict[str, Any]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self.head,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "output": list(self.output.items),
            "usage": None,
        }

    def _finished(self, response: dict[str, Any], took: dict[str, Any]) -> dict[str, Any]:
        """Return a response with its usage; store it if that was asked for."""
        response |= {"completed_at": self.context.now(), **took, "usage": _usage(took["usage"])}
        if self.fields.store:
            conversation = messages_of(self.output.items, self.conversation)
            items = tuple(item["id"] for item in self.output.items)
            owner = self.context.state.client.owner
            stored = StoredResponse(owner, _encode(response), _encode(conversation), items)
            response["store"] = self.context.store.put(response["id"], stored)
        return response

    def _numbered(self, event: Event) -> Event:
        self.sent += 1
        return {**event, "sequence_number": self.sent - 1}


def _shown(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool with all that OpenAI's clients expect of it."""
    missing = {"description": None, "parameters": None, "strict": False} if tool.get("type") == "function" else {}
    return {**missing, **tool}


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Return chat's usage in the words of responses."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
        "speculation": usage["speculation"],
    }
