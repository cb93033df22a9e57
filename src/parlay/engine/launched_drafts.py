"""Drafts that are made right behind a step's pass, before the host knows the step's verdict.

What they read goes to the device with the rows of the pass, and they come back with the tokens that it drew: one copy
there and one back. See `parlay.proposers.device_verdict`.
"""

from collections.abc import Sequence
from time import perf_counter
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
        moved: whether accepted nodes were moved, see `ModelRunner.move_accepted`.
        error: the error that the proposer raised; drafts are then made when the host has the verdict.
        seconds: time for all that these drafts take before the verdict is known: of the host before the pass, and of
            the device behind it, once they were fetched.
    """

    def __init__(
        self, proposer: DeviceProposer, placed: PlacedDrafts, spans: Sequence[Span], batch: Batch, seconds: float
    ) -> None:
        """Note what was placed, and how long that took."""
        self._proposer, self._placed = proposer, placed
        self._most = max(map(depth_of, spans))
        self._tree = draft_rows(spans)
        branching = [i for i, span in enumerate(spans) if not span.draft.is_chain]
        self._branching = [torch.tensor(branching, device="cpu"), batch.slots] if branching else []
        self.arrays: Sequence[Tensor] = [*self._tree, *self._branching, *placed.arrays]
        self.moved = False
        self.error: Exception | None = None
        self.seconds = seconds

    @classmethod
    def place(cls, proposer: DeviceProposer, spans: Sequence[Span], batch: Batch, block_size: int) -> Self | None:
        """Plan the drafts of a step; None where there are none, or they need the verdict on the host."""
        if not any(span.catch_up.budget or span.catch_up.follow for span in spans):
            return None
        began = perf_counter()
        placed = proposer.place_drafts(spans, block_size)
        return None if placed is None else cls(proposer, placed, spans, batch, perf_counter() - began)

    def launch(self, runner: ModelRunner) -> bool:
        """Verify on the device and draft, behind the pass that was just started; return whether it drew tokens."""
        if runner.sampled is None:
            return False
        drawn, arrays = runner.sampled
        self._kernels, hidden = runner.kernels, runner.finish()
        self._made, own = [drawn], len(self._tree) + len(self._branching)
        self._begin = self._kernels.mark()
        with self._kernels.device_context():
            try:
                verdict = DeviceVerdict.of(
                    self._kernels, drawn, arrays[: len(self._tree)], self._most, self._proposer.filler
                )
                if self._branching:
                    self._move(runner, arrays[2:own], verdict)
                self.moved = True
                self._made += self._proposer.launch(self._placed, arrays[own:], verdict, hidden, runner.tapped)
            except Exception as error:
                self.error = error
        self._end = self._kernels.mark()
        return True

    def _move(self, runner: ModelRunner, arrays: Sequence[Tensor], verdict: DeviceVerdict) -> None:
        """Move accepted nodes to the slots of the tokens they have become; others stay, moved to where they are.

        Args:
            runner: the target's runner.
            arrays: int64 `[spans]`, rows of the last known tokens; `[n]`, spans whose drafts are no chains; `[rows]`,
                the slot of each row.
            verdict: the verdict.
        """
        roots, branching, slots = arrays
        nodes, depth = verdict.path[branching, 1:], torch.arange(self._most)
        accepted = depth < verdict.accepted[branching, None]
        places = torch.where(accepted, roots[branching, None] + 1 + depth, nodes)
        runner.move_slots(slots[nodes].flatten(), slots[places].flatten())

    def fetch(self) -> list[int]:
        """Wait for the drafts; return the tokens that the pass has drawn in all of its rows."""
        drawn, *self._made = fetched(self._kernels, self._made)
        self.seconds += self._end.seconds_since(self._begin)
        tokens: list[int] = drawn.tolist()
        return tokens

    def proposals(self, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> list[Proposal]:
        """Return the proposals that follow from the verdicts; they were fetched, without an error."""
        return self._proposer.conclude(self._placed, spans, verdicts, self._made)
