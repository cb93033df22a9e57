"""The offline interface: prompts in, completions out."""

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from numbers import Integral
from os import PathLike, fspath
from typing import Any

from parlay.config import EngineConfig, SpeculativeConfig, modernise
from parlay.config.speculative import DEFAULT, Speculation
from parlay.engine.engine import Engine
from parlay.engine.fair_lock import FairLock
from parlay.engine.request import Request, best
from parlay.errors import CapacityError, ConfigError, RequestError, shown
from parlay.loading_bar import loading_bar
from parlay.metrics import Metric, metrics_of
from parlay.text.chat import ChatOptions
from parlay.text.tokenizer_view import TokenizerView
from parlay.types.output import RequestOutput
from parlay.types.params import SamplingParams
from parlay.types.prompt import Messages, Prompt, content_of, salt_of, text_of

# Arguments of vLLM's `chat` that have no effect with these values.
_OF_VLLM: dict[str, tuple[Any, ...]] = {
    "chat_template_content_format": ("auto", None),
    "mm_processor_kwargs": (None,),
    "tokenization_kwargs": (None,),
}


class LLM:
    """A target model, ready to complete prompts.

    Threads may share it: their calls run at the same time, in one batch. Only unseeded requests depend on which
    thread comes first, since their seeds follow the order of arrival.

    Example:
        >>> llm = LLM("tiny-code", speculative_config={"method": "ngram", "num_speculative_tokens": 5})
        >>> llm.generate("def fibonacci(n):", SamplingParams(temperature=0, max_tokens=32))
    """

    def __init__(
        self,
        model: str | PathLike[str] = "tiny-code",
        *,
        speculative_config: Speculation = DEFAULT,
        **options: Any,
    ) -> None:
        """Load a model.

        Args:
            model: a directory in Hugging Face format, a GGUF file, a name on the hub, or that of an embedded model.
            speculative_config: how to speculate; left out, as `{"method": "auto"}`; None decodes plainly.
            **options: fields of `EngineConfig`. The keywords of vLLM 0.6 work too, each with a `DeprecationWarning`.

        Raises:
            ConfigError: an unknown option, or one out of range.
            ModelError: a model cannot be found, read or served.
            CapacityError: memory does not suffice for one sequence.
        """
        options, speculative_config = modernise(options, speculative_config, stacklevel=2)
        config = EngineConfig.parse({"model": fspath(model) if isinstance(model, PathLike) else model, **options})
        speculative = SpeculativeConfig.parse(speculative_config)
        with loading_bar(show=config.use_tqdm_on_load and sys.stderr.isatty()) as on_progress:
            try:
                self.engine = Engine(config, speculative, on_progress)
            except MemoryError as error:
                if isinstance(error, CapacityError):
                    raise
                raise CapacityError(
                    "memory ran out while the model was loaded; take a smaller one, or lower kv_cache_memory or a "
                    "limit such as that of `ulimit -v`"
                ) from error
        self._alone = FairLock()  # for whatever uses the engine
        self._left = deque[list[Request]]()  # requests of iterators that were left

    @property
    def model_name(self) -> str:
        """What the model is called: the first `served_model_name`, or else `model`."""
        return self.engine.config.model_name

    @property
    def model_names(self) -> tuple[str, ...]:
        """All its names."""
        return self.engine.config.model_names

    @property
    def numerics_id(self) -> str:
        """Names everything that the bits of a token depend on besides its request: equal ids, equal tokens."""
        return self.engine.numerics_id

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """The model's own sampling parameters, for requests that give none; see `generation_config`."""
        return dict(self.engine.sampling_defaults)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters of requests that give none: the model's own, see `generation_config`."""
        return SamplingParams.parse(self.sampling_defaults)

    def get_tokenizer(self) -> TokenizerView:
        """Return the model's tokenizer, with the methods that transformers' tokenizers have."""
        return TokenizerView(self.engine.codec)

    def get_metrics(self) -> list[Metric]:
        """Return the engine's counters since its start, under vLLM's names."""
        return metrics_of(self._alone.run(self.engine.snapshot))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | None = None,
        lora_request: None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt.

        Args:
            prompts: one or many; each is text, token ids, or a mapping with `prompt` or `prompt_token_ids`, perhaps
                with a `cache_salt`: prompts with different ones share no cached prefix.
            sampling_params: sampling parameters for all prompts, or one for each.
            use_tqdm: show a progress bar on stderr; None, the default, shows one where stderr is a terminal.
            lora_request: None; adapters are not supported.
            priority: priorities of the prompts, of which lower ones run first; None for equal ones.

        Returns:
            One output per prompt, in order. Of many prompts, one that cannot be served or fails has `error` set and
            costs the others nothing.

        Raises:
            RequestError: the only prompt cannot be served.
            RankError: a further rank is lost, or an earlier call was interrupted in the middle of a pass.
            ConfigError: the numbers of prompts and parameters differ, or an adapter is asked for.
        """
        _check_lora(lora_request)
        many = _prompts(prompts)
        params = _spread(sampling_params, len(many), self.sampling_defaults)
        return self._complete(many, params, use_tqdm, _priorities(priority, len(many)))

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | None = None,
        lora_request: None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Complete one or many conversations through the model's chat template; otherwise as `generate`.

        Args:
            messages: one conversation, a list of mappings with `role` and `content`, or a list of conversations.
            sampling_params: sampling parameters for all conversations, or one for each.
            use_tqdm: show a progress bar on stderr, see `generate`.
            lora_request: None; adapters are not supported.
            **template_options: options of the chat template, see `chat_prompt`.
        """
        _check_lora(lora_request)
        for name, harmless in _OF_VLLM.items():
            if template_options.get(name) in harmless:
                template_options.pop(name, None)
        many = _conversations(messages)
        options = ChatOptions.parse(template_options)
        prompts: list[Prompt | RequestError] = []
        for conversation in many:
            try:
                prompts.append(self._chat_prompt(conversation, options))
            except RequestError as error:
                prompts.append(error)
        params = _spread(sampling_params, len(many), self.sampling_defaults)
        return self._complete(prompts, params, use_tqdm, _priorities(None, len(many)))

    def chat_prompt(self, messages: Messages, **template_options: Any) -> Prompt:
        """Return the prompt that the chat template makes of a conversation.

        Special tokens are the template's business: the tokenizer adds none of its own.

        Args:
            messages: mappings with `role` and `content`.
            **template_options: fields of `ChatOptions`: `chat_template`, `add_generation_prompt`,
                `continue_final_message`, `tools`, `chat_template_kwargs`.

        Raises:
            ConfigError: an unknown option, or options that contradict each other.
            RequestError: there is no chat template, or the template refuses the messages.
        """
        return self._chat_prompt(messages, ChatOptions.parse(template_options))

    def _chat_prompt(self, messages: Messages, options: ChatOptions) -> Prompt:
        text = self.engine.codec.chat(messages, options)
        return {"prompt": text, "prompt_token_ids": self.engine.codec.encode(text, add_special_tokens=False)}

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Return an iterator over what one prompt's completions have, after every step that emitted something.

        Between two outputs other calls may run, of this thread or another; an iterator that is left or dropped aborts
        its request.

        Raises:
            RequestError: the prompt cannot be served, or `best_of` asks for completions that only the end decides.
        """
        params = sampling_params or SamplingParams.parse(self.sampling_defaults)
        if params.candidates > params.n:
            self._alone.run(self.engine.refuse)
            raise RequestError("best_of above n cannot be streamed; leave it out, or use generate")
        outputs = self._follow(prompt, params)
        next(outputs)  # from here on, dropping or closing it ends its requests
        return (output for output in outputs if output is not None)

    def _follow(self, prompt: Prompt, params: SamplingParams) -> Iterator[RequestOutput | None]:
        """Yield nothing once the prompt is queued, then an output, or nothing, after every step."""
        shown, requests = 0, list[Request]()

        def news() -> RequestOutput | None:
            nonlocal shown
            # Steps of other calls may have moved these requests too.
            emitted = sum(len(r.sources) for r in requests)
            failed = next((r.error for r in requests if r.error is not None), None)
            if failed is not None:
                raise failed
            if emitted > shown or all(r.finish_reason is not None for r in requests):
                shown = emitted
                return self._output(prompt, requests)
            self._step()
            return None

        try:
            requests = self.submit(prompt, params)
            yield None
            while True:
                output = self._alone.run(news)
                yield output
                if output is not None and output.finished:
                    return
        finally:
            # It may be dropped at any moment, in the middle of a step too.
            self._left.append(requests)
            self._alone.run_if_free(self._abort_left)

    def _step(self) -> list[Request]:
        """Run a step, for all calls; alone."""
        self._abort_left()
        return self.engine.step()

    def _abort_left(self) -> None:
        while self._left:
            self.engine.abort(*self._left[0])
            self._left.popleft()  # only now, so that an interrupt leaves it for the next call

    def _complete(
        self,
        prompts: Sequence[Prompt | RequestError],
        params: Sequence[SamplingParams],
        use_tqdm: bool | None,
        priorities: Sequence[int],
    ) -> list[RequestOutput]:
        groups: list[list[Request]] = []
        errors: list[RequestError | None] = []
        try:
            for prompt, own, priority in zip(prompts, params, priorities, strict=True):
                groups.append([])
                errors.append(None)
                try:
                    groups[-1] = self.submit(prompt, own, priority=priority)
                except RequestError as error:
                    if len(prompts) == 1:
                        raise
                    errors[-1] = error
            self._run([r for group in groups for r in group], use_tqdm)
        except BaseException:
            # Interrupted or failed: leave nothing behind for the next call.
            self._left.append([*chain.from_iterable(groups)])
            self._alone.run_if_free(self._abort_left)
            raise
        for i, group in enumerate(groups):
            failed = next((r.error for r in group if r.error is not None), None)
            if failed is not None:
                if len(prompts) == 1:
                    raise failed
                groups[i], errors[i] = [], failed
        return [self.output(*one) for one in zip(prompts, groups, errors, strict=True)]

    def submit(self, prompt: Prompt | RequestError, params: SamplingParams, **more: Any) -> list[Request]:
        """Queue a prompt without running anything: what other faces of the engine are built on.

        Args:
            prompt: a prompt, see `generate`, or why there is none.
            params: how tokens are chosen.
            **more: `priority`, `tenant` and `timeout`, see `Engine.add`.

        Raises:
            RequestError: the prompt cannot be served; it counts nevertheless, so that seeds of others do not shift.
        """
        try:
            if isinstance(prompt, RequestError):
                raise prompt
            content, salt, params = content_of(prompt), salt_of(prompt), params.clone()
        except RequestError:
            self._alone.run(self.engine.refuse)
            raise
        tenant = more.pop("tenant", "") or salt
        return self._alone.run(lambda: self.engine.add(content, params, tenant=tenant, **more))

    def _run(self, requests: list[Request], use_tqdm: bool | None) -> None:
        def unfinished() -> bool:
            return any(r.finish_reason is None for r in requests)

        def step() -> list[Request]:
            return self._step() if unfinished() else []  # another thread may have taken the last one

        if not (sys.stderr.isatty() if use_tqdm is None else use_tqdm):
            while unfinished():
                self._alone.run(step)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]:,.0f} tokens/s"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("generating", total=len(requests), speed=0.0)
            before = self.engine.stats.emitted
            while unfinished():
                if any(r.finish_reason for r in self._alone.run(step)):
                    done = sum(r.finish_reason is not None for r in requests)
                    elapsed = bar.tasks[task].elapsed or 1e-9
                    speed = (self.engine.stats.emitted - before) / elapsed
                    bar.update(task, completed=done, speed=speed)

    def output(
        self, prompt: Prompt | RequestError, requests: list[Request], error: RequestError | None = None
    ) -> RequestOutput:
        """Return what submitted requests of one prompt have so far, or why there are none."""
        return self._alone.run(lambda: self._output(prompt, requests, error))

    def _output(
        self, prompt: Prompt | RequestError, requests: list[Request], error: RequestError | None = None
    ) -> RequestOutput:
        return RequestOutput(
            request_id=str(requests[0].request_id) if requests else None,
            prompt=text_of(prompt),
            prompt_token_ids=requests[0].prompt_tokens if requests else (),
            outputs=tuple(self.engine.completion(r, j) for j, r in enumerate(best(requests) if requests else ())),
            finished=all(r.finish_reason is not None for r in requests),
            error=error,
            prompt_logprobs=self.engine.prompt_logprobs(requests[0]) if requests else None,
        )


def _check_lora(lora_request: object) -> None:
    if lora_request is not None:
        raise ConfigError(
            "lora_request is not supported; merge the adapter into the model's weights and leave it out"
        )


def _priorities(given: Sequence[int] | None, count: int) -> Sequence[int]:
    if given is None:
        return [0] * count
    if not isinstance(given, Sequence) or len(given) != count:
        raise ConfigError(f"priority is a list of one number per prompt, of which there are {count}")
    return given


def _prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if isinstance(prompts, bytes) or not hasattr(prompts, "__iter__"):
        raise RequestError(f"prompts are text, token ids, or a list of those, not {type(prompts).__name__}")
    many = list(prompts)
    return [many] if many and isinstance(many[0], Integral) else many  # type: ignore[list-item,return-value]


def _conversations(messages: Messages | Sequence[Messages]) -> list[Messages]:
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise RequestError(f"a conversation is a list of messages, not {shown(messages)}")
    alone = bool(messages) and isinstance(messages[0], Mapping)
    return [messages] if alone else list(messages)  # type: ignore[list-item,arg-type]


def _spread(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int, defaults: Mapping[str, Any]
) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams.parse(defaults)
    many = list(params) if isinstance(params, Sequence) else [params] * count
    for own in many:
        if not isinstance(own, SamplingParams):
            raise ConfigError(f"sampling parameters are given as SamplingParams(...), not as {type(own).__name__}")
    if len(many) != count:
        raise ConfigError(f"there are {count} prompts but {len(many)} sampling parameters; give one or as many")
    return many
