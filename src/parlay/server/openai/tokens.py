"""`/tokenize` and `/detokenize`: text to token ids and back."""

from collections.abc import Sequence
from dataclasses import fields as dataclass_fields
from functools import partial
from typing import Any

from starlette.responses import Response

from parlay.errors import RequestError, shown
from parlay.server.body import read_json
from parlay.server.context import Context
from parlay.server.errors import json_response
from parlay.server.openai.answer import warned
from parlay.server.openai.bodies import read_body
from parlay.server.openai.chat import Read, read_chat
from parlay.server.openai.fields import DetokenizeFields, TemplatedFields, TokenizeFields, check_model, parse
from parlay.server.openai.prompts import chat_prompt
from parlay.text.tokenizer import TextCodec

_TEMPLATED = ("messages", *(f.name for f in dataclass_fields(TemplatedFields)))


async def to_tokens(context: Context) -> Response:
    """Return the token ids of a text or a conversation.

    Raises:
        ApiError, RequestError: something in the body cannot be served.
    """
    fields, found, warnings = await read_body(context, _read, completes=False)
    codec = context.engine.codec
    if found is not None:
        shape, messages, options = found
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


def _read(context: Context, body: dict[str, Any]) -> tuple[TokenizeFields, Read | None, tuple[str, ...]]:
    fields, _, warnings = parse(TokenizeFields, body, strict=context.config.strict_fields)
    check_model(fields.model, context.engine.model_names)
    if fields.messages is None:
        return fields, None, warnings
    chat = {name: value for name in _TEMPLATED if (value := getattr(fields, name)) is not None}
    return fields, read_chat(context, chat), warnings


async def to_text(context: Context) -> Response:
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
        raise RequestError(f"tokens has {shown(wrong)}, which is not an id between 0 and {size - 1}", param="tokens")
    return json_response(warned({"prompt": codec.decode(tokens, skip_special_tokens=False)}, warnings))
