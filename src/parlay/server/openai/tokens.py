"""`/tokenize` and `/detokenize`: text to token ids and back."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.responses import Response

from parlay.errors import RequestError, shown
from parlay.server.body import read_json
from parlay.server.errors import json_response
from parlay.server.front import Front
from parlay.server.openai.answer import warned
from parlay.server.openai.fields import DetokenizeFields, TokenizeFields, check_model, parse
from parlay.server.openai.prompts import chat_prompt
from parlay.text.chat import ChatOptions
from parlay.text.tokenizer import TextCodec


async def tokenize(front: Front) -> Response:
    """Return the token ids of a text or a conversation.

    Raises:
        ApiError, RequestError: something in the body cannot be served.
    """
    read = partial(parse, TokenizeFields, strict=front.config.strict_fields)
    asked, _, warnings = await read_json(front, read, completes=False)
    check_model(asked.model, front.engine.model_names)
    codec = front.engine.codec
    if asked.messages is not None:
        options = ChatOptions(add_generation_prompt=asked.add_generation_prompt)
        prompt = await chat_prompt(front, asked.messages, options)
        assert isinstance(prompt, dict)
        text = prompt["prompt"]
    else:
        text = asked.prompt
    special = asked.add_special_tokens if asked.add_special_tokens is not None else asked.messages is None

    def answer() -> Response:
        tokens = codec.encode(text, add_special_tokens=special)
        body: dict[str, Any] = {"count": len(tokens), "max_model_len": front.engine.max_model_len, "tokens": tokens}
        if asked.return_token_strs:
            body["token_strs"] = [codec.token_text(token) for token in tokens]
        return json_response(warned(body, warnings))

    return await front.run(len(text), answer)


async def detokenize(front: Front) -> Response:
    """Return the text of token ids.

    Raises:
        ApiError, RequestError: something in the body cannot be served.
    """
    read = partial(parse, DetokenizeFields, strict=front.config.strict_fields)
    asked, _, warnings = await read_json(front, read, completes=False)
    check_model(asked.model, front.engine.model_names)
    return await front.run(len(asked.tokens), lambda: _text(asked.tokens, front.engine.codec, warnings))


def _text(tokens: Sequence[int], codec: TextCodec, warnings: tuple[str, ...]) -> Response:
    size = codec.tokenizer.get_vocab_size()
    wrong = next((token for token in tokens if not 0 <= token < size), None)
    if wrong is not None:
        raise RequestError(f"tokens holds {shown(wrong)}, which is no id between 0 and {size - 1}", param="tokens")
    return json_response(warned({"prompt": codec.decode(tokens, skip_special_tokens=False)}, warnings))
