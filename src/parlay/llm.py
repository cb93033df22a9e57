"""The offline interface: prompts in, completions out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parlay.config import EngineConfig, SpeculativeConfig, build
from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.errors import ConfigError, RequestError
from parlay.types.output import RequestOutput
from parlay.types.params import SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]
Messages = Sequence[dict[str, str]]


class LLM:
    """A target model, ready to complete prompts.

    Example:
        >>> llm = LLM("tiny-code", speculative_config={"method": "ngram", "num_speculative_tokens": 5})
        >>> llm.generate("def fibonacci(n):", SamplingParams(temperature=0, max_tokens=32))
    """

    def __init__(
        self,
        model: str = "tiny-code",
        *,
        speculative_config: SpeculativeConfig | Mapping[str, Any] | str | None = None,
        **options: Any,
    ) -> None:
        """Load a model.

        Args:
            model: a directory in Hugging Face format, or the name of an embedded model.
            speculative_config: how to speculate; None decodes plainly.
            **options: fields of `EngineConfig`.

        Raises:
            ConfigError: an unknown option, or one out of range.
            ModelError: a model cannot be found, read or served.
            CapacityError: memory does not suffice for one sequence.
        """
        config = build(EngineConfig, {"model": model, **options}, "option")
        self.engine = Engine(config, SpeculativeConfig.parse(speculative_config))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt.

        Args:
            prompts: one or many; each is text, token ids, or a mapping with `prompt` or `prompt_token_ids`.
            sampling_params: for all, or one for each prompt.
            progress: show a progress bar on stderr; None shows one on a terminal when there are many prompts.

        Returns:
            One output a prompt, in order. Of many prompts, one that cannot be served has `error` set and costs the
            others nothing.

        Raises:
            RequestError: the only prompt cannot be served.
            ConfigError: the numbers of prompts and parameters differ.
        """
        many = _prompts(prompts)
        params = _spread(sampling_params, len(many))
        groups: list[list[Request]] = []
        errors: dict[int, RequestError] = {}
        for i, (prompt, own) in enumerate(zip(many, params, strict=True)):
            try:
                groups.append(self.engine.add(_content(prompt), own))
            except RequestError as error:
                if len(many) == 1:
                    raise
                errors[i] = error
                groups.append([])
        try:
            self._run([r for group in groups for r in group], progress)
        except BaseException:
            # Interrupted or failed: leave nothing behind for the next call.
            for group in groups:
                for request in group:
                    self.engine.abort(request)
            raise
        return [self._output(i, many[i], group, errors.get(i)) for i, group in enumerate(groups)]

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Complete one or many conversations through the model's chat template; otherwise as `generate`."""
        many = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        prompts = [self.engine.codec.chat(m) for m in many]  # type: ignore[arg-type]
        return self.generate(prompts, sampling_params, progress=progress)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Yield what one prompt's completions have after every step that emitted something for them.

        Raises:
            RequestError: the prompt cannot be served.
        """
        requests = self.engine.add(_content(prompt), sampling_params or SamplingParams())
        try:
            while any(r.finish_reason is None for r in requests):
                moved = self.engine.step()
                if any(r in moved for r in requests):
                    yield self._output(0, prompt, requests, None)
        finally:
            for request in requests:
                self.engine.abort(request)

    def _run(self, requests: list[Request], progress: bool | None) -> None:
        show = progress if progress is not None else len(requests) > 1
        if not show:
            while any(r.finish_reason is None for r in requests):
                self.engine.step()
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
        disable = progress is None and not console.is_terminal
        with Progress(*columns, console=console, transient=True, disable=disable) as bar:
            task = bar.add_task("generating", total=len(requests), speed=0.0)
            before = self.engine.stats.emitted
            while any(r.finish_reason is None for r in requests):
                if any(r.finish_reason for r in self.engine.step()):
                    done = sum(r.finish_reason is not None for r in requests)
                    elapsed = bar.tasks[task].elapsed or 1e-9
                    speed = (self.engine.stats.emitted - before) / elapsed
                    bar.update(task, completed=done, speed=speed)

    def _output(
        self, request_id: int, prompt: Prompt, requests: list[Request], error: RequestError | None
    ) -> RequestOutput:
        content = _content(prompt)
        return RequestOutput(
            request_id=requests[0].request_id if requests else request_id,
            prompt=content if isinstance(content, str) else None,
            prompt_token_ids=requests[0].prompt_tokens if requests else (),
            outputs=tuple(self.engine.completion(r, j) for j, r in enumerate(requests)),
            finished=all(r.finish_reason is not None for r in requests),
            error=error,
        )


def _prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _content(prompt: Prompt) -> Any:
    """Return a mapping's text or token ids; what is neither is left for the engine to refuse."""
    if isinstance(prompt, Mapping) and len(prompt) == 1:
        return prompt.get("prompt", prompt.get("prompt_token_ids", prompt))
    return prompt


def _spread(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise ConfigError(f"there are {count} prompts but {len(params)} sampling parameters; give one or as many")
    return list(params)
