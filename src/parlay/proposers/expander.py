"""The one loop over the levels of drafts, whoever guesses.

A head says what its first guess follows from (`begin`), makes the states of a level out of the guesses of the one
before (`advance`) and gives their logits (`score`). The rest is the same for all: who drafts how far, drawing, and
making drafts of what was drawn.

Guesses stay where the kernels write them: a level reads those of the level before from memory, and only at the end
all are read out at once. Requests with the longest drafts come first, so that those still drafting are always the
leading rows of the same memory, and the pass of a level depends on nothing but how many there are. Each is recorded,
so that between two levels no Python runs; more requests than a recorded pass has rows take turns. Where a request has
a processor Python must run: its rows are shown to it before a token is drawn of them.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.proposers.base import DeviceProposer
from parlay.proposers.draws import Draws
from parlay.proposers.recorder import Recorder
from parlay.runner.graphs import MOST_ROWS
from parlay.types.draft import Draft
from parlay.types.plan import Span, SpanError

MOST_LEVELS = 64  # of a draft


@dataclass(frozen=True, slots=True)
class Start:
    """Where one request drafts from.

    Attributes:
        index: of its span.
        span: its part of the plan.
        row: of the states that drafts begin with: the one that the first guess follows from.
        emitted: tokens of this step, the last of which the first guess comes after.
        position: of the first token to guess.
        length: how many tokens to draft, at least 1.
    """

    index: int
    span: Span
    row: int
    emitted: tuple[int, ...]
    position: int
    length: int


class Head(DeviceProposer):
    """A proposer with weights, which guesses for the leading rows of its own memory, level by level.

    Attributes:
        source: who guessed, in drafts.
        recordable: whether `score` calls kernels alone. `advance` always does, unless the recorder says otherwise.
        at_once: whether no guess depends on those before it, and `score_at` makes the logits of all levels at once.
        ids: the target's ids `[D]` of the tokens that it can guess; None if these are the target's.
    """

    source: ClassVar[str]
    recordable: bool = True
    at_once: bool = False
    ids: Tensor | None = None

    @abstractmethod
    def begin(self, turn: Sequence[Start], states: Tensor) -> None:
        """Write whatever the levels read besides guesses.

        Args:
            turn: who drafts, longest first; the i-th has row i.
            states: `[n, d]`, of which each of them begins with its `row`.
        """

    @abstractmethod
    def advance(self, level: int, rows: int) -> None:
        """Make the states of level `level`, counted from 0, by kernels alone.

        It reads the expander's `tokens[level, :rows]`, which the level before has guessed, or at level 0 what the
        step has emitted.
        """

    @abstractmethod
    def score(self, level: int, rows: int) -> Tensor:
        """Return float32 logits `[rows, D]` of the states that `advance` has just made."""

    def score_at(self, places: Tensor) -> Tensor:
        """Return float32 logits `[n, V]` of states, by int64 `[n]` level times `MOST_ROWS` plus row."""
        raise NotImplementedError


class Expander:
    """Makes the drafts of a head's requests.

    Attributes:
        tokens: int64 `[levels + 1, MOST_ROWS]`: first the newest tokens that are known, then each level's guesses.
        likely: float32 `[levels, MOST_ROWS]`, how likely each guess is to the head.
    """

    def __init__(self, head: Head, kernels: Kernels, recorder: Recorder, levels: int, vocab_size: int) -> None:
        """Allocate for drafts of `levels` tokens.

        Args:
            head: whose guesses are drawn.
            kernels: to draw with.
            recorder: of the head's passes.
            levels: most tokens of a draft.
            vocab_size: of the target.
        """
        self._head, self._kernels, self._recorder, self._vocab_size = head, kernels, recorder, vocab_size
        self.tokens = torch.zeros((levels + 1, MOST_ROWS), dtype=torch.int64)
        self.likely = torch.zeros((levels, MOST_ROWS))
        self._draws = Draws(levels, MOST_ROWS)

    def expand(self, starts: Sequence[Start], states: Tensor) -> Iterator[tuple[Start, Draft]]:
        """Draft from every start.

        Args:
            starts: of different requests, in any order.
            states: `[n, d]`, of which they name rows.

        Raises:
            SpanError: a request's processor failed.
        """
        ordered = sorted(starts, key=lambda start: -start.length)
        for first in range(0, len(ordered), MOST_ROWS):
            turn = ordered[first : first + MOST_ROWS]
            yield from zip(turn, self._drafts(turn, states), strict=True)

    def _drafts(self, turn: list[Start], states: Tensor) -> list[Draft]:
        head, rows = self._head, len(turn)
        self.tokens[0, :rows] = torch.tensor([start.emitted[-1] for start in turn])
        self._draws.prepare([start.span for start in turn], [start.position for start in turn])
        head.begin(turn, states)
        lengths = [start.length for start in turn]
        counts = [sum(length > level for length in lengths) for level in range(lengths[0])]
        if any(start.span.processor is not None for start in turn):
            lengths = self._guided(turn, counts)
        elif head.at_once:
            self._recorder.run((("advance", *at), partial(head.advance, *at)) for at in enumerate(counts))
            self._draw_at_once(counts)
        elif head.recordable:
            filtered = self._draws.filtered
            self._recorder.run(((filtered, *at), partial(self._level, *at)) for at in enumerate(counts))
        else:
            for level, count in enumerate(counts):
                self._draw(level, self._scored(level, count))
        tokens = self.tokens[1 : len(counts) + 1, :rows].T.tolist()
        likely = self.likely[: len(counts), :rows].T.tolist()
        return [
            Draft.chain(own[:length], head.source, sure[:length])
            for own, sure, length in zip(tokens, likely, lengths, strict=True)
        ]

    def _level(self, level: int, rows: int) -> None:
        """Guess for the leading requests, by kernels alone."""
        self._head.advance(level, rows)
        self._draw(level, self._head.score(level, rows))

    def _scored(self, level: int, rows: int) -> Tensor:
        """Return the logits `[rows, D]` of a level whose scores are not recorded with the rest of it."""
        self._recorder.run([(("advance", level, rows), partial(self._head.advance, level, rows))])
        return self._head.score(level, rows)

    def _draw(self, level: int, logits: Tensor) -> None:
        rows = len(logits)
        tokens, likely = self.tokens[level + 1, :rows], self.likely[level, :rows]
        self._draws.draw(self._kernels, level, logits, tokens, likely, self._head.ids)

    def _draw_at_once(self, counts: Sequence[int]) -> None:
        """Draw the guesses of all levels, of which the i-th has `counts[i]`."""
        made = torch.tensor([i * MOST_ROWS + row for i, count in enumerate(counts) for row in range(count)])
        tokens, likely = self.tokens[1:].view(-1), self.likely.view(-1)
        for places in torch.split(made, MOST_ROWS):
            logits = self._head.score_at(places)
            tokens[places], likely[places] = self._draws.draw_at(self._kernels, places, logits)

    # ---------------------------------------------------------------------------------------------- processors

    def _guided(self, turn: list[Start], counts: Sequence[int]) -> list[int]:
        """Run all levels, each with its rows shown to the processors of their requests.

        Returns:
            How long each draft is. It ends early where nothing is left to guess.
        """
        lengths = [start.length for start in turn]
        for level, count in enumerate(counts):
            logits = self._scored(level, count)
            for row, (start, scores) in enumerate(zip(turn, logits, strict=False)):
                if start.span.processor is not None and level < lengths[row]:
                    self._guide(start, [*start.emitted, *self.tokens[1 : level + 1, row].tolist()], scores)
                    if float(scores.max()) == -torch.inf:
                        lengths[row] = level
            self._draw(level, logits)
        return lengths

    def _guide(self, start: Start, path: list[int], scores: Tensor) -> None:
        """Show a request's processor the scores `[D]` of what comes after `path`, in the target's vocabulary."""
        ids, row = self._head.ids, scores
        if ids is not None:
            row = torch.full((self._vocab_size,), -torch.inf)
            row[ids] = scores
        assert start.span.processor is not None
        try:
            start.span.processor.guide(start.span.output, path, row)
        except Exception as error:
            raise SpanError(start.span.request_id) from error
        if ids is not None:
            scores.copy_(row[ids])
