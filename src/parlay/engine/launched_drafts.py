"""Drafts that are made right behind a step's pass, before the host knows the step's verdict.

What they read goes to the device with the rows of the pass, and they come back with the tokens that it drew: one copy
there and one back. See `parlay.proposers.device_verdict`.
"""

from collections.abc import Sequence
from itertools import accumulate, chain
from time import perf_counter
from typing import Self

import torch
from torch import Tensor

from parlay.kernels.base import StateMetadata
from parlay.kernels.uploads import fetched
from parlay.proposers.base import DeviceProposer, PlacedDrafts
from parlay.proposers.device_verdict import DeviceVerdict, depth_of, draft_rows
from parlay.runner.batch import Batch, state_arrays
from parlay.runner.runner import ModelRunner
from parlay.types.plan import NO_PROPOSAL, Plan, Proposal, Span, Verdict


class _MoveError(Exception):
    """Accepted nodes may have been moved in some layers and not in others; its cause says why."""


class LaunchedDrafts:
    """The drafts of one step, and the states that the proposer keeps of it.

    Attributes:
        arrays: arrays of the host that go with the rows of the pass.
        moved: whether accepted nodes were moved, see `ModelRunner.move_accepted`.
        error: the error that the proposer raised; drafts are then made when the host has the verdict.
        seconds: time for all that these drafts take before the verdict is known: of the host before the pass, and of
            the device behind it, once they were fetched.
    """

    def __init__(
        self,
        proposer: DeviceProposer,
        placed: PlacedDrafts | None,
        spans: Sequence[Span],
        batch: Batch,
        states: StateMetadata | None,
        seconds: float,
    ) -> None:
        """Note what was placed.

        Args:
            proposer: the proposer.
            placed: the drafts; None where the proposer only keeps states.
            spans: the plan's spans.
            batch: their rows.
            states: states that the rows continue from, if the proposer keeps any.
            seconds: time that it took to place the drafts.
        """
        self._proposer, self._placed = proposer, placed
        self._most = max(map(depth_of, spans))
        tree = draft_rows(spans)
        branching = [i for i, span in enumerate(spans) if not span.draft.is_chain]
        moves = [torch.tensor(branching, device="cpu"), batch.slots] if branching else []
        kept = [] if states is None else state_arrays(states)
        parts = [kept] if placed is None else [kept, tree, moves, [*placed.arrays]]
        self._sizes = [*map(len, parts)]
        self.arrays: Sequence[Tensor] = [*chain.from_iterable(parts)]
        self.moved = False
        self.error: Exception | None = None
        self.seconds = seconds

    @classmethod
    def place(cls, proposer: DeviceProposer, plan: Plan, batch: Batch, block_size: int) -> Self | None:
        """Plan the drafts of a step; None where there is nothing to do, or it needs the verdict on the host."""
        began, spans = perf_counter(), plan.spans
        states = batch.states if proposer.keeps_states and not plan.proposer_idle else None
        drafts = any(span.catch_up.budget or span.catch_up.follow for span in spans)
        placed = proposer.place_drafts(spans, block_size) if drafts else None
        if placed is None and (drafts or states is None):
            return None
        return cls(proposer, placed, spans, batch, states, perf_counter() - began)

    def launch(self, runner: ModelRunner) -> bool:
        """Verify on the device and draft, behind the pass that was just started; return whether it drew tokens.

        Raises:
            _MoveError: nodes could not be moved, perhaps in some layers alone; the step is to be run again.
        """
        if runner.sampled is None:
            return False
        drawn, arrays = runner.sampled
        self._kernels, hidden, self._made = runner.kernels, runner.finish(), [drawn]
        ends = [*accumulate(self._sizes)]
        states, *parts = (arrays[end - size : end] for size, end in zip(self._sizes, ends, strict=True))
        self._begin = self._kernels.mark()
        with self._kernels.device_context():
            try:
                if states:
                    self._proposer.save_states(StateMetadata(*states), hidden, runner.tapped)
                if self._placed is not None:
                    tree, moves, given = parts
                    verdict = DeviceVerdict.of(self._kernels, drawn, tree, self._most, self._proposer.filler)
                    if moves:
                        self._move(runner, [tree[2], *moves], verdict)
                    self.moved = True
                    self._made += self._proposer.launch(self._placed, given, verdict, hidden, runner.tapped)
            except _MoveError:
                raise
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
        try:
            runner.move_slots(slots[nodes].flatten(), slots[places].flatten())
        except Exception as error:
            raise _MoveError from error

    def fetch(self) -> list[int]:
        """Wait for the drafts; return the tokens that the pass has drawn in all of its rows."""
        drawn, *self._made = fetched(self._kernels, self._made)
        self.seconds += self._end.seconds_since(self._begin)
        tokens: list[int] = drawn.tolist()
        return tokens

    def proposals(self, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> list[Proposal]:
        """Return the proposals that follow from the verdicts; they were fetched, without an error."""
        if self._placed is None:
            return [NO_PROPOSAL] * len(spans)
        return self._proposer.conclude(self._placed, spans, verdicts, self._made)
