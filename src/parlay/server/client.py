"""An engine in a process of its own, as the front sees it: `AsyncLLM`'s interface, and what a server needs besides.

Everything happens on one event loop. The engine's death fails what is open; it is then started anew, with delays that
grow while it does not come up.
"""

import asyncio
import atexit
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

from parlay.config import EngineConfig, SpeculativeConfig, modernise
from parlay.config.speculative import DEFAULT, Speculation
from parlay.engine.chat import ChatOptions
from parlay.engine.stats import StatsSnapshot
from parlay.engine.tokenizer import TextCodec, check_prompt, encode_prediction
from parlay.errors import EngineDeadError, ParlayError
from parlay.log import logger
from parlay.sampling.seeds import mix
from parlay.server.link import EngineLink
from parlay.server.patience import Patience
from parlay.server.protocol import Abort, Add, Failure, Loading, Outputs, Ready, Report, Stop, plain_params
from parlay.server.stream import Stream
from parlay.types.output import RequestOutput
from parlay.types.params import SamplingParams
from parlay.types.progress import OnProgress, ignore
from parlay.types.prompt import Messages, Prompt, content_of, text_of

State = Literal["starting", "ready", "restarting", "closed"]
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 30.0  # seconds before a restart; doubled after each that fails
_STEADY, _GRACE = 60.0, 5.0  # seconds after which an engine counts as healthy; for the process to end by itself
_DIED = "the engine died and is being restarted; send the request again"
_ABSENT = {
    "starting": "the engine is being started; send the request again",
    "restarting": _DIED,
    "closed": "the engine was closed; start another",
}
_LONG = 1 << 15  # characters of a prompt that are encoded beside the event loop instead of on it


class EngineClient:
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
        self._config = EngineConfig.parse(
            {"model": fspath(model) if isinstance(model, PathLike) else model, **options}
        )
        self._speculative = SpeculativeConfig.parse(speculative_config)
        self._state: State = "starting"
        self._link: EngineLink | None = None
        self._ready: Ready | None = None
        self._codec: TextCodec | None = None
        self._stats = StatsSnapshot()
        self._streams: dict[int, Stream] = {}
        self._arrivals, self._keys = count(), count()
        self._came_up: asyncio.Future[None] | None = None  # by the life of the engine that is being started
        self._revival: asyncio.Task[None] | None = None
        self._quiet: asyncio.Event | None = None  # set when the last stream has gone, while closing
        self._delay, self._up_since = _FIRST_DELAY, 0.0
        self._on_progress = on_progress
        self._patience = Patience(engine_timeout, self._owed, self._give_up)
        self.restarts = 0

    @property
    def model_name(self) -> str:
        """What the model is called: the first `served_model_name`, or else `model`."""
        return self._config.model_name

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """The model's own sampling parameters, for requests that give none."""
        return dict(self.facts.sampling)

    @property
    def model_names(self) -> tuple[str, ...]:
        """All its names."""
        return self._config.model_names

    @property
    def numerics_id(self) -> str:
        """Names everything that the bits of a token depend on besides its request: equal ids, equal tokens."""
        return self.facts.numerics_id

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and output together."""
        return self.facts.max_model_len

    @property
    def codec(self) -> TextCodec:
        """The model's tokenizer and chat template, in this process."""
        if self._codec is None:
            raise EngineDeadError(self._absence())
        return self._codec

    @property
    def state(self) -> State:
        """`starting` until the engine is first loaded, `ready`, `restarting` after its death, or `closed`."""
        return self._state

    @property
    def pid(self) -> int | None:
        """Of the engine's process; None where there is none."""
        return None if self._link is None else self._link.pid

    def stats(self) -> StatsSnapshot:
        """Return the newest snapshot, at most about 0.1 s old; it counts from the engine's last start."""
        return self._stats

    @property
    def facts(self) -> Ready:
        """What the engine said of itself when it was ready."""
        if self._ready is None:
            raise EngineDeadError(self._absence())
        return self._ready

    def _absence(self) -> str:
        """Say why nothing can be asked now."""
        return _ABSENT[self._state]

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
        self._fail_all(ParlayError(self._absence()))
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

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        tenant: str = "",
        timeout: float | None = None,
        final_only: bool = False,
    ) -> AsyncIterator[RequestOutput]:
        """Yield what one prompt's completions have, as they grow; the last output is finished.

        As `AsyncLLM.generate`, but for `logits_processors`, which are refused. With `best_of` above `n` there is one
        output, since only the end decides.

        Args:
            prompt: text, token ids, or a mapping with `prompt` or `prompt_token_ids`.
            sampling_params: how tokens are chosen.
            priority: lower runs first among the waiting.
            tenant: requests of different tenants share no cache.
            timeout: seconds after which the request is aborted.
            final_only: yield the last output alone, which costs less.

        Raises:
            RequestError: the prompt cannot be served.
            EngineDeadError: the engine is not there, or died; the same request may be sent again.
            ParlayError: the engine was closed.
        """
        key, ordinal = next(self._keys), next(self._arrivals)
        params = sampling_params or SamplingParams.parse(self.sampling_defaults)
        self._check_present()
        tokens = await self._tokens(prompt)
        if params.prediction:
            params = replace(params, prediction=await self._predicted(params.prediction))
        self._check_present()  # encoding may have taken its time
        stream = Stream(self.codec, text_of(prompt), tokens, params)
        if params.seed is None:
            # Arrivals are counted here, so that a restart does not begin anew.
            params = replace(params, seed=mix(self._config.seed, ordinal + 1))
        assert self._link is not None
        self._link.send(Add(key, tokens, plain_params(params), priority, tenant, timeout, final_only))
        self._streams[key] = stream
        self._patience.begin()
        try:
            while True:
                output = await stream.next()
                yield output
                if output.finished:
                    return
        finally:
            self._leave(key, stream)

    async def chat(
        self, messages: Messages, sampling_params: SamplingParams | None = None, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        """Yield what the answers to one conversation have, as they grow; otherwise as `generate`.

        Args:
            messages: mappings with `role` and `content`.
            sampling_params: how tokens are chosen.
            **options: those of `generate`; others as in `LLM.chat_prompt`.
        """
        names = ("priority", "tenant", "timeout", "final_only")
        more = {name: options.pop(name) for name in names if name in options}
        text = self.codec.chat(messages, ChatOptions.parse(options))
        prompt = {"prompt": text, "prompt_token_ids": self.codec.encode(text, add_special_tokens=False)}
        outputs = self.generate(prompt, sampling_params, **more)
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()  # type: ignore[attr-defined]

    def _check_present(self) -> None:
        if self._state == "closed":
            raise ParlayError(self._absence())
        if self._state != "ready":
            raise EngineDeadError(self._absence())

    async def _tokens(self, prompt: Prompt) -> tuple[int, ...]:
        content = content_of(prompt)
        if isinstance(content, str):
            encode = self.codec.encode
            content = await asyncio.to_thread(encode, content) if len(content) > _LONG else encode(content)
        return check_prompt(content, self.facts.vocab_size, self.facts.max_model_len)

    async def _predicted(self, given: str | Sequence[int]) -> tuple[int, ...]:
        arguments = self.codec, given, self.facts.vocab_size, self.facts.max_model_len
        long = isinstance(given, str) and len(given) > _LONG
        return await asyncio.to_thread(encode_prediction, *arguments) if long else encode_prediction(*arguments)

    def _leave(self, key: int, stream: Stream) -> None:
        """Forget a request whose reader is gone; the engine forgets it within a step."""
        if self._streams.pop(key, None) is not None and not stream.ended and self._link is not None:
            self._link.send(Abort(key))
        if self._streams:
            return
        if self._quiet is not None:
            self._quiet.set()
        self._patience.end()

    def _fail_all(self, error: ParlayError) -> None:
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()

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
            self._ready = report
            self._came_up.set_result(None)
        else:
            self._came_up.set_exception(report.error())

    def _take_outputs(self, outputs: Outputs) -> None:
        touched = {}
        for scores in outputs.prompts:
            if (stream := self._streams.get(scores.key)) is not None:
                stream.add_scores(scores)
        for delta in outputs.deltas:
            if (stream := self._streams.get(delta.key)) is not None:
                stream.add(delta)
                touched[delta.key] = stream
        for stream in touched.values():
            stream.wake()
        for failure in outputs.failures:
            self._fail(failure)
        if outputs.stats is not None:
            self._stats = outputs.stats

    def _fail(self, failure: Failure) -> None:
        stream = None if failure.key is None else self._streams.get(failure.key)
        if stream is not None:
            stream.fail(failure.error())
