"""A request's body: read within bounds, and decoded to plain values."""

import gc
from codecs import BOM_UTF8
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect

from parlay.errors import shown
from parlay.server.context import Context
from parlay.server.errors import ApiError, ClientLeftError

T = TypeVar("T")


async def read_json(context: Context, make: Callable[[dict[str, Any]], T], *, completes: bool = True) -> T:
    """Return what `make` makes of the object that the body is; without the fields that are null, which OpenAI's
    clients send.

    Args:
        context: the request's context.
        make: makes the result; its time is proportional to the body's length.
        completes: admit the request as one that asks for completions, before its body is decoded.

    Raises:
        ApiError: it is no JSON, no object, or nested too deeply; or there is no room for the request.
        ClientLeftError: the client disconnected before it was complete.
        Exception: anything that `make` raises.
    """
    request, max_depth = context.request, context.config.max_json_depth
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):  # a form could be sent by any web page
        raise ApiError(415, "the body must be JSON; send it with the header Content-Type: application/json")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", ""):
        message = f"bodies are read as they are; send it without Content-Encoding: {shown(coding)}"
        raise ApiError(415, message, headers={"Accept-Encoding": "identity"})
    try:
        body = b"".join([chunk async for chunk in request.stream()])  # not kept by the request
    except ClientDisconnect:
        raise ClientLeftError from None
    if completes:
        context.state.admitted = context.state.resources.enter_context(
            context.admission.admit(context.state.client.name)
        )
    return await context.run(len(body), lambda: make(_decode(body, max_depth)))


def _decode(body: bytes, max_depth: int) -> dict[str, Any]:
    gc.disable()  # of a million new lists none is garbage, and looking for it would take ten times as long
    try:
        value = msgspec.json.decode(body.removeprefix(BOM_UTF8))
    except RecursionError:
        raise _too_deep(max_depth) from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    finally:
        gc.enable()
    if not isinstance(value, dict):
        raise ApiError(400, f"the body must be a JSON object, not {type(value).__name__}")
    if body.count(b"[") + body.count(b"{") > max_depth:
        check_depth(value, max_depth)
    return {name: inner for name, inner in value.items() if inner is not None}


def check_depth(value: Any, most: int) -> None:
    """Refuse what is nested too deeply; without recursion, which is what the limit protects.

    Raises:
        ApiError: it is.
    """
    level = [value]
    for _ in range(most + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _too_deep(most)


def _too_deep(most: int) -> ApiError:
    return ApiError(400, f"the body is nested more than {most} deep; send a flatter one")
