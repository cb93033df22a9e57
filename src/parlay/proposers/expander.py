"""The one loop over the levels of drafts, for all heads.

A head takes the states that the first nodes follow from (`begin`), computes the states of a level from the nodes of
the one before (`advance`) and gives their logits (`score`). The rest is the same for all: which requests draft how
far, drawing, and making drafts of what was drawn.

Nodes stay where the kernels write them: a level reads those of the level before from memory, and only at the end are
all of them copied to the host. Requests with the longest drafts come first, so that those still drafting are always
the leading rows of the same memory, and the pass of a level depends only on their number. Each is recorded, so that
no Python runs between two levels; more requests than a recorded pass has rows take turns. Where a request has a
processor, Python has to run: its rows are passed to it before a token is drawn.

This file drafts chains; `branching` adds what trees need.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from parlay.kernels.uploads import fetched
from parlay.proposers.base import Runtime
from parlay.proposers.branching import Branching, node_places
from parlay.proposers.device_verdict import Shift
from parlay.proposers.draft_head import DraftHead, Start
from parlay.proposers.draws import Draws
from parlay.proposers.pass_recorder import PassRecorder
from parlay.runner.graphs import MOST_ROWS
from parlay.sampling.bound_processor import BoundProcessor
from parlay.types.draft import Draft
from parlay.types.plan import SpanError

MOST_LEVELS = 64  # of a draft


@dataclass(slots=True)
class DraftGroup:
    """Requests that draft together.

    Attributes:
        starts: their starts, longest first.
        width: nodes of each level that their drafts continue from; 1 for chains.
        private: whether distributions are kept.
        lengths: length of each one's chain, which a processor may end early.
    """

    starts: list[Start]
    width: int
    private: bool
    lengths: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.lengths = [start.length for start in self.starts]

    @property
    def rows(self) -> Tensor:
        """Row of the state that each one follows from, int64 `[requests]` on the host."""
        return torch.tensor([start.row for start in self.starts], dtype=torch.int64, device="cpu")


class Expander:
    """Makes the drafts of a head's requests.

    Attributes:
        tokens: int64 `[levels + 1, MOST_ROWS]`: first the newest tokens that are known, then each level's nodes.
        likely: float32 `[levels, MOST_ROWS]`, each node's probability to the head.
        recorder: recorder of the head's passes.
    """

    def __init__(
        self, head: DraftHead, runtime: Runtime, levels: int, vocab_size: int, *, records: bool = True
    ) -> None:
        """Allocate for drafts of `levels` tokens.

        Args:
            head: the head that drafts.
            runtime: what the head may use.
            levels: most tokens of a draft.
            vocab_size: size of the target's vocabulary.
            records: whether passes may be recorded where a single rank has the head's layers.
        """
        self._keep_distributions, self._processors = runtime.keep_distributions, runtime.processors
        self._head, self._kernels, self._vocab_size = head, runtime.kernels, vocab_size
        self.recorder = PassRecorder(runtime.kernels, usable=records and runtime.group.size == 1)
        self.tokens = torch.zeros((levels + 1, MOST_ROWS), dtype=torch.int64)
        self.likely = torch.zeros((levels, MOST_ROWS))
        self._uploads = runtime.uploads
        self._draws = Draws(levels, MOST_ROWS, runtime.uploads)
        self._branching = Branching(head, runtime.kernels, self.tokens, runtime.uploads)

    def most(self, width: int) -> int:
        """Return how many requests of such a width one group has at most."""
        return MOST_ROWS // max(width, self._head.rows)

    def groups(self, starts: Sequence[Start]) -> list[DraftGroup]:
        """Return the groups of requests that draft together; starts may come in any order."""
        alike: dict[tuple[int, bool], list[Start]] = {}  # by width, and by whether distributions are kept
        for start in sorted(starts, key=lambda start: -start.length):
            # A processor is given one path only.
            width, sampled = start.width, start.span.params.temperature > 0
            kind = 1 if start.span.request_id in self._processors else width, self._keep_distributions and sampled
            alike.setdefault(kind, []).append(start)
        return [
            DraftGroup(own[first : first + most], *kind)
            for kind, own in alike.items()
            for most in [self.most(kind[0])]
            for first in range(0, len(own), most)
        ]

    def place(self, group: DraftGroup) -> None:
        """Write what the levels of a group read; it is there once uploads have been sent."""
        starts, width, private = group.starts, group.width, group.private
        if width > 1:
            self._branching.prepare(starts, width, private=private)
        else:
            spans, positions = [start.span for start in starts], [start.position for start in starts]
            self._draws.prepare(spans, positions, private=private)
        self._uploads.write(self.tokens[0, : len(starts)], np.array([start.emitted[-1] for start in starts]))
        self._head.place(starts, width)

    def shift(self, shift: Shift) -> None:
        """Have the group that was placed start later, by operations where kernels read."""
        if shift.width > 1:
            self._branching.shift(shift)
        else:
            self._draws.shift(shift.ahead)
        self.tokens[0, : len(shift.newest)] = shift.newest
        self._head.shift(shift)

    def expand(self, groups: Sequence[DraftGroup], states: Tensor, rows: Tensor) -> Iterator[tuple[Start, Draft]]:
        """Draft from every start.

        Args:
            groups: the groups, of which the first was placed and sent.
            states: `[n, d]`, which the starts' rows refer to.
            rows: int64 `[requests]`, those rows of the first group, where kernels read.

        Raises:
            SpanError: a request's processor failed.
        """
        if len(groups) > 1:  # the passes of one may overwrite the states
            states = states.clone()
        for i, group in enumerate(groups):
            if i:
                self.place(group)
                (rows,) = self._uploads.send([group.rows])
            made = fetched(self._kernels, self.run(group, states, rows))
            yield from zip(group.starts, self.drafts(group, group.starts, made), strict=True)

    def run(self, group: DraftGroup, states: Tensor, rows: Tensor) -> list[Tensor]:
        """Run the levels of a group that was placed; return what `drafts` reads, where kernels have written it.

        Raises:
            SpanError: a request's processor failed.
        """
        self._head.begin(states, rows)
        counts = [sum(start.length > level for start in group.starts) for level in range(group.starts[0].length)]
        return self._run_tree(group, counts) if group.width > 1 else self._run_chain(group, counts)

    def drafts(self, group: DraftGroup, starts: Sequence[Start | None], made: Sequence[Tensor]) -> list[Draft]:
        """Return the drafts of a group.

        Args:
            group: the group.
            starts: its starts, of which some may end earlier or, where None, have ended.
            made: what `run` has returned, on the host.
        """
        if group.width > 1:
            return self._branching.drafts(starts, group.width, made)
        head, lengths = self._head, group.lengths
        if starts is not group.starts:
            lengths = [*map(min, lengths, (0 if start is None else start.length for start in starts))]
        tokens, *rest = (one.tolist() for one in made)
        if group.private:  # a node's own probability may decide nothing, so it is left out
            return [
                Draft.chain(
                    own[:length],
                    head.source,
                    None,
                    [self._draws.distribution(i, row, head.ids) for i in range(length)],
                )
                for row, (own, length) in enumerate(zip(tokens, lengths, strict=True))
            ]
        return [
            Draft.chain(own[:length], head.source, sure[:length])
            for own, sure, length in zip(tokens, rest[0], lengths, strict=True)
        ]

    def _run_tree(self, group: DraftGroup, counts: list[int]) -> list[Tensor]:
        head, branching, width = self._head, self._branching, group.width
        if head.at_once:
            self._advance(enumerate(counts))
            branching.choose_at_once(counts, width)
        elif head.recordable:
            self.recorder.run(branching.passes(counts, width))
        else:
            for level, count in enumerate(counts):
                branching.level(level, count, width)
        return branching.made(len(group.starts), len(counts), width)

    def _run_chain(self, group: DraftGroup, counts: list[int]) -> list[Tensor]:
        head, starts = self._head, group.starts
        if any(start.span.request_id in self._processors for start in starts):
            group.lengths = self._process_drafts(starts, counts)
        elif head.at_once:
            self._advance(enumerate(counts))
            self._draw_at_once(counts)
        elif head.recordable:
            kind = self._draws.filtered, group.private, head.pass_kind
            self.recorder.run(((*kind, *at), partial(self._level, *at)) for at in enumerate(counts))
        else:
            for level, count in enumerate(counts):
                self._draw(level, self._scored(level, count))
        made = [self.tokens[1 : len(counts) + 1, : len(starts)].T]
        return made if group.private else [*made, self.likely[: len(counts), : len(starts)].T]

    def _level(self, level: int, rows: int) -> None:
        """Draft for the leading requests, by kernels alone."""
        self._head.advance(level, rows)
        self._draw(level, self._head.score(level, rows))

    def _scored(self, level: int, rows: int) -> Tensor:
        """Return the logits `[rows, D]` of a level whose scores are not recorded with the rest of it."""
        self._advance([(level, rows)])
        return self._head.score(level, rows)

    def _advance(self, levels: Iterable[tuple[int, int]]) -> None:
        """Compute the states of levels, given with their rows."""
        kind = self._head.pass_kind
        self.recorder.run((("advance", kind, *at), partial(self._head.advance, *at)) for at in levels)

    def _draw(self, level: int, logits: Tensor) -> None:
        rows = len(logits)
        tokens, likely = self.tokens[level + 1, :rows], self.likely[level, :rows]
        self._draws.draw(self._kernels, level, logits, tokens, likely, self._head.ids)
        trust = self._head.confidence(level, rows)
        if trust is not None:
            likely.copy_(trust)

    def _draw_at_once(self, counts: Sequence[int]) -> None:
        """Draw the nodes of all levels, of which the i-th has `counts[i]`."""
        made = node_places(counts, apart=self._uploads.apart)
        tokens, likely = self.tokens[1:].view(-1), self.likely.view(-1)
        for places in torch.split(made, MOST_ROWS):
            logits = self._head.score_at(places)
            tokens[places], likely[places] = self._draws.draw_at(self._kernels, places, logits, self._head.ids)

    # ---------------------------------------------------------------------------------------------- processors

    def _process_drafts(self, starts: list[Start], counts: Sequence[int]) -> list[int]:
        """Run all levels, passing each one's rows to their requests' processors.

        Returns:
            The length of each draft. It ends early where no token is left to draft.
        """
        lengths = [start.length for start in starts]
        for level, count in enumerate(counts):
            logits = self._scored(level, count)
            for row, (start, scores) in enumerate(zip(starts, logits, strict=False)):
                processor = self._processors.get(start.span.request_id)
                if processor is not None and level < lengths[row]:
                    path = [*start.emitted, *self.tokens[1 : level + 1, row].tolist()]
                    self._process_row(start, processor, path, scores)
                    if float(scores.max()) == -torch.inf:
                        lengths[row] = level
            self._draw(level, logits)
        return lengths

    def _process_row(self, start: Start, processor: BoundProcessor, path: list[int], scores: Tensor) -> None:
        """Pass the scores `[D]` of what comes after `path` to a request's processor, in the target's vocabulary."""
        ids, row = self._head.ids, scores
        if ids is not None:
            row = torch.full((self._vocab_size,), -torch.inf)
            row[ids] = scores
        edited = row.cpu()
        try:
            processor.process_draft(path, edited)
        except Exception as error:
            raise SpanError(start.span.request_id) from error
        if edited is not row:
            row.copy_(edited)
        if ids is not None:
            scores.copy_(row[ids])
