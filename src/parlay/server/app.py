"""The application: its routes."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from parlay import __version__
from parlay.config import ServerConfig
from parlay.config.web_origins import pattern
from parlay.errors import ParlayError
from parlay.link.engine import AsyncEngine
from parlay.server.admission import Admission
from parlay.server.anthropic.fields import MessagesFields
from parlay.server.anthropic.messages import count_tokens, messages
from parlay.server.context import Context
from parlay.server.errors import ApiError, ClientLeftError, as_api_error, json_response
from parlay.server.keys import Keys
from parlay.server.logs import Log, log_line
from parlay.server.metrics import PrometheusMetrics
from parlay.server.middleware import OPEN, AccessLayer, HeadLayer
from parlay.server.openai.chat import chat_completions
from parlay.server.openai.completions import completions
from parlay.server.openai.fields import ChatFields, CompletionFields, DetokenizeFields, TokenizeFields, check_model
from parlay.server.openai.responses import count_input, forget, response, responses
from parlay.server.openai.responses_fields import ResponseFields
from parlay.server.openai.responses_store import ResponseStore
from parlay.server.openai.tokens import to_text, to_tokens
from parlay.server.openapi import Endpoint, Handler, document
from parlay.server.page import content_security_policy
from parlay.server.reference import reference


def create_app(
    engine: AsyncEngine,
    config: ServerConfig | None = None,
    *,
    keys: Keys | None = None,
    admission: Admission | None = None,
    methods: Sequence[str] = (),
    metrics: PrometheusMetrics | None = None,
    page: tuple[str, str] | None = None,
    log: Log = log_line,
) -> ASGIApp:
    """Return the application, to be run by any ASGI server.

    Args:
        engine: computes; the caller starts and closes it.
        config: options; those about sockets and keys are the caller's to apply.
        keys: the accepted API keys; None accepts every client.
        admission: limits open requests; the caller closes it before the end.
        methods: speculative methods that the engine has loaded.
        metrics: the counters; None serves no `/metrics`.
        page: HTML of `/`, and the `Content-Security-Policy` under which browsers show it.
        log: called with the facts about a request that has ended.
    """
    config = config or ServerConfig()
    admission = admission or Admission(config.max_open, config.max_open_per_key)
    store = ResponseStore(config.response_store)
    context = Context(engine, config, admission, store, tuple(methods), metrics)
    endpoints = [one for one in ENDPOINTS if one.path != "/metrics" or metrics is not None]
    routes = [Route(one.path, _with_parts(one.handler, context), methods=[one.method]) for one in endpoints]
    routes += _documents(endpoints, engine.model_name, OPEN if keys else None, strict=config.strict_fields)
    if page is not None:
        routes.append(Route("/", _page(*page)))
    # All exceptions: those that are not handled here would be answered in other formats.
    kinds: tuple[type[Exception], ...] = (Exception, HTTPException, ParlayError, ApiError, ClientLeftError)
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, _error))
    app.router.redirect_slashes = False
    layered: ASGIApp = AccessLayer(app, config, keys if keys is not None else Keys(()), metrics, log)
    if config.allowed_origins:
        layered = CORSMiddleware(
            layered,
            allow_origins=["*"] if "*" in config.allowed_origins else [],
            allow_origin_regex=pattern(config.allowed_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # OpenAI's own client sends a dozen
            expose_headers=["X-Request-Id", "Request-Id", "Retry-After"],
        )
    return HeadLayer(layered)


async def _error(request: Request, error: Exception) -> Response:
    answer = as_api_error(error)
    if answer.status == 405:  # a path may have a route for each of its methods
        routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
        exact = [route for route in routes if route.path == request.url.path]  # rather than those with a name in it
        answer.headers["Allow"] = ", ".join(
            sorted({method for route in exact or routes for method in route.methods} - {"HEAD"})
        )
    request.scope["state"]["request"].facts["error"] = str(answer)
    return answer.response()


async def models(context: Context) -> Response:
    """Return the model under each of its names."""
    names = context.engine.model_names
    return json_response({"object": "list", "data": [_described(context, name) for name in names]})


async def one_model(context: Context) -> Response:
    """Return the model under one of its names.

    Raises:
        ApiError: it has another.
    """
    name = context.request.path_params["name"]
    if not name:  # which counts as left out in a body
        raise ApiError(404, "there is no model without a name; GET /v1/models lists those there are")
    check_model(name, context.engine.model_names)
    return json_response(_described(context, name))


def _described(context: Context, name: str) -> dict[str, Any]:
    engine = context.engine
    return {
        "id": name,
        "object": "model",
        "type": "model",  # as Anthropic's and Mistral's clients read it
        "display_name": name,
        "created": context.began,
        "created_at": datetime.fromtimestamp(context.began, UTC).isoformat(),
        "owned_by": "parlay",
        "max_model_len": engine.max_model_len,
        "parlay": {
            "numerics_id": engine.numerics_id,
            "methods": context.methods,
            "max_model_len": engine.max_model_len,
            "prefers_chat": engine.codec.prefers_chat,
            "sampling": engine.sampling_defaults,
        },
    }


async def health(context: Context) -> Response:
    """Report liveness.

    Raises:
        ApiError: the engine is not running.
    """
    state = context.engine.state
    if state not in ("ready", "starting"):
        raise ApiError(503, f"the engine is {state}")
    return json_response({"status": "ok", "engine": state})


async def ready(context: Context) -> Response:
    """Report readiness.

    Raises:
        ApiError: requests are not accepted.
    """
    if context.admission.closing:
        raise ApiError(503, "the server is shutting down; retry with another server")
    context.check_ready()
    return json_response({"status": "ready"})


async def version(context: Context) -> Response:
    """Return the version and the numerics id."""
    return json_response({"version": __version__, "numerics_id": context.engine.numerics_id})


async def scrape(context: Context) -> Response:
    """Return the counters."""
    assert context.metrics is not None
    content, kind = context.metrics.expose()
    return Response(content, media_type=kind)


_CHAT = "/v1/chat/completions"
_STORED = "/v1/responses/{name}"
_INPUT = "/v1/responses/input_tokens"
_COUNTED = "/v1/messages/count_tokens"
_GONE = {"404": "no such response of this key"}
_REPLAY = {"400": "a parameter is malformed", **_GONE}
ENDPOINTS = (
    Endpoint("/v1/completions", completions, "Text completion", "POST", CompletionFields, "Completion", streams=True),
    Endpoint(_CHAT, chat_completions, "Chat completion", "POST", ChatFields, "ChatCompletion", streams=True),
    Endpoint("/v1/responses", responses, "Create a response", "POST", ResponseFields, "Response", streams=True),
    Endpoint(_INPUT, count_input, "Count the tokens of an input", "POST", ResponseFields, "InputTokens"),
    Endpoint(_STORED, response, "Get a stored response", answer="Response", errors=_REPLAY, streams=True),
    Endpoint(_STORED, forget, "Delete a stored response", "DELETE", answer="Deleted", errors=_GONE),
    Endpoint("/v1/messages", messages, "Anthropic's Messages", "POST", MessagesFields, "Message", streams=True),
    Endpoint(_COUNTED, count_tokens, "Tokens of a message's prompt", "POST", MessagesFields, "InputTokens"),
    Endpoint("/tokenize", to_tokens, "Tokenize text", "POST", TokenizeFields, "Tokens"),
    Endpoint("/detokenize", to_text, "Detokenize token ids", "POST", DetokenizeFields, "Text"),
    Endpoint("/v1/models", models, "List the served model's names", answer="Models"),
    # Names on the hub have slashes.
    Endpoint("/v1/models/{name:path}", one_model, "Get the model", answer="Model", errors={"404": "no such model"}),
    Endpoint("/health", health, "Liveness", answer="Status", errors={"503": "the engine is not running"}),
    Endpoint("/ready", ready, "Readiness", answer="Status", errors={"503": "not ready"}),
    Endpoint("/version", version, "Version and numerics id", answer="Version"),
    Endpoint("/metrics", scrape, "Prometheus metrics"),
)


def _documents(
    endpoints: Sequence[Endpoint], model: str, open_paths: frozenset[str] | None, *, strict: bool
) -> list[Route]:
    """Return the routes of the OpenAPI document, for programs and for people."""
    made = cache(lambda: document(endpoints, model, open_paths, strict=strict))
    html = cache(lambda: reference(made()))

    async def openapi(request: Request) -> Response:
        return json_response(made())

    async def docs(request: Request) -> Response:
        return await _page(html(), content_security_policy(html()))(request)

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


def _with_parts(handler: Handler, context: Context) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        return await handler(context.of(request))

    return handle


def _page(html: str, policy: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}
        return Response(html, media_type="text/html", headers=headers)

    return page
