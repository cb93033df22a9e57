"""The layer before the application: names and logs requests, checks keys, and bounds bodies in size and time.

Pure ASGI: nothing is buffered and no tasks are started.
"""

import asyncio
import re
import time
from collections import defaultdict
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parlay.config import ServerConfig
from parlay.server.account import Account
from parlay.server.browsers import check_page
from parlay.server.budget import Budget
from parlay.server.errors import ApiError, ClientLeftError
from parlay.server.failures import as_api_error
from parlay.server.keys import Keys
from parlay.server.logs import Log, log_line
from parlay.server.remote.backend import Metrics, Observation

OPEN = frozenset({"/", "/docs", "/health", "/ready"})  # without a key
_BODIES, _LEAST_BODIES = 16, 64 << 20  # the limit of all bodies together: times that of one, and at least, bytes
_LARGE = 64 << 10  # bytes: a body of more is read only while few such ones of its key are held
_AT_ONCE, _AT_ONCE_OPEN = 4, 16  # of those; and where no keys tell clients apart
_DRAINED = 32  # times the limit: a client that is still sending would not read why its body is refused


class Guard:
    """The outermost layer."""

    def __init__(
        self, app: ASGIApp, config: ServerConfig, keys: Keys, metrics: Metrics | None = None, log: Log = log_line
    ) -> None:
        """Wrap `app`; `log` is called with every request when it has ended."""
        self._app = app
        self._log = log
        self._config = config
        self._keys = keys
        self._metrics = metrics
        count = _AT_ONCE if keys else _AT_ONCE_OPEN
        self._large: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(count))
        self._budget = Budget(max(_BODIES * config.max_body_bytes, _LEAST_BODIES))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        account = Account()
        account.request_id = _request_id(headers.get(b"x-request-id"))
        scope.setdefault("state", {})["account"] = account
        began = False

        async def tell(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                account.status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", account.request_id.encode("latin-1")),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        # HTTP's HEAD is a GET without a body; the code that sends the answer leaves it out.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            if not self._keys:
                check_page(scope["method"], headers, self._config)
            self._identify(scope["path"], headers.get(b"authorization"), account)
            limits = self._budget, self._large[account.client.name]
            await self._app(inner, _Body(receive, headers, self._config, *limits, account), tell)
        except Exception as error:
            if not began:
                answer = as_api_error(error)
                account.facts["error"] = str(answer)
                await answer.response()(scope, receive, tell)
        finally:
            account.held.close()
            self._close(scope, account)

    def _identify(self, path: str, authorization: str | None, account: Account) -> None:
        client = self._keys.client(authorization)
        if client is not None:
            account.client = client
        elif path not in OPEN:
            raise ApiError(
                401, "the API key is missing or unknown; send Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip

    def _close(self, scope: Scope, account: Account) -> None:
        seconds = time.perf_counter() - account.arrival
        path = scope["path"]
        if self._metrics is not None:
            outputs = tuple(account.outputs[i] for i in sorted(account.outputs))
            self._metrics.observe_end(Observation(path, account.status, seconds, outputs))
        if path in OPEN and account.status < 400:
            return  # probes come every second
        self._log(
            {
                "time": round(time.time(), 3),
                "request_id": account.request_id,
                "key": account.client.name,
                "method": scope["method"],
                "path": path,
                "status": account.status,
                "seconds": round(seconds, 4),
                **account.facts,
            }
        )


class _Body:
    """A request's `receive` that counts bytes and watches the clock until the body is complete."""

    def __init__(
        self, receive: Receive, headers: dict[bytes, str], config: ServerConfig, budget: Budget,
        large: asyncio.Semaphore, account: Account,
    ) -> None:  # fmt: skip
        self._receive = receive
        self._budget, self._key = budget, account.client.name
        self._large, self._has_turn, self._account = large, False, account
        self._kept = 0
        account.body.callback(lambda: budget.give(self._key, self._kept))
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
            self._budget.take(self._key, count)
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
