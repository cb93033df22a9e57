"""Drafts that are made right behind a step's pass, before the host knows the step's verdict.

What they read goes to the device with the rows of the pass, and they come back with the tokens that it drew: one copy
there and one back. See `parlay.proposers.device_verdict`.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from parlay.kernels.uploads import fetched
from parlay.proposers.base import DeviceProposer, PlacedDrafts
from parlay.proposers.device_verdict import DeviceVerdict, depth_of, draft_rows
from parlay.runner.batch import Batch
from parlay.runner.runner import ModelRunner
from parlay.types.plan import Proposal, Span, Verdict


class LaunchedDrafts:
    """The drafts of one step.

    Attributes:
        arrays: arrays of the host that go with the rows of the pass.
        seconds: seconds that the device took for them, once they were fetched.
    """

    def __init__(self, proposer: DeviceProposer, placed: PlacedDrafts, spans: Sequence[Span], batch: Batch) -> None:
        """Note what was placed."""
        self._proposer, self._placed = proposer, placed
        self._most = max(map(depth_of, spans))
        branches = not all(span.draft.is_chain for span in spans)
        self._own = [*draft_rows(spans), *([batch.slots] if branches else [])]
        self.arrays: Sequence[Tensor] = [*self._own, *placed.arrays]
        self.seconds = 0.0

    @classmethod
    def place(cls, proposer: DeviceProposer, spans: Sequence[Span], batch: Batch, block_size: int) -> Self | None:
        """Plan the drafts of a step; None where there are none, or they need the verdict on the host."""
        if not any(span.catch_up.budget or span.catch_up.follow for span in spans):
            return None
        placed = proposer.place_drafts(spans, block_size)
        return None if placed is None else cls(proposer, placed, spans, batch)

    def launch(self, runner: ModelRunner) -> bool:
        """Verify on the device and draft, behind the pass that was just started; return whether that is possible.

        Accepted nodes are moved to the slots of the tokens they have become, as `ModelRunner.move_accepted` does.
        """
        if runner.sampled is None:
            return False
        drawn, arrays = runner.sampled
        kernels, hidden = runner.kernels, runner.finish()
        with kernels.device_context():
            begin = kernels.mark()
            tokens, parents, roots, *slots = arrays[: len(self._own)]
            tree = tokens, parents, roots
            verdict = DeviceVerdict.of(kernels, drawn, tree, self._most, self._proposer.filler)
            if slots:
                nodes, places = verdict.path[:, 1:], torch.arange(self._most)
                accepted = places < verdict.accepted[:, None]
                targets = torch.where(accepted, roots[:, None] + 1 + places, nodes)
                runner.move_slots(slots[0][nodes].flatten(), slots[0][targets].flatten())
            given = arrays[len(self._own) :]
            self._made = [drawn, *self._proposer.launch(self._placed, given, verdict, hidden, runner.tapped)]
            self._marks = begin, kernels.mark()
        self._kernels = kernels
        return True

    def fetch(self) -> list[int]:
        """Wait for the drafts; return the tokens that the pass has drawn in all of its rows."""
        drawn, *self._made = fetched(self._kernels, self._made)
        begin, end = self._marks
        self.seconds = end.seconds_since(begin)
        tokens: list[int] = drawn.tolist()
        return tokens

    def proposals(self, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> list[Proposal]:
        """Return the proposals that follow from the verdicts, which were fetched."""
        return self._proposer.conclude(self._placed, spans, verdicts, self._made)
