"""One choice of an answer while it grows: what is new, as events show it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from parlay.engine.attribution import Attribution
from parlay.types.output import CompletionOutput, Logprob, RequestOutput

Sources = list[tuple[str, str, bool]]


@dataclass(frozen=True, slots=True)
class News:
    """What a completion has that was not shown before.

    Attributes:
        text: the next characters.
        tokens: the next tokens.
        logprobs: theirs, where asked for.
        sources: pieces of the text, who guessed each, and whether it was accepted or is not part of the text; where
            asked for.
        finish: why it ended; None while it runs.
        stop: the stop string or token that ended it.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[dict[int, Logprob], ...]
    sources: Sources | None
    finish: str | None
    stop: str | int | None

    def __bool__(self) -> bool:
        return bool(self.text or self.logprobs or self.finish)


class Choice:
    """The part of one completion that was not shown yet."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], *, sources: bool = False, skip_special_tokens: bool = True
    ) -> None:
        """Begin behind the tokens of a prompt, with nothing shown; `sources` asks for them."""
        self._pieces = Attribution(tokenizer, prompt, skip_special_tokens=skip_special_tokens) if sources else None
        self._held: list[int] = []  # tokens
        self.finished = False

    def update(self, one: CompletionOutput) -> News:
        """Return what is new, of a completion that has what came since the last time."""
        finished, logprobs, pieces = one.finish_reason is not None, one.logprobs or (), None
        if self._pieces is not None:
            new = self._pieces.add(one.token_ids, one.sources, one.text, one.rejected or (), finished=finished)
            pieces = [(text, source or "target", accepted) for text, source, accepted in new]
        self._held += one.token_ids
        tokens: tuple[int, ...] = ()
        # Held back with its text, so that pieces and tokens of one event belong together.
        if one.text or logprobs or finished:
            tokens, self._held, self.finished = tuple(self._held), [], finished
        return News(one.text, tokens, logprobs, pieces, one.finish_reason, one.stop_reason)


def usage(outputs: list[RequestOutput], *, without_output: bool = False, reasoning_tokens: int = 0) -> dict[str, Any]:
    """Return a request's usage, in OpenAI's format.

    Args:
        outputs: the newest of each prompt.
        without_output: nothing was asked for beyond the prompt.
        reasoning_tokens: of the output.
    """
    ones = [one for output in outputs for one in output.outputs]
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = 0 if without_output else sum(one.metrics.emitted for one in ones)
    accepted = sum(one.metrics.accepted for one in ones)
    undrafted: Counter[str] = Counter()
    for one in ones:
        undrafted.update(dict(one.metrics.undrafted))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(output.metrics.cached_tokens for output in outputs)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(one.metrics.drafted for one in ones) - accepted,
            "reasoning_tokens": reasoning_tokens,
            "audio_tokens": 0,
        },
        "speculation": {
            "steps": sum(one.metrics.steps for one in ones),
            "drafts": sum(one.metrics.drafts for one in ones),
            "draft_tokens": sum(one.metrics.drafted for one in ones),
            "without_draft": dict(undrafted.most_common()),
        },
    }
