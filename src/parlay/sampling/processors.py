"""Changes to a request's logits before temperature and filters, by its parameters.

Order: penalties, bias, the user's own processors, then everything that forbids tokens, so that forbidden tokens stay
so. Rows are edited with numpy: single additions, products and quotients in float32, whose bits depend on their
operands alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import ClassVar

import numpy as np
from torch import Tensor

from parlay.errors import RequestError
from parlay.sampling.token_counts import TokenCounts
from parlay.types.params import SamplingParams
from parlay.types.processor import RowProcessor


class Processor(ABC):
    """One link of a request's chain; see `RowProcessor`.

    Attributes:
        pure: whether it may be called at nodes that are never emitted, and is worth it for drafts.
    """

    pure: ClassVar[bool] = True

    @abstractmethod
    def process(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Change `row` in place."""

    def process_draft(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Change a proposer's row in place."""
        if self.pure:
            self.process(known, path, row)


class ProcessorChain:
    """A request's processors, applied one after another."""

    def __init__(self, links: Sequence[Processor]) -> None:
        self._links = tuple(links)

    def process(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Apply every link."""
        for link in self._links:
            link.process(known, path, row)

    def process_draft(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Apply the pure links, to a proposer's row."""
        for link in self._links:
            link.process_draft(known, path, row)


class Penalties(Processor):
    """Makes tokens that occurred less likely (or more), in vLLM's way.

    First repetition, for tokens of prompt and output: positive logits are divided by it, others multiplied. Then, for
    tokens of the output: frequency times the number of occurrences is subtracted, then presence.

    Source of the first: Keskar et al. 2019 (arXiv 1909.05858).
    """

    def __init__(self, repetition: float, frequency: float, presence: float, prompt: Sequence[int]) -> None:
        self._repetition = np.float32(repetition)
        self._frequency = np.float32(frequency)
        self._presence = np.float32(presence)
        self._counts = TokenCounts(prompt if repetition != 1 else ())
        self._counted = 0

    def process(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Scale and subtract."""
        for token in known[self._counted :]:
            self._counts.add(token)
        self._counted = len(known)
        for token in path:
            self._counts.add(token)
        ids, counts = self._counts.table
        logits = row.numpy()
        own = logits[ids]
        with np.errstate(over="ignore", invalid="ignore"):
            if self._repetition != 1:
                own = np.where(own > 0, own / self._repetition, own * self._repetition)
            own -= self._frequency * counts
            own -= self._presence * (counts > 0)
        logits[ids] = own
        for token in reversed(path):
            self._counts.take_back(token)


class LogitBias(Processor):
    """Adds to some tokens' logits."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._ids = np.array(list(bias), dtype=np.int64)
        self._bias = np.array(list(bias.values()), dtype=np.float32)

    def process(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Add."""
        row.numpy()[self._ids] += self._bias


def _takes_prompt(function: Callable[..., Tensor]) -> bool:
    """Whether a function has a parameter for the prompt's token ids before the two others, as vLLM's may."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins have none
        return False
    needed = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(needed) == 3


class CustomProcessors(Processor):
    """The user's functions: called once for each emitted token, so never for a node."""

    pure = False

    def __init__(self, functions: Sequence[Callable[..., Tensor]], prompt: Sequence[int]) -> None:
        self._functions = [
            (getattr(one, "__name__", type(one).__name__), one, _takes_prompt(one)) for one in functions
        ]
        self._prompt = prompt

    def process(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Call them in order, each with a separate list.

        Raises:
            RequestError: one of them raises, does not return as many logits as it was given, or leaves nothing to
                draw from.
        """
        for name, function, takes_prompt in self._functions:
            before = [[*self._prompt]] if takes_prompt else []
            try:
                logits = function(*before, [*known, *path], row)
            except Exception as error:  # it may raise anything, and other requests share the step
                raise RequestError(f"the logits processor {name} raised {type(error).__name__}: {error}") from error
            if not isinstance(logits, Tensor) or logits.shape != row.shape:
                raise RequestError(f"the logits processor {name} must return a tensor like the logits it is given")
            if logits is not row:
                try:
                    row.copy_(logits)
                except RuntimeError as error:  # a sparse tensor, for example
                    raise RequestError(f"the logits processor {name} returned no plain tensor: {error}") from error
            if not float(row.max()) > -np.inf:  # the largest of a row with NaN is NaN
                raise RequestError(f"the logits processor {name} left no token to emit, or NaN values")


class AllowedTokens(Processor):
    """Forbids all tokens but some."""

    def __init__(self, allowed: Sequence[int]) -> None:
        self._ids = np.array(allowed, dtype=np.int64)

    def process(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Keep the allowed ones."""
        logits = row.numpy()
        kept = logits[self._ids]
        logits.fill(-np.inf)
        logits[self._ids] = kept


class MinTokens(Processor):
    """Forbids tokens that end the output until it has a length."""

    def __init__(self, min_tokens: int, ends: frozenset[int]) -> None:
        self._min_tokens = min_tokens
        self._ids = np.array(sorted(ends), dtype=np.int64)

    def process(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Forbid while the output is shorter."""
        if len(known) + len(path) < self._min_tokens:
            row.numpy()[self._ids] = -np.inf


class BadWords(Processor):
    """Forbids the token that would complete a sequence of tokens in the output.

    Where no other token is left, the sequence may be completed: there must be a token to emit.
    """

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._words = [(tuple(word[:-1]), word[-1]) for word in words]
        self._longest = max(len(word) for word in words) - 1

    def process(self, known: Sequence[int], path: Sequence[int], row: Tensor) -> None:
        """Forbid what would complete a word."""
        recent = (*known[max(0, len(known) - self._longest) :], *path)
        ids = [last for begin, last in self._words if recent[len(recent) - len(begin) :] == begin]
        if not ids:
            return
        logits = row.numpy()
        before = logits[ids]
        logits[ids] = -np.inf
        if logits.max() == -np.inf:
            logits[ids] = before


def prepare(
    params: SamplingParams,
    *,
    prompt: Sequence[int],
    ends: frozenset[int],
    bad_words: Sequence[Sequence[int]],
    vocab_size: int,
    further: Sequence[Processor] = (),
) -> RowProcessor | None:
    """Return what changes a request's logits, or None where nothing does.

    Args:
        params: parameters of the request, whose token ids are all below `vocab_size`.
        prompt: token ids of its prompt.
        ends: tokens that end the output, which `min_tokens` forbids at first.
        bad_words: the tokens of `params.bad_words`, each at least one.
        vocab_size: size of the vocabulary.
        further: links to put at the end.

    Raises:
        RequestError: the parameters leave no token to emit.
    """
    links: list[Processor] = []
    if params.penalises:
        links.append(Penalties(params.repetition_penalty, params.frequency_penalty, params.presence_penalty, prompt))
    if params.logit_bias:
        links.append(LogitBias(params.logit_bias))
    if params.logits_processors:
        links.append(CustomProcessors(params.logits_processors, prompt))
    if params.allowed_token_ids is not None:
        links.append(AllowedTokens(params.allowed_token_ids))
    if params.min_tokens and ends:
        links.append(MinTokens(params.min_tokens, ends))
    if bad_words:
        links.append(BadWords(bad_words))
    forbidden = {word[0] for word in bad_words if len(word) == 1} | (ends if params.min_tokens else set())
    # Not a set of all tokens, of which there may be a quarter of a million.
    if params.allowed_token_ids is None:
        is_left = sum(token < vocab_size for token in forbidden) < vocab_size
    else:
        is_left = not forbidden.issuperset(params.allowed_token_ids)
    if not is_left:
        raise RequestError(
            "allowed_token_ids, bad_words and min_tokens together leave no token to emit; loosen one of them",
            param="allowed_token_ids",
        )
    links.extend(further)
    return ProcessorChain(links) if links else None
