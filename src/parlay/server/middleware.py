"""The layers before the application.

The first refuses requests whose head a proxy may read otherwise, or is too long. The second names and logs requests,
checks keys, and bounds bodies in size and time. Pure ASGI: nothing is buffered and no tasks are started.
"""

import asyncio
import re
import time
from collections import defaultdict
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parlay.config import ServerConfig
from parlay.server.admission import BodyBudget
from parlay.server.browsers import check_page
from parlay.server.context import RequestState
from parlay.server.errors import ApiError, ClientLeftError, as_api_error
from parlay.server.keys import Keys
from parlay.server.logs import Log, log_line
from parlay.server.metrics import PrometheusMetrics

OPEN = frozenset({"/", "/docs", "/health", "/ready"})  # without a key
_BODIES, _LEAST_BODIES = 16, 64 << 20  # the limit of all bodies together: times that of one, and at least, bytes
_LARGE = 64 << 10  # bytes: a body of more is read only while few such ones of its key are held
_AT_ONCE, _AT_ONCE_OPEN = 4, 16  # of those; and where no keys tell clients apart
_DRAINED = 32  # times the limit: a client that is still sending would not read why its body is refused


class AccessLayer:
    """Names and logs requests, checks keys, and bounds bodies in size and time."""

    def __init__(
        self,
        app: ASGIApp,
        config: ServerConfig,
        keys: Keys,
        metrics: PrometheusMetrics | None = None,
        log: Log = log_line,
    ) -> None:
        """Wrap `app`; `log` is called with every request when it has ended."""
        self._app = app
        self._log = log
        self._config = config
        self._keys = keys
        self._metrics = metrics
        count = _AT_ONCE if keys else _AT_ONCE_OPEN
        self._large: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(count))
        self._budget = BodyBudget(max(_BODIES * config.max_body_bytes, _LEAST_BODIES))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        state = RequestState()
        state.request_id = _request_id(headers.get(b"x-request-id"))
        scope.setdefault("state", {})["request"] = state

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                state.status, state.began = message["status"], True
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", state.request_id.encode("latin-1")),
                    (b"request-id", state.request_id.encode("latin-1")),  # Anthropic's clients
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        # HTTP's HEAD is a GET without a body; the code that sends the answer leaves it out.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            if not self._keys:
                check_page(scope["method"], headers, self._config)
            self._identify(scope["path"], headers, state)
            limits = self._budget, self._large[state.client.name]
            await self._app(inner, _BodyReceiver(receive, headers, self._config, *limits, state), send_named)
        except Exception as error:
            if not state.began:
                answer = as_api_error(error)
                state.facts["error"] = str(answer)
                await answer.response()(scope, receive, send_named)
        finally:
            state.resources.close()
            self._close(scope, state)

    def _identify(self, path: str, headers: dict[bytes, str], state: RequestState) -> None:
        client = self._keys.client(headers.get(b"authorization"))
        own = headers.get(b"x-api-key")
        if client is None and own is not None:  # where Anthropic's clients send it, perhaps beside a proxy's password
            client = self._keys.client(f"Bearer {own}")
        if client is not None:
            state.client = client
        elif path not in OPEN:
            raise ApiError(
                401, "the API key is missing or unknown; send Authorization: Bearer KEY, or X-Api-Key: KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip

    def _close(self, scope: Scope, state: RequestState) -> None:
        seconds = time.perf_counter() - state.arrival
        path = scope["path"]
        if self._metrics is not None:
            self._metrics.observe_end(
                path, state.status, state.newest, requested=state.requested, failed=state.failed
            )
        if path in OPEN and state.status < 400:
            return  # probes come every second
        self._log(
            {
                "time": round(time.time(), 3),
                "request_id": state.request_id,
                "key": state.client.name,
                "method": scope["method"],
                "path": path,
                "status": state.status,
                "seconds": round(seconds, 4),
                **state.facts,
            }
        )


class _BodyReceiver:
    """A request's `receive` that counts bytes and watches the clock until the body is complete."""

    def __init__(
        self, receive: Receive, headers: dict[bytes, str], config: ServerConfig, budget: BodyBudget,
        large: asyncio.Semaphore, state: RequestState,
    ) -> None:  # fmt: skip
        self._receive = receive
        self._budget, self._key = budget, state.client.name
        self._large, self._has_turn, self._account = large, False, state
        self._kept = 0
        state.body.callback(lambda: budget.release(self._key, self._kept))
        self._most = config.max_body_bytes
        self._seconds = config.body_timeout
        self._deadline: float | None = None
        self._count = 0
        self._complete = False
        declared = headers.get(b"content-length", "")
        length = int(declared[:20]) if declared.isdecimal() else 0
        self._too_large, self._is_large = length > self._most, length > _LARGE
        self._asks_first = b"expect" in headers

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        if self._too_large and self._asks_first:
            raise self._refusal()
        message = await self._next()
        if self._too_large or self._count > self._most:
            await self._drain(message)
            raise self._refusal()
        try:
            count = len(message.get("body", b""))
            self._budget.acquire(self._key, count)
            self._kept += count
        except ApiError:
            await self._drain(message)
            raise
        return message

    async def _await_turn(self) -> None:
        """Wait while the key has several large bodies here; until then nothing more is taken of this one.

        Otherwise hundreds would fill the memory, and each turn of the loop, which takes a piece of every one.
        """
        now = asyncio.get_running_loop().time
        began = now()
        await self._large.acquire()
        self._account.body.callback(self._large.release)
        self._has_turn = True
        if self._deadline is not None:
            self._deadline += now() - began

    async def _next(self) -> Message:
        if (self._is_large or self._count > _LARGE) and not self._has_turn:
            await self._await_turn()
        now = asyncio.get_running_loop().time()
        self._deadline = self._deadline or now + self._seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                408, f"the body did not arrive within {self._seconds:g} s; send it faster",
                headers={"Connection": "close"},
            ) from None  # fmt: skip
        self._count += len(message.get("body", b""))
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def _drain(self, message: Message) -> None:
        while not self._complete and self._count < _DRAINED * self._most:
            message = await self._next()
        if message["type"] == "http.disconnect":
            raise ClientLeftError

    def _refusal(self) -> ApiError:
        return ApiError(
            413, f"the body is larger than {self._most} bytes; send less",
            headers={"Connection": "close"},
        )  # fmt: skip


def _request_id(given: str | None) -> str:
    """Return the client's own id if it is valid in a log and a header, or a new one."""
    return given if given is not None and re.fullmatch(r"[\w.:/+=-]{1,128}", given, re.ASCII) else uuid4().hex


_MOST_HEAD = 64 << 10  # bytes; h11 notices longer ones by 16 KiB later
_LINE = len("  HTTP/1.1\r\n\r\n")


class HeadLayer:
    """Refuses requests whose head is ambiguous or too long."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it and close its connection."""
        error = _head_error(scope) if scope["type"] == "http" else ""
        if error:
            await ApiError(400, error, headers={"Connection": "close"}).response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _head_error(scope: Scope) -> str:
    names = {name for name, _ in scope["headers"]}
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            return "a request has Content-Length or Transfer-Encoding, not both; leave one out"
        if scope.get("http_version") == "1.0":
            return "HTTP/1.0 has no Transfer-Encoding; use Content-Length or HTTP/1.1"
    query = scope["query_string"]
    target = len(scope.get("raw_path", b"")) + len(query) + bool(query)
    head = _LINE + len(scope["method"]) + target + sum(len(n) + len(v) + 4 for n, v in scope["headers"])
    return f"the request's head has more than {_MOST_HEAD} bytes; send less" if head > _MOST_HEAD else ""
