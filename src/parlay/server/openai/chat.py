"""`/v1/chat/completions`: a conversation, and the answer to it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from parlay.errors import shown
from parlay.server.context import Context
from parlay.server.errors import ApiError
from parlay.server.openai.answer import Answer
from parlay.server.openai.bodies import read_body
from parlay.server.openai.choice import ChoiceDelta, ChoicesShape
from parlay.server.openai.completions import check_stream
from parlay.server.openai.fields import ChatFields, check_model, make_params, parse
from parlay.server.openai.logprobs import chat_logprobs, prompt_logprobs
from parlay.server.openai.messages import MessageReader
from parlay.server.openai.prompts import chat_prompt, predicted
from parlay.server.openai.reasoning import Marks, ReasoningReader, marks_of, reasoning_grammar, thoughts_reader
from parlay.server.openai.response_format import CHAT, AnswerForm, Names, form_of
from parlay.server.openai.tool_formats import FORMATS, ToolFormat, format_of
from parlay.server.openai.tool_readers import CallReader, Piece, reader_of
from parlay.server.openai.tools import Tools, read_tools, tools_shown
from parlay.text.chat import ChatOptions
from parlay.types.output import RequestOutput
from parlay.types.prompt import Prompt
from parlay.types.structured import StructuredOutputsParams

_IGNORED = (
    "the model's chat template ignores tools: the system message describes them instead, and calls are expected "
    "between <tool_call> tags"
)
Read = tuple["ChatShape", list[dict[str, Any]], ChatOptions]


async def chat_completions(context: Context) -> Answer:
    """Answer a request.

    Raises:
        ApiError, RequestError: something in the body cannot be served.
    """
    shape, messages, options = await read_body(context, read_chat)
    prompt = await chat_prompt(context, messages, options)
    shape.begin(prompt)
    return Answer([prompt], shape)


def read_chat(context: Context, body: dict[str, Any], names: Names = CHAT) -> Read:
    """Return the answer's format, the messages, and the options of the prompt.

    Args:
        context: the parts of the server.
        body: the request's body.
        names: what the client calls the fields that are named in messages.

    Raises:
        ApiError, RequestError: something in the body cannot be served.
    """
    fields, sampling, warnings = parse(ChatFields, body, strict=context.config.strict_fields)
    check_model(fields.model, context.engine.model_names)
    # Before anything reads it: it is run to see what a template does.
    given = fields.chat_template not in (None, *context.engine.codec.template_names)
    if given and not context.config.trust_request_chat_template:
        raise ApiError(
            400, "chat templates of requests are disabled; leave it out, or start the server with "
            "--trust-request-chat-template", param="chat_template",
        )  # fmt: skip
    tools = read_tools(fields)
    unsupported = {"return_sources": fields.return_sources, "return_rejected": sampling.get("return_rejected")}
    for name, wanted in unsupported.items():
        if tools.mode != "none" and wanted:
            raise ApiError(400, f"{name} cannot be combined with tools; leave one of them out", param=name)
    style = ModelStyle.of(context, fields, tools)
    form = form_of(
        fields, tools, style.form, context.engine.codec.tokenizer, sampling.get("structured_outputs"), names
    )
    sampling = _sampling(fields, sampling, context)
    sampling["structured_outputs"] = form.structured
    if style.special or form.special:
        sampling.setdefault("skip_special_tokens", False)
    sampling["prediction"] = predicted(fields, context.engine.codec, context.config)
    params = make_params({**context.engine.sampling_defaults, **sampling}, context.config)
    check_stream(fields.stream, params, scored=params.prompt_logprobs is not None)
    options = ChatOptions(
        chat_template=fields.chat_template,
        # The next message is begun by default, unless the last one is to be continued.
        add_generation_prompt=fields.add_generation_prompt and not fields.continue_final_message,
        continue_final_message=fields.continue_final_message,
        tools=tools_shown(fields, tools),
        chat_template_kwargs=style.variables,
    )
    warnings = (*warnings, *style.warnings, *form.warnings)
    shape = ChatShape(
        context=context, fields=fields, params=params, warnings=warnings, tools=tools, style=style, form=form
    )
    return shape, fields.messages, options


def _sampling(fields: ChatFields, given: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the engine's parameters."""
    values = dict(given)
    most = fields.max_completion_tokens
    if most is not None and values.get("max_tokens", most) != most:
        raise ApiError(400, "max_completion_tokens and max_tokens are one limit; give one", param="max_tokens")
    values["max_tokens"] = values.get("max_tokens", most)
    if fields.logprobs:
        top = fields.top_logprobs or 0  # here logprobs is a switch; the engine's is a number
        if not 0 <= top <= context.config.max_logprobs:
            raise ApiError(
                400, f"top_logprobs must be between 0 and {context.config.max_logprobs}, not {shown(top)}",
                param="top_logprobs",
            )  # fmt: skip
        values["logprobs"] = top
    return values


@dataclass(frozen=True, slots=True)
class ModelStyle:
    """What to look for in the answers to one request.

    Attributes:
        form: how calls are written.
        marks: the marks around reasoning, if there is any.
        special: whether some of that are special tokens, which answers have to show.
        variables: the template's variables.
        warnings: texts for the client.
    """

    form: ToolFormat
    marks: Marks | None
    special: bool
    variables: dict[str, Any]
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, context: Context, fields: ChatFields, tools: Tools) -> "ModelStyle":
        """Return the style of a request with the model's chat template."""
        codec, config = context.engine.codec, context.config
        template = codec.template_for(fields.chat_template, tools=bool(tools_shown(fields, tools)))
        form, warnings = format_of(config.tool_call_parser, template), []
        if tools.mode != "none" and template is not None and not codec.shows_tools(template):
            form = FORMATS["hermes"]
            warnings.append(_IGNORED)
        wanted: dict[str, Any] = {}
        for name in ("reasoning_effort", "verbosity"):
            value = getattr(fields, name)
            if value is not None:
                variables = {name: value} | ({"enable_thinking": False} if value == "none" else {})
                wanted |= variables
                if not any(variable in (template or "") for variable in variables):
                    warnings.append(f"{name} has no effect: the model's chat template does not read it")
        if "documents" in fields.chat_template_kwargs and "documents" not in (template or ""):
            warnings.append("documents has no effect: the model's chat template does not read it")
        marks = marks_of(config.reasoning_parser, template)
        special = (tools.mode == "auto" and form.special) or (marks is not None and marks.special)
        return cls(form, marks, special, {**wanted, **fields.chat_template_kwargs}, tuple(warnings))


@dataclass(slots=True, kw_only=True)
class ChatShape(ChoicesShape):
    """The format of chat completions."""

    id_prefix: ClassVar[str] = "chatcmpl"

    fields: ChatFields
    tools: Tools
    style: ModelStyle
    form: AnswerForm
    prompt: str = ""
    readers: dict[int, CallReader | None] = field(default_factory=dict)
    thoughts: dict[int, ReasoningReader | MessageReader | None] = field(default_factory=dict)

    @property
    def object_name(self) -> str:  # type: ignore[override]
        """Of an answer, or of its chunks."""
        return "chat.completion.chunk" if self.fields.stream else "chat.completion"

    def begin(self, prompt: Prompt) -> None:
        """Set the prompt, which shows whether answers begin with reasoning; a form begins behind that."""
        assert isinstance(prompt, dict)
        self.prompt = prompt.get("prompt", "")
        marks, form = self.style.marks, self.params.structured_outputs
        if marks is None or form is None:
            return
        assert isinstance(form, StructuredOutputsParams)
        if form.prefix_grammar is None:
            tokenizer = self.context.engine.codec.tokenizer
            before = reasoning_grammar(marks, self.prompt, tokenizer, headed=self.form.headed)
            self.params = replace(self.params, structured_outputs=replace(form, prefix_grammar=before))

    @property
    def reasoning_tokens(self) -> int:
        """Of all choices so far."""
        return sum(one.tokens for one in self.thoughts.values() if one is not None)

    def events(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """Yield a chunk for each choice that has grown."""
        for index, news, first in self._news(output):
            reasoning, pieces = self._read(index, news)
            head: dict[str, Any] = {"role": "assistant"} if first else {}
            if reasoning:
                head["reasoning_content"] = reasoning
            elif first and not pieces:
                head["content"] = ""
            *before, delta = _deltas(head, pieces)
            for earlier in before:
                bare = {"index": index, "logprobs": None, "finish_reason": None, "stop_reason": None}
                yield {**self.head, "choices": [{**bare, "delta": earlier}]}
            # Text that is held back makes no event; what comes beside it does.
            if delta or news.finish or news.logprobs or (news.tokens and self.fields.return_token_ids):
                choice = self._choice(index, output, news, first=first)
                ids = self._prompt_ids(output) if first else {}
                yield {**self.head, **ids, "choices": [{**choice, "delta": delta}]}

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """Return all choices."""
        (output,) = outputs
        choices = []
        for index, news, _ in self._news(output):
            reasoning, pieces = self._read(index, news)
            text = "".join(piece for piece in pieces if isinstance(piece, str))
            calls = [piece for piece in pieces if not isinstance(piece, str)]
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if reasoning:
                message["reasoning_content"] = reasoning
            if calls:
                message["content"] = text or None
                message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in calls]
            choices.append({**self._choice(index, output, news, first=True), "message": message})
        body = {**self.head, **self._prompt_ids(output), "choices": choices}
        if output.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        return body

    def named(self, error: ApiError) -> ApiError:
        """Return an error of the engine in the words of the request."""
        if error.param == "prompt":
            error.param = "messages"
        return self.form.named(error)

    def _news(self, output: RequestOutput) -> Iterator[tuple[int, ChoiceDelta, bool]]:
        for one in output.outputs:
            first, choice = one.index not in self.choices, self.choice(one.index, output)
            if first:
                self.readers[one.index] = reader_of(self.tools, self.form.calls, alone=self.form.alone)
                marks, codec = self.style.marks, self.context.engine.codec
                form = self.params.structured_outputs
                at_once = isinstance(form, StructuredOutputsParams) and form.prefix_grammar is None
                free = self.tools.mode == "auto" and form is None
                calls = (self.tools, self.form.calls) if free else None
                self.thoughts[one.index] = (
                    None if marks is None or at_once else thoughts_reader(marks, self.prompt, codec.tokenizer, calls)
                )
            if not choice.finished and ((news := choice.update(one)) or first):
                yield one.index, news, first

    def _read(self, index: int, news: ChoiceDelta) -> tuple[str, list[Piece]]:
        """Return what is new of the reasoning, and of the text and the calls."""
        reader, thoughts, finished = self.readers[index], self.thoughts[index], news.finish is not None
        reasoning, text = "", news.text
        if thoughts is not None:
            reasoning, text = thoughts.feed(text, finished, news.tokens)
            reasoning = reasoning if self.fields.include_reasoning else ""
            if not text and not finished:  # a call that must be made begins behind the reasoning
                return reasoning, []
        if reader is None:
            return reasoning, [text] if text else []
        return reasoning, reader.feed(text, finished)

    def _unseen(self, news: ChoiceDelta) -> bool:
        """Whether the last token ended the answer and is no part of it; entries beside ids are one for each id."""
        ended = news.finish == "stop" and not isinstance(news.stop, str)
        return ended and not self.params.include_stop_str_in_output and not self.fields.return_token_ids

    def _prompt_ids(self, output: RequestOutput) -> dict[str, Any]:
        """Return the prompt's token ids where vLLM's clients read them."""
        return {"prompt_token_ids": output.prompt_token_ids} if self.fields.return_token_ids else {}

    def _choice(self, index: int, output: RequestOutput, news: ChoiceDelta, *, first: bool) -> dict[str, Any]:
        reader = self.readers[index]
        finish = news.finish
        if finish == "stop" and reader is not None and reader.called and self.tools.mode != "named":
            finish = "tool_calls"
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": finish, "stop_reason": news.stop}
        if self.params.logprobs is not None:
            shown = len(news.tokens) - self._unseen(news)
            choice["logprobs"] = chat_logprobs(
                self.context.engine.codec,
                news.tokens[:shown],
                news.logprobs[:shown],
                self.params.logprobs,
                as_ids=self.fields.return_tokens_as_token_ids,
            )
        if news.sources is not None:
            choice["sources"] = news.sources
        if self.fields.return_token_ids:
            choice["token_ids"] = news.tokens
            if first:
                choice["prompt_token_ids"] = output.prompt_token_ids
        return choice


def _deltas(head: dict[str, Any], pieces: list[Piece]) -> list[dict[str, Any]]:
    """Return pieces as chunks have them: one, or more where text comes behind calls."""
    deltas = [head]
    for piece in pieces:
        if not isinstance(piece, str):
            deltas[-1].setdefault("tool_calls", []).append(piece)
        elif "tool_calls" in deltas[-1]:
            deltas.append({"content": piece})
        else:
            deltas[-1]["content"] = piece
    return deltas
