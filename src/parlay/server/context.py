"""The parts of the server that every endpoint uses, and what they do for one request."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from parlay.config import ServerConfig
from parlay.link.engine import AsyncEngine
from parlay.server.admission import Admission, Admitted
from parlay.server.errors import CLIENT_LEFT, ApiError, ClientLeftError
from parlay.server.fair_queue import LONG, Threads
from parlay.server.keys import ANYONE
from parlay.server.metrics import PrometheusMetrics
from parlay.server.openai.responses_store import ResponseStore
from parlay.types.output import RequestOutput

T = TypeVar("T")


class RequestState:
    """The facts about one request, for its line in the log; in the scope's state under `request`.

    Attributes:
        resources: what the request holds until it ends.
        body: the share of `resources` that its body takes, which may be given back earlier.
        began: whether its answer has begun, so that the status is out.
        admitted: its open completions, if it was admitted.
        requested: completions that the engine was given to compute and the request is to return.
        failed: whether the answer ended with an error of the server's after it had begun.
    """

    def __init__(self) -> None:
        self.request_id = ""
        self.client = ANYONE
        self.arrival = time.perf_counter()
        self.facts: dict[str, Any] = {}  # for the log
        self.outputs: dict[int, RequestOutput] = {}  # the newest of each prompt
        self.status, self.began = CLIENT_LEFT, False
        self.resources = ExitStack()
        self.body = self.resources.enter_context(ExitStack())
        self.admitted: Admitted | None = None
        self.requested, self.failed = 0, False

    @property
    def newest(self) -> list[RequestOutput]:
        """The newest output of each prompt, in the prompts' order."""
        return [self.outputs[number] for number in sorted(self.outputs)]


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that every endpoint uses.

    Attributes:
        engine: the engine that computes.
        config: the server's options.
        admission: admission control of requests.
        store: the stored responses.
        methods: speculative methods that the engine has loaded.
        metrics: metrics to count, if given.
        threads: threads for what takes long.
        began: time of the server's start, in seconds since 1970.
        current: the request that is served.
    """

    engine: AsyncEngine
    config: ServerConfig
    admission: Admission
    store: ResponseStore
    methods: tuple[str, ...] = ()
    metrics: PrometheusMetrics | None = None
    threads: Threads = field(default_factory=Threads)
    began: int = field(default_factory=lambda: int(time.time()))
    current: Request | None = None

    def of(self, request: Request) -> "Context":
        """Return the same parts for one request."""
        return replace(self, current=request)

    @property
    def request(self) -> Request:
        """The request that is served."""
        assert self.current is not None, "this is no request's"
        return self.current

    @property
    def state(self) -> RequestState:
        """The facts about it."""
        state: RequestState = self.request.scope["state"]["request"]
        return state

    @staticmethod
    def now() -> int:
        """Return the time in seconds since 1970."""
        return int(time.time())

    def check_ready(self) -> None:
        """Refuse requests that the engine would not accept.

        Raises:
            ApiError: it is not ready.
        """
        state = self.engine.state
        if state != "ready":
            raise ApiError(503, f"the engine is {state}; retry later")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Return the result of `work`, as `Threads.run`, unless the client leaves before it is begun.

        To be called when the body was read.

        Raises:
            ClientLeftError: the client has left.
            ApiError: the server ends.
            Exception: anything that `work` raises.
        """
        if size < LONG:
            return work()
        return await while_wanted(
            self.threads.run(self.state.client.name, size, work), self.request.receive, self.admission.cut
        )

    async def run_template(self, template: str | None, count: int, work: Callable[[], T]) -> T:
        """Return the result of `work`, which runs a chat template, as `run` does.

        Args:
            template: a client's; None for the model's own.
            count: the `pieces` that it is given.
            work: what to do.
        """
        rendered = self.threads.run_template(self.state.client.name, self.engine.codec, template, count, work)
        return await while_wanted(rendered, self.request.receive, self.admission.cut)


async def while_wanted(work: Coroutine[Any, Any, T], receive: Receive, cut: asyncio.Event) -> T:
    """Return the result of `work`; cancel it once the client disconnects or the server shuts down.

    Args:
        work: what to do.
        receive: the request's, its body read.
        cut: set when the server ends.

    Raises:
        ClientLeftError: the client disconnected.
        ApiError: the server ends.
    """
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_disconnected(receive))
    ending = asyncio.ensure_future(cut.wait())
    try:
        await asyncio.wait((task, left, ending), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if left.done():
            raise ClientLeftError
        raise ApiError(503, "the server shut down before the answer was complete; retry")
    finally:
        for each in (task, left, ending):
            each.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await each


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
