"""Answers of choices while they grow: what is new, as events show it."""

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import uuid4

from tokenizers import Tokenizer

from parlay.engine.attribution import Attribution
from parlay.server.openai.answer import AnswerShape
from parlay.server.openai.fields import CommonFields
from parlay.types.output import CompletionOutput, Logprob, RequestOutput

Sources = list[tuple[str, str, bool]]


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What a completion has that was not shown before.

    Attributes:
        text: the next characters.
        tokens: the next tokens.
        logprobs: log-probabilities of the tokens, where asked for.
        sources: pieces of the text, who drafted each, and whether it was accepted or is not part of the text; where
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
        """Start behind the tokens of a prompt, with nothing shown; `sources` asks for them."""
        self._pieces = Attribution(tokenizer, prompt, skip_special_tokens=skip_special_tokens) if sources else None
        self._held: list[int] = []  # tokens
        self.finished = False

    def update(self, one: CompletionOutput) -> ChoiceDelta:
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
        return ChoiceDelta(one.text, tokens, logprobs, pieces, one.finish_reason, one.stop_reason)


@dataclass(slots=True, kw_only=True)
class ChoicesShape(AnswerShape, ABC):
    """What the answers of completions and chat completions have in common.

    Attributes:
        head: begins every answer and chunk.
        choices: the choices that have begun.
    """

    id_prefix: ClassVar[str]
    object_name: ClassVar[str]

    fields: CommonFields
    head: dict[str, Any] = field(init=False)
    choices: dict[int, Choice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.head = {
            "id": f"{self.id_prefix}-{uuid4().hex}",
            "object": self.object_name,
            "created": self.context.now(),
            "model": self.context.engine.model_name,
            "system_fingerprint": self.context.engine.numerics_id,
        }

    def closing(self) -> dict[str, Any]:
        """Return a chunk without choices."""
        return {**self.head, "choices": []}

    def choice(self, index: int, output: RequestOutput) -> Choice:
        """Return a choice, which begins if it has not."""
        if index not in self.choices:
            self.choices[index] = Choice(
                self.context.engine.codec.tokenizer,
                output.prompt_token_ids,
                sources=self.fields.return_sources or self.params.return_rejected,
                skip_special_tokens=self.params.skip_special_tokens,
            )
        return self.choices[index]
