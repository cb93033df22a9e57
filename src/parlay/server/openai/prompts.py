"""From a body's prompts to token ids."""

from typing import Any

from parlay.config import ServerConfig
from parlay.errors import ContextLengthError, RequestError, about
from parlay.server.context import Context
from parlay.server.errors import ApiError
from parlay.server.openai.fields import CommonFields
from parlay.text.chat import ChatOptions, pieces
from parlay.text.tokenizer import TextCodec
from parlay.types.prompt import Prompt


def completion_prompts(
    value: Any, codec: TextCodec, config: ServerConfig, max_model_len: int, *, add_special_tokens: bool = True
) -> list[Prompt]:
    """Return the prompts of `/v1/completions`: one text, one list of token ids, or a list of either.

    Many short ones take as long as a long one, so this is done where the body is read.

    Raises:
        ApiError: it is something else, or there are too many.
        RequestError: one is too long, or no text.
    """
    many = [value] if isinstance(value, str) or _ids(value) is not None else value
    if not isinstance(many, list) or not many:
        raise ApiError(400, "prompt must be text, a list of token ids, or a list of those", param="prompt")
    if len(many) > config.max_prompts:
        raise ApiError(
            400, f"prompt has {len(many)} entries, above this server's limit of {config.max_prompts}; split it",
            param="prompt",
        )  # fmt: skip
    prompts: list[Prompt] = []
    for one in many:
        if isinstance(one, str):
            with about("prompt"):
                check_text(one, codec.most_characters, max_model_len)
                tokens = codec.encode(one, add_special_tokens=add_special_tokens)
            prompts.append({"prompt": one, "prompt_token_ids": tokens})
        elif (ids := _ids(one)) is not None:
            tokens = ids
            prompts.append({"prompt_token_ids": tokens})
        else:
            raise ApiError(400, "prompt must hold texts or lists of token ids, none of them empty", param="prompt")
        check_prompt(len(tokens), config)
    return prompts


async def chat_prompt(context: Context, messages: list[dict[str, Any]], options: ChatOptions) -> Prompt:
    """Return the prompt that the chat template makes of a conversation.

    Raises:
        ApiError: the server is shutting down.
        RequestError: there is no template, or it refuses the messages; or the prompt is too long.
    """
    codec, config = context.engine.codec, context.config
    count = await context.run(len(messages), lambda: pieces(messages, options.tools))
    with about("messages"):
        check_pieces(count, context.engine.max_model_len)
        text = await context.run_template(options.chat_template, count, lambda: codec.chat(messages, options))
        check_text(text, codec.most_characters, context.engine.max_model_len)
        tokens = await context.run(len(text), lambda: codec.encode(text, add_special_tokens=False))
    check_prompt(len(tokens), config, "messages")
    return {"prompt": text, "prompt_token_ids": tokens}


def check_pieces(count: int, max_model_len: int) -> None:
    """Refuse a conversation of more messages, parts, calls and tools than the model takes tokens.

    Each is at least a token in a template that shows it, and templates take long over many.

    Raises:
        ContextLengthError: there are more.
    """
    if count > max_model_len:
        raise ContextLengthError(
            f"the conversation has {count} messages, parts and tools, but this model's maximum context length is "
            f"{max_model_len} tokens; shorten it"
        )


def check_text(text: str, most_characters: int, most_tokens: int) -> None:
    """Refuse a prompt that is too long however it is tokenised; a huge one would take memory for nothing.

    Args:
        text: the prompt.
        most_characters: characters of the longest token.
        most_tokens: tokens of the model's context.

    Raises:
        RequestError: it is too long.
    """
    if len(text) > most_characters * most_tokens:
        raise ContextLengthError(
            f"This model's maximum context length is {most_tokens} tokens, but the prompt has {len(text)} "
            "characters, more than fit into it; shorten it"
        )


def check_prompt(tokens: int, config: ServerConfig, param: str = "prompt") -> None:
    """Refuse a prompt that is longer than the server's own limit; the engine checks the model's.

    Raises:
        RequestError: it is.
    """
    most = config.max_prompt_tokens
    if most is not None and tokens > most:
        raise ContextLengthError(
            f"the prompt has {tokens} tokens, which exceeds the maximum number of tokens allowed: this server's "
            f"maximum prompt length is {most}; shorten it",
            param=param,
        )


def predicted(fields: CommonFields, codec: TextCodec, config: ServerConfig) -> list[int] | None:
    """Return the tokens of the prediction that a request has, if any.

    Raises:
        RequestError: it is longer than the server's own limit for prompts.
    """
    if fields.prediction is None:
        return None
    most = config.max_prompt_tokens
    with about("prediction"):
        tokens = codec.encode(fields.prediction.text, add_special_tokens=False)
        if most is not None and len(tokens) > most:
            raise RequestError(f"prediction has {len(tokens)} tokens; the limit is {most}; shorten it")
    return tokens


def _ids(value: Any) -> list[int] | None:
    """Return a list of token ids; None if it is none. JSON does not tell 1.0 from 1."""
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    if kinds == {int}:
        return list(value)
    if kinds and kinds <= {int, float} and all(float(token).is_integer() for token in value):
        return [int(token) for token in value]
    return None
