"""What a proposer with weights does at the end of a step, before and behind the levels of its drafts.

Its layers first run the known tokens that they lack; from the states of these the drafts start. What both read goes
to where kernels read in one upload, and the draft tokens come back together.

On a GPU a draft can follow from a verdict that the host does not know yet: it is planned as if the whole draft before
it were accepted (`device_verdict.undecided`), and what differs is set on the GPU (`launch`). Once the host has the
verdict it plans again, and takes of the draft what that plan wants (`conclude`). Whatever the verdict, such a plan
never runs a row or drafts a token that the first one has not.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.uploads import Upload, Uploads
from parlay.proposers.base import PlacedDrafts
from parlay.proposers.device_verdict import DeviceVerdict, Shift, depth_of, undecided
from parlay.proposers.draft_head import DraftHead, DraftWork, Start
from parlay.proposers.expander import DraftGroup, Expander
from parlay.runner.batch import Batch, Segment, arrays_of, trimmed, with_arrays
from parlay.types.draft import Draft
from parlay.types.plan import Proposal, Span, Verdict


@dataclass(frozen=True, slots=True)
class _Placed(PlacedDrafts):
    """Drafts that were planned for any verdict.

    Attributes:
        work: their plan.
        batch: known tokens that the layers run first, if there are any.
        group: the requests that draft, if any do.
        upload: what all of it reads.
    """

    work: DraftWork
    batch: Batch | None
    group: DraftGroup | None
    upload: Upload

    @property
    def arrays(self) -> Sequence[Tensor]:
        return self.upload.arrays


_NONE = torch.empty(0, dtype=torch.int64, device="cpu")


class _Places(NamedTuple):
    """What a verdict is applied to, where kernels read.

    Attributes:
        sources: int64 `[rows of the batch]`, rows of the target's states; none where the layers need none.
        starts: int64 `[requests]`, rows of the states that requests start from if no node is accepted.
        owners: int64 `[requests]`, their spans.
        limits: int64 `[requests]`, see `Shift`.
        rows: int64 `[n]`, rows of the batch whose tokens the step emits.
        spans: int64 `[n]`, their spans.
        order: int64 `[n]`, which of the emitted tokens each is.
    """

    sources: Tensor
    starts: Tensor
    owners: Tensor
    limits: Tensor
    rows: Tensor
    spans: Tensor
    order: Tensor


class ExpandingHead(DraftHead):
    """A proposer whose drafts an expander makes."""

    _expander: Expander
    _uploads: Uploads
    _kernels: Kernels

    @abstractmethod
    def plan(self, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> DraftWork:
        """Return what is to be done after a step, from what the host knows."""

    def run_known(
        self, work: DraftWork, batch: Batch | None, sources: Tensor, hidden: Tensor, tapped: Tensor | None
    ) -> Tensor:
        """Run the known tokens that the layers lack; return the states that starts' rows refer to.

        Args:
            work: the plan.
            batch: its rows, where kernels read them; None where there are none.
            sources: int64, rows of the target's states that these need, where kernels read them.
            hidden, tapped: the target's states, see `propose`.
        """
        return hidden

    def observe(self, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> None:
        """See how texts go on: before a draft or, where that follows from a verdict on a device, behind it."""

    def proposal(self, work: DraftWork, start: Start, draft: Draft) -> Proposal:
        """Return what is proposed where a draft was made."""
        return Proposal(draft, work.proposals[start.index].state)

    def flatten(self, segments: Sequence[Segment]) -> Batch:
        """Return the rows of the known tokens that the layers run first."""
        raise NotImplementedError

    def readable(self, tokens: Tensor) -> Tensor:
        """Return tokens `[n]` of the target's with another in place of each one that the layers cannot run."""
        return tokens

    def propose(
        self, spans: Sequence[Span], verdicts: Sequence[Verdict], hidden: Tensor, tapped: Tensor | None = None
    ) -> list[Proposal]:
        """Run what the layers lack, then draft for each request that lacks nothing."""
        self.observe(spans, verdicts)
        work = self.plan(spans, verdicts)
        groups = self._expander.groups(work.starts)
        if not (work.segments or groups):
            return work.proposals
        if groups:
            self._expander.place(groups[0])
        batch = self.flatten(work.segments) if work.segments else None
        sources, rows = _whole(work.sources), groups[0].rows if groups else _whole(())
        if self._uploads.apart:
            *own, sources, rows = self._uploads.send([*_arrays(batch), sources, rows])
            batch = None if batch is None else with_arrays(batch, own)
        states = self.run_known(work, batch, sources, hidden, tapped)
        for start, draft in self._expander.expand(groups, states, rows):
            work.proposals[start.index] = self.proposal(work, start, draft)
        return work.proposals

    def read_by(self, batch: Batch, block_size: int, *, recorded: bool) -> Batch:
        """Return the batch of a level without columns of its tables that it does not read, if that saves anything.

        A recorded pass reads the same memory each time; a GPU's kernels read what they need.
        """
        return batch if recorded or self._uploads.apart else trimmed(batch, block_size)

    # -------------------------------------------------------------------- drafts that follow from a device's verdict

    def place_drafts(self, spans: Sequence[Span], block_size: int) -> PlacedDrafts | None:  # noqa: D102
        asked = [span.catch_up for span in spans if span.sample and span.catch_up.budget]
        widths = {ask.width for ask in asked}
        if not self.follows_verdict or len(widths) > 1 or len(asked) > self._expander.most(*widths or (1,)):
            return None
        work = self.plan(*undecided(spans, self.filler))
        if not work.whole or not (work.segments or work.starts):
            return None
        group = None
        if work.starts:
            (group,) = self._expander.groups([_at_root(start, spans[start.index]) for start in work.starts])
            self._expander.place(group)
        starts = [] if group is None else group.starts
        own = [spans[start.index] for start in starts]
        limits = [min(span.end + span.remaining, len(span.blocks) * block_size) for span in own]
        emitted = [(row + i, index, i) for index, row, count in work.emitted for i in range(count)]
        numbers = work.sources, [start.row for start in starts], [start.index for start in starts], limits
        columns = ([one[i] for one in emitted] for i in range(3))
        batch = self.flatten(work.segments) if work.segments else None
        return _Placed(work, batch, group, self._uploads.take([*_arrays(batch), *map(_whole, (*numbers, *columns))]))

    def launch(  # noqa: D102
        self,
        placed: PlacedDrafts,
        arrays: Sequence[Tensor],
        verdict: DeviceVerdict,
        hidden: Tensor,
        tapped: Tensor | None = None,
    ) -> list[Tensor]:
        assert isinstance(placed, _Placed)
        batch, group, given = placed.batch, placed.group, placed.upload.unpack(arrays)
        count = len(_Places._fields)
        places = _Places(*given[-count:])
        if batch is not None:
            batch = with_arrays(batch, given[:-count])
            batch.tokens[places.rows] = self.readable(verdict.emitted[places.spans, places.order])
            if len(places.sources):
                places.sources[places.rows] = verdict.path[places.spans, places.order]
        states = self.run_known(placed.work, batch, places.sources, hidden, tapped)
        if group is None:
            return []
        ahead = verdict.accepted[places.owners]
        newest = verdict.emitted[places.owners, ahead]
        self._expander.shift(Shift(ahead, newest, places.limits, group.starts[0].length, group.width))
        return self._expander.run(group, states, self.rows_behind(places.starts, places.owners, verdict))

    def rows_behind(self, rows: Tensor, owners: Tensor, verdict: DeviceVerdict) -> Tensor:
        """Return the rows of the states that requests start from, int64 `[requests]`.

        Args:
            rows: int64 `[requests]`, these rows if no node were accepted.
            owners: int64 `[requests]`, their spans.
            verdict: the verdict.
        """
        return rows + verdict.accepted[owners]

    def conclude(  # noqa: D102
        self, placed: PlacedDrafts, spans: Sequence[Span], verdicts: Sequence[Verdict], made: Sequence[Tensor]
    ) -> list[Proposal]:
        assert isinstance(placed, _Placed)
        self.observe(spans, verdicts)
        work = self.plan(spans, verdicts)
        if placed.group is None:
            return work.proposals
        wanted = {start.index: start for start in work.starts}
        starts = [wanted.get(start.index) for start in placed.group.starts]
        drafts = self._expander.drafts(placed.group, starts, made)
        for start, draft in zip(starts, drafts, strict=True):
            if start is not None:
                work.proposals[start.index] = self.proposal(work, start, draft)
        return work.proposals


def _at_root(start: Start, span: Span) -> Start:
    """Return a start as it is if no node of the span's draft is accepted, given as it is if the whole path is."""
    depth = depth_of(span)
    place = None if start.place is None else start.place - depth
    return replace(start, row=start.row - depth, position=start.position - depth, place=place)


def _arrays(batch: Batch | None) -> list[Tensor]:
    return [] if batch is None else arrays_of(batch)


def _whole(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu") if values else _NONE
