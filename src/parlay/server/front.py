"""The parts of the server that every endpoint uses, and what they do for one request."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from starlette.requests import Request

from parlay.config import ServerConfig
from parlay.link.engine import AsyncEngine
from parlay.server.account import Account
from parlay.server.errors import ApiError
from parlay.server.gate import Gate
from parlay.server.openai.outputs import while_wanted
from parlay.server.remote.backend import Metrics
from parlay.server.threads import LONG, Threads

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Front:
    """The parts that every endpoint uses.

    Attributes:
        engine: computes.
        config: the server's options.
        gate: admits requests.
        methods: speculative methods that the engine has loaded.
        metrics: counts, if given.
        threads: for what takes long.
        asked: the request that is served.
    """

    engine: AsyncEngine
    config: ServerConfig
    gate: Gate
    methods: tuple[str, ...] = ()
    metrics: Metrics | None = None
    threads: Threads = field(default_factory=Threads)
    asked: Request | None = None

    def of(self, request: Request) -> "Front":
        """Return the same parts for one request."""
        return replace(self, asked=request)

    @property
    def request(self) -> Request:
        """The request that is served."""
        assert self.asked is not None, "this is no request's"
        return self.asked

    @property
    def account(self) -> Account:
        """The facts about it."""
        account: Account = self.request.scope["state"]["account"]
        return account

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
            raise ApiError(503, f"the engine is {state}; retry a little later")

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
            self.threads.run(self.account.client.name, size, work), self.request.receive, self.gate.cut
        )

    async def beside(self, template: str | None, count: int, work: Callable[[], T]) -> T:
        """Return the result of `work`, which runs a chat template, as `run` does.

        Args:
            template: a client's; None for the model's own.
            count: the `pieces` that it is given.
            work: what to do.
        """
        rendered = self.threads.beside(self.account.client.name, self.engine.codec, template, count, work)
        return await while_wanted(rendered, self.request.receive, self.gate.cut)
