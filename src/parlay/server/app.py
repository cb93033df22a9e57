"""The application: its routes."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp

from parlay import __version__
from parlay.config import ServerConfig
from parlay.config.origins import pattern
from parlay.errors import ParlayError
from parlay.link.engine import AsyncEngine
from parlay.server.errors import ApiError, ClientLeftError, json_response
from parlay.server.failures import as_api_error
from parlay.server.framing import Framing
from parlay.server.front import Front
from parlay.server.gate import Gate
from parlay.server.guard import OPEN, Guard
from parlay.server.keys import Keys
from parlay.server.logs import Log, log_line
from parlay.server.openai import documents, documents_answers
from parlay.server.openai.chat import chat
from parlay.server.openai.completions import complete
from parlay.server.openai.fields import ChatFields, CompletionFields, DetokenizeFields, TokenizeFields, check_model
from parlay.server.openai.reference import reference
from parlay.server.openai.responses import delete, respond, retrieve
from parlay.server.openai.responses_fields import ResponseFields
from parlay.server.openai.responses_store import ResponseStore
from parlay.server.openai.tokens import detokenize, tokenize
from parlay.server.page import content_security_policy
from parlay.server.remote.backend import Metrics


def create_app(
    engine: AsyncEngine,
    config: ServerConfig | None = None,
    *,
    keys: Keys | None = None,
    gate: Gate | None = None,
    methods: Sequence[str] = (),
    metrics: Metrics | None = None,
    page: tuple[str, str] | None = None,
    log: Log = log_line,
) -> ASGIApp:
    """Return the application, to be run by any ASGI server.

    Args:
        engine: computes; the caller starts and closes it.
        config: options; those about sockets and keys are the caller's to apply.
        keys: the accepted API keys; None accepts every client.
        gate: limits open requests; the caller closes it before the end.
        methods: speculative methods that the engine has loaded.
        metrics: the counters; None serves no `/metrics`.
        page: HTML of `/`, and the `Content-Security-Policy` under which browsers show it.
        log: called with the facts about a request that has ended.
    """
    config = config or ServerConfig()
    front = Front(engine, config, gate or Gate(config.max_open, config.max_open_per_key), tuple(methods), metrics)
    app = FastAPI(
        title="parlay",
        version=__version__,
        docs_url=None,  # those pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    # All exceptions: those that are not handled here would be answered in other formats.
    kinds: tuple[type[Exception], ...] = (Exception, HTTPException, ParlayError, ApiError, ClientLeftError)
    for kind in kinds:
        app.add_exception_handler(kind, _told)
    _add_completions(app, front)
    _add_facts(app, front)
    if metrics is not None:
        _add_metrics(app, metrics)
    if page is not None:
        _add_page(app, *page)
    _describe(app, engine.model_name, OPEN if keys else None, strict=config.strict_fields)
    _add_reference(app)
    inner: ASGIApp = app
    guarded: ASGIApp = Guard(inner, config, keys if keys is not None else Keys(()), metrics, log)
    if config.allowed_origins:
        guarded = CORSMiddleware(
            guarded,
            allow_origins=["*"] if "*" in config.allowed_origins else [],
            allow_origin_regex=pattern(config.allowed_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # OpenAI's own client sends a dozen
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    return Framing(guarded)


async def _told(request: Request, error: Exception) -> Response:
    told = as_api_error(error)
    if told.status == 405:  # a path may have a route for each of its methods
        routes = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
        told.headers["Allow"] = ", ".join(sorted({method for route in routes for method in route.methods}))
    request.scope["state"]["account"].facts["error"] = str(told)
    return told.response()


def _add_completions(app: FastAPI, front: Front) -> None:
    @app.post("/v1/completions", summary="Complete prompts", openapi_extra=documents.body_of(CompletionFields))
    async def completions(request: Request) -> Response:
        return await complete(front.of(request))

    @app.post("/v1/chat/completions", summary="Answer a conversation", openapi_extra=documents.body_of(ChatFields))
    async def chat_completions(request: Request) -> Response:
        return await chat(front.of(request))

    _add_responses(app, front)

    @app.post("/tokenize", summary="Text to token ids", openapi_extra=documents.body_of(TokenizeFields))
    async def to_tokens(request: Request) -> Response:
        return await tokenize(front.of(request))

    @app.post("/detokenize", summary="Token ids to text", openapi_extra=documents.body_of(DetokenizeFields))
    async def to_text(request: Request) -> Response:
        return await detokenize(front.of(request))


def _add_responses(app: FastAPI, front: Front) -> None:
    store = ResponseStore(front.config.response_store)
    stored = documents.fact_of(
        "Response", streamed=True, e400="a parameter is malformed", e404="no such response of this key"
    )
    deleted = documents.fact_of("Deleted", e404="no such response of this key")

    @app.post(
        "/v1/responses", summary="Answer, and go on from there", openapi_extra=documents.body_of(ResponseFields)
    )
    async def responses(request: Request) -> Response:
        return await respond(front.of(request), store)

    @app.get("/v1/responses/{name}", summary="A stored response", openapi_extra=stored)
    async def response(name: str, request: Request) -> Response:
        return await retrieve(front.of(request), store, name)

    @app.delete("/v1/responses/{name}", summary="Forget a stored response", openapi_extra=deleted)
    async def forget(name: str, request: Request) -> Response:
        return await delete(store, request, name)


def _add_facts(app: FastAPI, front: Front) -> None:
    began = front.now()

    def model(name: str) -> dict[str, Any]:
        engine = front.engine
        return {
            "id": name,
            "object": "model",
            "created": began,
            "owned_by": "parlay",
            "max_model_len": engine.max_model_len,
            "parlay": {
                "numerics_id": engine.numerics_id,
                "methods": front.methods,
                "max_model_len": engine.max_model_len,
                "prefers_chat": engine.codec.prefers_chat,
                "sampling": engine.sampling_defaults,
            },
        }

    @app.get(
        "/v1/models",
        summary="The model that is served, by each of its names",
        openapi_extra=documents.fact_of("Models"),
    )
    async def models() -> Response:
        return json_response({"object": "list", "data": [model(name) for name in front.engine.model_names]})

    # Names on the hub have slashes.
    @app.get(
        "/v1/models/{name:path}", summary="One model", openapi_extra=documents.fact_of("Model", e404="no such model")
    )
    async def one_model(name: str) -> Response:
        check_model(name, front.engine.model_names)
        return json_response(model(name))

    @app.get(
        "/health", summary="Whether the server lives", openapi_extra=documents.fact_of("Status", e503="it does not")
    )
    async def health() -> Response:
        state = front.engine.state
        if state not in ("ready", "starting"):
            raise ApiError(503, f"the engine is {state}")
        return json_response({"status": "ok", "engine": state})

    @app.get(
        "/ready", summary="Whether requests are taken", openapi_extra=documents.fact_of("Status", e503="not now")
    )
    async def ready() -> Response:
        if front.gate.closing:
            raise ApiError(503, "the server is shutting down; ask another one")
        front.check_ready()
        return json_response({"status": "ready"})

    @app.get("/version", summary="What computes", openapi_extra=documents.fact_of("Version"))
    async def version() -> Response:
        return json_response({"version": __version__, "numerics_id": front.engine.numerics_id})


def _add_metrics(app: FastAPI, metrics: Metrics) -> None:
    extra = {"responses": documents.refusals({"401": "no key"})}

    @app.get("/metrics", summary="Counters for Prometheus", response_class=PlainTextResponse, openapi_extra=extra)
    async def scrape() -> Response:
        content, kind = metrics.expose()
        return Response(content, media_type=kind)


def _add_page(app: FastAPI, html: str, policy: str) -> None:
    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}
        return Response(html, media_type="text/html", headers=headers)


def _add_reference(app: FastAPI) -> None:
    @cache
    def made() -> tuple[str, dict[str, str]]:
        html = reference(app.openapi())
        return html, {"Content-Security-Policy": content_security_policy(html), "Cache-Control": "no-cache"}

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        html, headers = made()
        return Response(html, media_type="text/html", headers=headers)


def _describe(app: FastAPI, model: str, open_paths: frozenset[str] | None, *, strict: bool) -> None:
    """Add to the document that FastAPI makes what it cannot know."""
    make = app.openapi

    def document() -> dict[str, Any]:
        made = make()
        documents_answers.complete(made, model, open_paths=open_paths)
        made["components"]["schemas"].update(documents.schemas(strict=strict))
        return made

    app.openapi = document  # type: ignore[method-assign]
