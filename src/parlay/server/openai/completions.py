"""`/v1/completions`: a prompt, and what comes after it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from parlay.server.context import Context
from parlay.server.errors import ApiError
from parlay.server.openai.answer import Answer
from parlay.server.openai.bodies import read_body
from parlay.server.openai.choice import ChoiceDelta, ChoicesShape
from parlay.server.openai.fields import CompletionFields, check_model, make_params, parse
from parlay.server.openai.logprobs import Offsets, completion_logprobs, prompt_logprobs, prompt_offsets
from parlay.server.openai.prompts import completion_prompts, predicted
from parlay.server.openai.response_format import CHAT, AnswerForm, form_of
from parlay.server.openai.tool_formats import format_of
from parlay.server.openai.tools import NO_TOOLS
from parlay.types.output import RequestOutput
from parlay.types.params import SamplingParams
from parlay.types.prompt import Prompt


async def completions(context: Context) -> Answer:
    """Answer a request.

    Raises:
        ApiError, RequestError: something in the body cannot be served.
    """
    shape, prompts = await read_body(context, _read)
    return Answer(prompts, shape)


def _read(context: Context, body: dict[str, Any]) -> tuple["CompletionShape", list[Prompt]]:
    fields, sampling, warnings = parse(CompletionFields, body, strict=context.config.strict_fields)
    check_model(fields.model, context.engine.model_names)
    without_output = fields.echo and sampling.get("max_tokens") == 0 and type(sampling["max_tokens"]) is not bool
    if without_output:
        sampling["max_tokens"] = 1  # the least that the engine computes
    if sampling.get("logprobs") is False:  # as chat completions have it
        del sampling["logprobs"]
    scored = "prompt_logprobs" in sampling
    if fields.echo and "logprobs" in sampling:
        sampling.setdefault("prompt_logprobs", sampling["logprobs"])
    codec, longest, given = context.engine.codec, context.engine.max_model_len, sampling.get("structured_outputs")
    form = form_of(fields, NO_TOOLS, format_of("auto", None), codec.tokenizer, given, CHAT)
    sampling["structured_outputs"] = form.structured
    sampling["prediction"] = predicted(fields, context.engine.codec, context.config)
    params = make_params({**context.engine.sampling_defaults, **sampling}, context.config)
    check_stream(fields.stream, params, scored=scored)
    if fields.prompt is None:
        raise ApiError(400, "the field prompt is required", param="prompt")
    prompts = completion_prompts(
        fields.prompt, codec, context.config, longest, add_special_tokens=fields.add_special_tokens
    )
    shape = CompletionShape(
        context=context,
        fields=fields,
        params=params,
        warnings=(*warnings, *form.warnings),
        form=form,
        without_output=without_output,
        scored=scored,
    )
    return shape, prompts


def check_stream(stream: bool, params: SamplingParams, *, scored: bool) -> None:
    """Refuse to stream what is known only at the end.

    Raises:
        ApiError: it is only known then.
    """
    if stream and params.candidates > params.n:
        raise ApiError(400, "best_of above n cannot be streamed; leave one of them out", param="best_of")
    if stream and scored:
        raise ApiError(400, "prompt_logprobs cannot be streamed; leave stream out", param="prompt_logprobs")


@dataclass(slots=True, kw_only=True)
class CompletionShape(ChoicesShape):
    """The format of completions."""

    id_prefix: ClassVar[str] = "cmpl"
    object_name: ClassVar[str] = "text_completion"

    fields: CompletionFields
    form: AnswerForm
    scored: bool  # whether the prompt's log-probabilities were asked for by their own name
    offsets: dict[int, Offsets] = field(default_factory=dict)

    def events(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """Yield a chunk for each choice that has grown."""
        for choice in self._news(number, output):
            yield {**self.head, "choices": [choice]}

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """Return all choices, those of one prompt together."""
        return {**self.head, "choices": [c for i, output in enumerate(outputs) for c in self._news(i, output)]}

    def named(self, error: ApiError) -> ApiError:
        """Return an error of the engine in the words of the request."""
        return self.form.named(error)

    def _news(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        for one in output.outputs:
            index = number * self.params.n + one.index
            choice, begun = self.choice(index, output), index in self.offsets
            if not choice.finished and (news := choice.update(one)):
                yield self._choice(index, output, news, begun=begun)

    def _choice(self, index: int, output: RequestOutput, news: ChoiceDelta, *, begun: bool) -> dict[str, Any]:
        text, tokens = news.text, news.tokens
        positions: list[Any] = list(news.logprobs)
        sources = news.sources
        if self.without_output:
            text, tokens, positions, sources = "", (), [], None if sources is None else []
        ids, codec = output.prompt_token_ids, self.context.engine.codec
        before, prompt_places = "", list[int]()
        if self.fields.echo and not begun:
            before = output.prompt if output.prompt is not None else codec.decode(ids, skip_special_tokens=False)
            text = before + text
            if sources is not None:
                sources = [(before, "prompt", True), *sources]
            if output.prompt_logprobs is not None and self.params.logprobs is not None:
                prompt_places = prompt_offsets(codec, ids, before)
                positions = [*output.prompt_logprobs, *positions]
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": "length" if self.without_output else news.finish,
            "stop_reason": None if self.without_output else news.stop,
        }
        if not begun:
            skip = self.params.skip_special_tokens
            self.offsets[index] = Offsets(codec, ids, skip_special_tokens=skip, begin=len(before))
        if self.params.logprobs is not None:
            new = self.offsets[index].add(tokens, news.text, finished=news.finish is not None)
            places = [*prompt_places, *new]
            scored = (*ids, *tokens) if prompt_places else tokens
            choice["logprobs"] = completion_logprobs(
                codec, scored, positions, places, as_ids=self.fields.return_tokens_as_token_ids
            )
        if sources is not None:
            choice["sources"] = sources
        if self.fields.return_token_ids:
            choice["token_ids"] = () if self.without_output else news.tokens
            if not begun:
                choice["prompt_token_ids"] = output.prompt_token_ids
        if self.scored and output.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        return choice
