"""Reading bodies that may bring a template to run or schemas to compile, which takes longer than decoding them."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from parlay.server.body import read_json
from parlay.server.context import Context
from parlay.server.fair_queue import LONG
from parlay.server.openai.response_format import needs_compiling

T = TypeVar("T")


async def read_body(context: Context, read: Callable[[Context, dict[str, Any]], T], *, completes: bool = True) -> T:
    """Return what `read` makes of a body: where it was decoded, or elsewhere if that takes a while.

    Raises:
        ApiError, RequestError: something in it cannot be served.
    """

    def at_once(body: dict[str, Any]) -> dict[str, Any] | T:
        return body if _brings(context, body) or needs_compiling(body) else read(context, body)

    found = await read_json(context, at_once, completes=completes)
    if not isinstance(found, dict):
        return found
    work = partial(read, context, found)
    if _brings(context, found):
        return await context.run_template(found["chat_template"], 0, work)
    return await context.run(LONG, work)


def _brings(context: Context, body: dict[str, Any]) -> bool:
    """Whether a body brings a chat template, which is run to see what it does."""
    return isinstance(body.get("chat_template"), str) and context.config.trust_request_chat_template
