"""An engine in a process of its own, as the front sees it: an asynchronous engine whose broken link is mended.

Everything happens on one event loop. The engine's death fails what is open; it is then started anew, with delays that
grow while it does not come up.
"""

import asyncio
import atexit
from contextlib import suppress
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from parlay.config import EngineConfig, SpeculativeConfig, modernise
from parlay.config.speculative import DEFAULT, Speculation
from parlay.engine.tokenizer import TextCodec
from parlay.errors import EngineDeadError, ParlayError
from parlay.link.engine import AsyncEngine, State
from parlay.link.protocol import Add, Loading, Outputs, Ready, Report, Stop
from parlay.link.stream import Stream
from parlay.log import logger
from parlay.server.link import EngineLink
from parlay.server.patience import Patience
from parlay.types.progress import OnProgress, ignore

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 30.0  # seconds before a restart; doubled after each that fails
_STEADY, _GRACE = 60.0, 5.0  # seconds after which an engine counts as healthy; for the process to end by itself
_DIED = "the engine died and is being restarted; send the request again"
_ABSENT = {
    "starting": "the engine is being started; send the request again",
    "restarting": _DIED,
    "closed": "the engine was closed; start another",
}


class EngineClient(AsyncEngine):
    """An engine in its own process. Start it, close it, or use it as a context manager; all on one event loop.

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
        engine_timeout: float = 120.0,
        on_progress: OnProgress = ignore,
        **options: Any,
    ) -> None:
        """Check the options, which are those of `LLM`, and start nothing yet.

        Args:
            model: as in `LLM`.
            speculative_config: as in `LLM`.
            engine_timeout: seconds without a word, while requests are open, after which the process counts as hung
                and is replaced; longer than the longest step.
            on_progress: told how far the weights are loaded, after a restart too.
            **options: as in `LLM`.

        Raises:
            ConfigError: an unknown option, or one out of range.
        """
        options, speculative_config = modernise(options, speculative_config, stacklevel=2)
        super().__init__(
            EngineConfig.parse({"model": fspath(model) if isinstance(model, PathLike) else model, **options})
        )
        self._speculative = SpeculativeConfig.parse(speculative_config)
        self._state: State = "starting"
        self._link: EngineLink | None = None
        self._came_up: asyncio.Future[None] | None = None  # by the life of the engine that is being started
        self._revival: asyncio.Task[None] | None = None
        self._quiet: asyncio.Event | None = None  # set when the last stream has gone, while closing
        self._delay, self._up_since = _FIRST_DELAY, 0.0
        self._on_progress = on_progress
        self._patience = Patience(engine_timeout, self._owed, self._give_up)
        self.restarts = 0

    @property
    def state(self) -> State:
        """`starting` until the engine is first loaded, `ready`, `restarting` after its death, or `closed`."""
        return self._state

    @property
    def pid(self) -> int | None:
        """Of the engine's process; None where there is none."""
        return None if self._link is None else self._link.pid

    def _absence(self) -> ParlayError:
        return (ParlayError if self._state == "closed" else EngineDeadError)(_ABSENT[self._state])

    async def start(self) -> None:
        """Start the process and wait until its engine is loaded. To be called once.

        Raises:
            ConfigError, ModelError, CapacityError: as `LLM` does; the client is then closed.
            EngineDeadError: the process died while it started.
        """
        atexit.register(self._kill)  # before multiprocessing's own, which would wait for the process
        try:
            await self._launch()
        except BaseException:
            await self.close()
            raise
        if self._state == "starting":
            self._state = "ready"

    async def _launch(self) -> None:
        """Start a process and wait for what becomes of it."""
        self._came_up = asyncio.get_running_loop().create_future()
        self._link = EngineLink(self._config, self._speculative, self._take, self._ended)
        await self._came_up
        if self._codec is None:
            self._codec = await asyncio.to_thread(TextCodec.ready, Path(self.facts.tokenizer))
        if self._link is None:
            raise EngineDeadError("the engine's process died as soon as it had started; see what it wrote to stderr")

    def _ended(self) -> None:
        """The process is gone."""
        link, self._link = self._link, None
        # Its counters stand until the next one's first word; what it held it holds no more.
        self._stats = replace(self._stats, running=0, waiting=0, blocks_used=0)
        if self._came_up is not None and not self._came_up.done():
            how = "" if link is None else f" (exit code {link.exit_code})"
            self._came_up.set_exception(
                EngineDeadError(f"the engine's process died while it started{how}; see what it wrote to stderr")
            )
        elif self._state == "ready":
            logger.error("the engine's process died (exit code %s) and is being restarted", link and link.exit_code)
            self._state = "restarting"
            self._revival = asyncio.get_running_loop().create_task(self._revive())
        self._fail_all(EngineDeadError(_DIED))

    async def _revive(self) -> None:
        now = asyncio.get_running_loop().time
        if now() - self._up_since > _STEADY:
            self._delay = _FIRST_DELAY
        while True:
            delay, self._delay = self._delay, min(2 * self._delay, _LONGEST_DELAY)
            await asyncio.sleep(delay)
            self.restarts += 1
            try:
                await self._launch()
            except Exception as error:  # whatever it is may be over by the next time
                logger.error("the engine cannot be restarted: %s", error)
                if self._link is not None:
                    await self._link.ended(_GRACE)
            else:
                self._state, self._up_since = "ready", now()
                return

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Accept nothing any more, fail what is open after `drain_seconds`, end all processes. Idempotent."""
        served, self._state = self._state == "ready", "closed"
        if self._revival is not None:
            self._revival.cancel()
            await asyncio.wait([self._revival])
        if self._streams and self._link is not None:
            self._quiet = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), drain_seconds)
        self._fail_all(self._absence())
        if self._codec is not None:
            self._codec.close()
        if (link := self._link) is not None:
            if served:
                link.send(Stop())
            else:  # it may be loading, and hear nothing
                link.kill()
            await link.ended(_GRACE)
        atexit.unregister(self._kill)

    def _kill(self) -> None:
        if self._link is not None:
            self._link.abandon()

    async def __aenter__(self) -> "EngineClient":
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _open(self, key: int, stream: Stream, add: Add) -> None:
        super()._open(key, stream, add)
        self._patience.begin()

    def _leave(self, key: int, stream: Stream) -> None:
        super()._leave(key, stream)
        if self._streams:
            return
        if self._quiet is not None:
            self._quiet.set()
        self._patience.end()

    def _owed(self) -> bool:
        """Whether the engine has anything to tell."""
        return not all(stream.ended for stream in self._streams.values())

    def _give_up(self) -> None:
        """The engine hangs: only its end can help."""
        if self._link is not None:
            logger.error("the engine has said nothing for too long, which --engine-timeout limits, and is killed")
            self._link.kill()

    def _take(self, report: Report) -> None:
        """Hand what the engine says to whom it concerns."""
        self._patience.hear()
        if isinstance(report, Outputs):
            self._take_outputs(report)
        elif isinstance(report, Loading):
            self._on_progress(report.progress)
        elif self._came_up is None or self._came_up.done():
            pass  # nobody waits any more
        elif isinstance(report, Ready):
            self._facts = report
            self._came_up.set_result(None)
        else:
            self._came_up.set_exception(report.error())
