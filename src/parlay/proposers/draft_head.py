"""A proposer with weights, as the loop over the levels of its drafts sees it."""

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from parlay.proposers.base import DeviceProposer
from parlay.proposers.device_verdict import Shift
from parlay.runner.batch import Segment
from parlay.types.plan import Proposal, Span


@dataclass(frozen=True, slots=True)
class Start:
    """Where one request drafts from.

    Attributes:
        index: index of its span in the plan.
        span: the request's part of the plan.
        row: row of the initial states that the first node follows from.
        emitted: tokens of this step, the last of which the first node comes after.
        position: position of the first node.
        length: number of tokens to draft one after another, at least 1.
        width: nodes of each level that the draft continues from, and children of each; 1 for a chain.
        nodes: most nodes of a draft with branches.
        first: the first token whose keys its nodes see.
        path: nodes of the step that were accepted, in order.
        place: place of the first node in the head's cache layers; None where that is its position.
        blocks: block table of the head's cache layers; None where that is the target's.
    """

    index: int
    span: Span
    row: int
    emitted: tuple[int, ...]
    position: int
    length: int
    width: int = 1
    nodes: int = 0
    first: int = 0
    path: tuple[int, ...] = ()
    place: int | None = None
    blocks: Sequence[int] | None = None


@dataclass(slots=True)
class DraftWork:
    """What a head does at the end of a step.

    Attributes:
        proposals: one per span, with how far the head's layers will have come and without drafts.
        starts: where the requests start that draft.
        segments: known tokens that the head's layers run first.
        sources: rows of the target's states that these need, one each; empty where they need none.
        emitted: span, first row and number of the tokens among them that the step has emitted, of each request.
        previous: whether sources count rows before those of the step too.
        whole: whether no row was left out for lack of room.
    """

    proposals: list[Proposal]
    starts: list[Start]
    segments: list[Segment] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    emitted: list[tuple[int, int, int]] = field(default_factory=list)
    previous: bool = False
    whole: bool = True


class DraftHead(DeviceProposer):
    """A proposer with weights, which drafts for the leading rows of its own memory, level by level.

    Attributes:
        source: the proposer's name in drafts.
        recordable: whether `score` calls kernels alone. `advance` always does, unless the recorder says otherwise.
        path_free: whether no node depends on those before it.
        rows: least number of rows that each request has in a pass.
        at_once: whether `score_at` computes the logits of all levels at once; such a head is `path_free`.
        ids: the target's ids `[D]` of the head's vocabulary; None if they are the same.
    """

    source: ClassVar[str]
    recordable: bool = True
    draws = True
    path_free: ClassVar[bool] = False
    rows: int = 1
    at_once: bool = False
    ids: Tensor | None = None

    @property
    def pass_kind(self) -> Hashable:
        """What a level's passes are recorded apart by: here how many tokens a node is chosen from, 0 for all."""
        return 0 if self.ids is None else len(self.ids)

    def place(self, starts: Sequence[Start], width: int = 1) -> None:
        """Write what the levels read besides nodes and states; it is there once uploads have been sent.

        Args:
            starts: starts of the requests that draft, longest first; the i-th has row i.
            width: number of rows that each of them has from level 1 on.
        """

    def shift(self, shift: Shift) -> None:
        """Have the requests that were placed start later, by operations where kernels read."""

    @abstractmethod
    def begin(self, states: Tensor, rows: Tensor) -> None:
        """Take the states that drafts follow from.

        Args:
            states: initial states `[n, d]`.
            rows: int64 `[requests]`, the state of each request that was placed.
        """

    @abstractmethod
    def advance(self, level: int, rows: int, width: int = 1) -> None:
        """Compute the states of level `level`, counted from 0, by kernels alone.

        It reads the expander's `tokens[level, :rows]`, the nodes of the level before, or at level 0 what the step has
        emitted. From level 1 on each request has `width` rows, one after another.
        """

    def gather(self, level: int, origin: Tensor) -> None:
        """Give row i of level `level` the state that row `origin[i]` of the level before had; int64 `[rows]`."""

    def paths(self, level: int, rows: int) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return `slots`, `above` and `below` of `Kernels.grow`, if the head has cache layers."""
        return None, None, None

    @abstractmethod
    def score(self, level: int, rows: int) -> Tensor:
        """Return float32 logits `[rows, D]` of the states that `advance` has just computed."""

    def confidence(self, level: int, rows: int) -> Tensor | None:
        """Return how likely the target is to accept what follows from the states just scored, `[rows]`.

        None where the draft's own probabilities are taken. Not called where passes are recorded.
        """
        return None

    def score_at(self, places: Tensor) -> Tensor:
        """Return float32 logits `[n, V]` of states, by int64 `[n]` level times `MOST_ROWS` plus row."""
        raise NotImplementedError
