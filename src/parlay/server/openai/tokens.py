"""`/tokenize` and `/detokenize`: text to token ids and back."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.responses import Response

from parlay.errors import RequestError, shown
from parlay.server.body import read_json
from parlay.server.context import Context
from parlay.server.errors import json_response
from parlay.server.openai.answer import warned
from parlay.server.openai.chat import Read, read_beside, read_or_body
from parlay.server.openai.fields import DetokenizeFields, TokenizeFields, check_model, parse
from parlay.server.openai.prompts import chat_prompt
from parlay.text.tokenizer import TextCodec

# What chat completions make the prompt of.
_TEMPLATED = (
    "messages", "tools", "tool_choice", "add_generation_prompt", "continue_final_message", "chat_template",
    "chat_template_kwargs", "reasoning_effort", "verbosity",
)  # fmt: skip


async def tokenize(context: Context) -> Response:
    """Return the token ids of a text or a conversation.

    Raises:
        ApiError, RequestError: something in the body cannot be served.
    """

    def read(body: dict[str, Any]) -> tuple[TokenizeFields, dict[str, Any] | Read | None, tuple[str, ...]]:
        fields, _, warnings = parse(TokenizeFields, body, strict=context.config.strict_fields)
        check_model(fields.model, context.engine.model_names)
        wanted = {name: getattr(fields, name) for name in _TEMPLATED}
        chat = {name: value for name, value in wanted.items() if value is not None}
        return fields, None if fields.messages is None else read_or_body(context, chat), warnings

    fields, found, warnings = await read_json(context, read, completes=False)
    codec = context.engine.codec
    if found is not None:
        shape, messages, options = await read_beside(context, found)
        warnings = (*warnings, *shape.warnings)
        prompt = await chat_prompt(context, messages, options)
        assert isinstance(prompt, dict)
        text = prompt["prompt"]
    else:
        text = fields.prompt
    special = fields.add_special_tokens if fields.add_special_tokens is not None else fields.messages is None

    def answer() -> Response:
        tokens = codec.encode(text, add_special_tokens=special)
        body: dict[str, Any] = {"count": len(tokens), "max_model_len": context.engine.max_model_len, "tokens": tokens}
        if fields.return_token_strs:
            body["token_strs"] = [codec.token_text(token) for token in tokens]
        return json_response(warned(body, warnings))

    return await context.run(len(text), answer)


async def detokenize(context: Context) -> Response:
    """Return the text of token ids.

    Raises:
        ApiError, RequestError: something in the body cannot be served.
    """
    read = partial(parse, DetokenizeFields, strict=context.config.strict_fields)
    fields, _, warnings = await read_json(context, read, completes=False)
    check_model(fields.model, context.engine.model_names)
    return await context.run(len(fields.tokens), lambda: _text(fields.tokens, context.engine.codec, warnings))


def _text(tokens: Sequence[int], codec: TextCodec, warnings: tuple[str, ...]) -> Response:
    size = codec.tokenizer.get_vocab_size()
    wrong = next((token for token in tokens if not 0 <= token < size), None)
    if wrong is not None:
        raise RequestError(f"tokens holds {shown(wrong)}, which is no id between 0 and {size - 1}", param="tokens")
    return json_response(warned({"prompt": codec.decode(tokens, skip_special_tokens=False)}, warnings))
