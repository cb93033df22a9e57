"""Engines in separate processes, as the front sees them: one asynchronous engine, even when a process dies.

Everything happens on one event loop. Requests get their seeds here, by the order of their arrival, so that these do
not depend on which engine computes them.
"""

import asyncio
import atexit
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

from parlay import env
from parlay.config import SERVING, EngineConfig, SpeculativeConfig, modernise
from parlay.config.speculative import DEFAULT, Speculation
from parlay.errors import ConfigError, EngineDeadError, ParlayError
from parlay.link.engine import AsyncEngine, State
from parlay.link.protocol import EngineReady, Report
from parlay.link.stream import Stream
from parlay.log import logger
from parlay.parallel.numa import memory_nodes, place_replicas
from parlay.server.remote.engine_link import EngineLink
from parlay.server.remote.replica import DIED, Calls, Replica
from parlay.server.remote.replicas import Replicas, check_alike
from parlay.system import allowed_processors
from parlay.text.tokenizer import TextCodec
from parlay.types.progress import OnProgress, ignore
from parlay.types.stats import DraftStats, StatsSnapshot, summed

_UNAVAILABLE = {
    "starting": "the engine is being started; send the request again",
    "restarting": DIED,
    "closed": "the engine was closed; start another",
}


class EngineClient(AsyncEngine):
    """An engine in a separate process, or several replicas. Start it, close it, or use it as a context manager.

    All on one event loop.

    Example:
        >>> async with EngineClient("tiny-code", speculative_config={"method": "ngram"}) as engine:
        ...     async for output in engine.generate("def fibonacci(n):", SamplingParams(max_tokens=32)):
        ...         print(output.outputs[0].text)
    """

    def __init__(
        self,
        model: str | PathLike[str] = "tiny-code",
        *,
        speculative_config: Speculation = DEFAULT,
        data_parallel_size: int = 1,
        engine_timeout: float = 120.0,
        on_progress: OnProgress = ignore,
        **options: Any,
    ) -> None:
        """Check the options, which are those of `LLM`, and start nothing yet.

        Args:
            model: the model's name or path, see `LLM`.
            speculative_config: the speculative method and its options, see `LLM`.
            data_parallel_size: engines, each with a process, the weights and a cache; threads and memory are divided
                among them, and so are memory nodes with their processors, where there are several.
            engine_timeout: seconds without a message, while requests are open or it loads (then at least 60), after
                which the process counts as hung and is replaced; longer than the longest step.
            on_progress: called with how far the (first engine's) weights are loaded, after a restart too.
            **options: as in `LLM`.

        Raises:
            ConfigError: an unknown option, or one out of range.
        """
        options, speculative_config = modernise({**SERVING, **options}, speculative_config, stacklevel=2)
        super().__init__(
            EngineConfig.parse({"model": fspath(model) if isinstance(model, PathLike) else model, **options})
        )
        self._speculative = SpeculativeConfig.parse(speculative_config)
        if self._config.rank_address is not None and data_parallel_size > 1:
            raise ConfigError("ranks join one engine at one address; leave out data_parallel_size or rank_address")
        self._places = place_replicas(data_parallel_size, allowed_processors(), memory_nodes())
        self._shares = _shares(self._places)
        self._state: Literal["starting", "ready", "closed"] = "starting"
        self._quiet: asyncio.Event | None = None  # set when the last stream has gone, while closing

        def replica(number: int) -> Replica:
            name = "the engine" if data_parallel_size == 1 else f"replica {number}"
            progress = ignore if number else on_progress
            start, lost = partial(self._start_process, number), lambda replica: self._link.lost(replica)
            calls = Calls(start, self._check_ready, self._take_outputs, progress, lost)
            return Replica(number, name, engine_timeout, calls)

        every = [replica(number) for number in range(data_parallel_size)]
        self._link: Replicas = Replicas(every, self._config.block_size, lambda key: self._streams[key])

    @property
    def state(self) -> State:
        """`starting` until all is first loaded, `ready` while any replica serves, `restarting`, or `closed`."""
        if self._state != "ready" or self._link.serving:
            return self._state
        return "restarting"

    @property
    def replicas(self) -> Sequence[Replica]:
        """The engines; one, unless `data_parallel_size` says otherwise."""
        return self._link.every

    @property
    def pid(self) -> int | None:
        """Of the (first) engine's process; None where there is none."""
        return self.replicas[0].pid

    @property
    def restarts(self) -> int:
        """How often engines were restarted."""
        return sum(replica.restarts for replica in self.replicas)

    def stats(self) -> StatsSnapshot:
        """Return the newest snapshots together; each counts from its engine's last start, up to 0.1 s ago."""
        return total([replica.stats for replica in self.replicas])

    def _unavailable(self) -> ParlayError:
        return (ParlayError if self._state == "closed" else EngineDeadError)(_UNAVAILABLE[self.state])

    async def start(self) -> None:
        """Start the processes and wait until their engines are loaded. To be called once.

        Raises:
            ConfigError, ModelError, CapacityError: see `LLM`; the client is then closed. Replicas that would give
                other tokens than the first are a `ConfigError` too.
            EngineDeadError: a process died while it started.
        """
        atexit.register(self._link.abandon)  # before multiprocessing's own, which would wait for the processes
        try:
            await self._link.start()
            self._codec = await asyncio.to_thread(TextCodec.ready, Path(self.facts.tokenizer))
        except BaseException:
            await self.close()
            raise
        if self._state == "starting":
            self._state = "ready"

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Accept nothing any more, fail what is open after `drain_seconds`, end all processes. Idempotent."""
        self._state = "closed"
        await self._link.retire()
        if self._streams:
            self._quiet = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), drain_seconds)
        self._fail_all(self._unavailable())
        if self._codec is not None:
            self._codec.close()
        await self._link.end()
        atexit.unregister(self._link.abandon)

    async def __aenter__(self) -> "EngineClient":
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _leave(self, key: int, stream: Stream) -> None:
        super()._leave(key, stream)
        self._link.leave(key)
        if not self._streams and self._quiet is not None:
            self._quiet.set()

    def _start_process(
        self, number: int, on_report: Callable[[Report], None], on_end: Callable[[], None]
    ) -> EngineLink:
        own = self._shares[number], self._places[number]
        return EngineLink(self._config, self._speculative, *own, on_report, on_end)

    def _check_ready(self, replica: Replica, facts: EngineReady) -> None:
        """Let an engine serve if it computes as the others do."""
        if self._facts is not None and any(other.facts is not None for other in self.replicas):
            check_alike(self._facts, facts, replica.number)
        self._facts = facts


def _shares(places: Sequence[frozenset[int]]) -> list[dict[str, str]]:
    """Return the variables by which each replica takes its part of the machine, on its processors."""
    replicas = len(places)
    if replicas > env.threads():
        logger.warning(
            "data_parallel_size=%d exceeds the threads there are (%d): replicas will wait for each other; lower it",
            replicas,
            env.threads(),
        )
    return [env.share(replicas, *([len(place)] if place else [])) for place in places]


def total(snapshots: Sequence[StatsSnapshot]) -> StatsSnapshot:
    """Return the sums of all that snapshots count; what is counted by name or place is added by name or place."""
    return snapshots[0] if len(snapshots) == 1 else _sum(snapshots)


def _sum(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, StatsSnapshot | DraftStats):
        return type(first)(**{f.name: _sum([getattr(one, f.name) for one in values]) for f in fields(first)})
    if isinstance(first, Mapping):
        names = dict.fromkeys(name for one in values for name in one)
        return {name: _sum([one[name] for one in values if name in one]) for name in names}
    if isinstance(first, list):
        return summed(values)
    return sum(values)
