"""What a proposer with weights does at the end of a step, before and behind the levels of its drafts.

Its layers first run the known tokens that they lack; from the states of these the drafts start. What both read goes
to where kernels read in one upload, and the draft tokens come back together.

On a GPU a draft can follow from a verdict that the host does not know yet: it is planned as if the whole draft before
it were accepted (`device_verdict.undecided`), and what differs is set on the GPU (`launch`). Once the host has the
verdict it plans again, and takes of the draft what that plan wants (`conclude`).
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.uploads import Upload, Uploads
from parlay.proposers.base import PlacedDrafts
from parlay.proposers.device_verdict import DeviceVerdict, Shift, depth_of, undecided
from parlay.proposers.draft_head import DraftHead, DraftWork, Start
from parlay.proposers.expander import DraftGroup, Expander
from parlay.runner.batch import Batch, arrays_of, trimmed, with_arrays
from parlay.types.draft import Draft
from parlay.types.plan import Proposal, Span, Verdict


@dataclass(frozen=True, slots=True)
class _Placed(PlacedDrafts):
    """Drafts that were planned for any verdict.

    Attributes:
        work: their plan.
        group: the requests that draft, if any do.
        upload: what it reads.
    """

    work: DraftWork
    group: DraftGroup | None
    upload: Upload

    @property
    def arrays(self) -> Sequence[Tensor]:
        return self.upload.arrays


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
        """See how texts go on."""

    def proposal(self, work: DraftWork, start: Start, draft: Draft) -> Proposal:
        """Return what is proposed where a draft was made."""
        return replace(work.proposals[start.index], draft=draft)

    def propose(
        self, spans: Sequence[Span], verdicts: Sequence[Verdict], hidden: Tensor, tapped: Tensor | None = None
    ) -> list[Proposal]:
        """Run what the layers lack, then draft for each request that lacks nothing."""
        self.observe(spans, verdicts)
        work = self.plan(spans, verdicts)
        groups = self._expander.groups(work.starts)
        if work.batch is None and not groups:
            return work.proposals
        if groups:
            self._expander.place(groups[0])
        own = [] if work.batch is None else arrays_of(work.batch)
        *own, sources, rows = self._uploads.send([*own, work.sources, groups[0].rows if groups else work.sources[:0]])
        batch = None if work.batch is None else with_arrays(work.batch, own)
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
        if not self.follows_verdict:
            return None
        work = self.plan(*undecided(spans, self.filler))
        groups = self._expander.groups([_at_root(start, spans[start.index]) for start in work.starts])
        if not work.whole or len(groups) > 1 or (work.batch is None and not groups):
            return None
        if groups:
            self._expander.place(groups[0])
        group = groups[0] if groups else None
        starts = groups[0].starts if groups else []
        own = [spans[start.index] for start in starts]
        limits = [min(span.end + span.remaining, len(span.blocks) * block_size) for span in own]
        emitted = [(row + i, index, i) for index, row, count in work.emitted for i in range(count)]
        numbers = [_whole([start.row for start in starts]), _whole([start.index for start in starts]), _whole(limits)]
        numbers += [_whole([one[i] for one in emitted]) for i in range(3)]
        batch = [] if work.batch is None else arrays_of(work.batch)
        return _Placed(work, group, self._uploads.take([*batch, work.sources, *numbers]))

    def launch(  # noqa: D102
        self,
        placed: PlacedDrafts,
        arrays: Sequence[Tensor],
        verdict: DeviceVerdict,
        hidden: Tensor,
        tapped: Tensor | None = None,
    ) -> list[Tensor]:
        assert isinstance(placed, _Placed)
        work, group = placed.work, placed.group
        *own, sources, rows, index, limits, row, span, place = placed.upload.unpack(arrays)
        batch = None
        if work.batch is not None:
            batch = with_arrays(work.batch, own)
            batch.tokens[row] = verdict.emitted[span, place]
            if len(sources):
                sources[row] = verdict.path[span, place]
        states = self.run_known(work, batch, sources, hidden, tapped)
        if group is None:
            return []
        ahead = verdict.accepted[index]
        newest = verdict.emitted[index, ahead]
        self._expander.shift(Shift(ahead, newest, limits, group.starts[0].length, group.width))
        return self._expander.run(group, states, self.rows_behind(rows, index, verdict))

    def rows_behind(self, rows: Tensor, index: Tensor, verdict: DeviceVerdict) -> Tensor:
        """Return the rows of the states that requests start from, int64 `[requests]`.

        Args:
            rows: int64 `[requests]`, these rows if no node were accepted.
            index: int64 `[requests]`, their spans.
            verdict: the verdict.
        """
        return rows + verdict.accepted[index]

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


def _whole(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu")
