"""Drafts with branches: several children of a node, and several of a level's nodes to continue from.

The likeliest few tokens of each node's row become its children (`Kernels.branch`), with the noise that the target
will sample with; the best of all children of a level are the nodes of the next (`Kernels.grow`). A path's probability
is the product of its nodes'. In the end the best of all nodes are the draft. No Python runs between two levels here
either.

Nodes of a level have no cache slots in order behind the known tokens: their keys and values lie in scratch slots, of
which each node sees its own path's. Where no node depends on those before it (Medusa), a level has one row per
request, and a path may take any of its tokens at each level.

Source: EAGLE-2's dynamic trees (Li et al. 2024, arXiv 2406.16858), with a child's probability from scores that
include the target's noise; without noise the two are the same.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, partial
from heapq import heappop, heappush
from typing import NamedTuple

import torch
from torch import Tensor

from parlay.config.speculative import MOST_DEPTH, MOST_WIDTH
from parlay.kernels.base import Kernels
from parlay.kernels.uploads import Uploads
from parlay.proposers.device_verdict import Shift
from parlay.proposers.draft_head import DraftHead, Start
from parlay.proposers.draws import Draws
from parlay.runner.graphs import MOST_ROWS
from parlay.sampling.distribution import Distribution
from parlay.types.draft import NO_DRAFT, ROOT, Draft

# Assumed probabilities of nodes where only their ranks may count, given their parents.
_FIRST_RANK, _NEXT_RANK = 0.7, 0.25


class BranchNode(NamedTuple):
    """A node that a draft may have, its children not yet known.

    Attributes:
        path_prob: probability of its whole path.
        parent: index of its parent node, `ROOT` for none.
        token: token id of the node.
        prob: probability of the node given its parent.
        origin: index of its parent among the nodes of that level.
    """

    path_prob: float
    parent: int
    token: int
    prob: float
    origin: int = 0


class Branching:
    """The memory of such drafts, level by level, and the passes that fill it."""

    def __init__(self, head: DraftHead, kernels: Kernels, tokens: Tensor, uploads: Uploads) -> None:
        """Allocate.

        Args:
            head: the head that drafts.
            kernels: the operations to choose with.
            tokens: int64 `[levels + 1, MOST_ROWS]`, what each level's rows run; written from level 1 on.
            uploads: writer of host values into this memory.
        """
        self._head, self._kernels, self._tokens, self._apart = head, kernels, tokens, uploads.apart
        levels = min(MOST_DEPTH, len(tokens) - 1)
        self._children = torch.zeros((levels, MOST_ROWS * MOST_WIDTH), dtype=torch.int64)
        self._likely = torch.zeros((levels, MOST_ROWS * MOST_WIDTH))
        self._path_probs = torch.ones((levels, MOST_ROWS))
        self._unused = torch.zeros(MOST_ROWS * MOST_WIDTH)
        self._ranked: dict[int, Tensor] = {}  # by width
        self._origin, self._chosen = torch.zeros((2, levels, MOST_ROWS), dtype=torch.int64)
        # Requests draw at level 0; from then on all nodes of a request draw with the same noise.
        self._first, self._later = (Draws(levels, MOST_ROWS, uploads) for _ in range(2))

    def prepare(self, starts: Sequence[Start], width: int, *, private: bool = False) -> None:
        """Set which requests draft, deepest first, and whether draft distributions are kept.

        Where they are, no token may decide which nodes a draft has: drafts then branch by ranks alone.
        """
        spans, positions = [start.span for start in starts], [start.position for start in starts]
        self._first.prepare(spans, positions, private=private)
        if not self._head.path_free:
            self._later.prepare(
                [span for span in spans for _ in range(width)],
                [at for at in positions for _ in range(width)],
                private=private,
            )

    def shift(self, shift: Shift) -> None:
        """Have the requests that were prepared start later, by operations where kernels read."""
        self._first.shift(shift.ahead)
        if not self._head.path_free:
            self._later.shift(shift.ahead.repeat_interleave(shift.width))

    def passes(self, counts: Sequence[int], width: int) -> Iterator[tuple[Hashable, Callable[[], None]]]:
        """Yield the passes of all levels, of which the i-th has nodes of `counts[i]` requests."""
        for level, count in enumerate(counts):
            kind = self._first.filtered, self._first.private, self._head.pass_kind
            yield ("tree", *kind, level, count, width), partial(self.level, level, count, width)

    def level(self, level: int, count: int, width: int) -> None:
        """Make the children of a level's nodes, for the leading requests, by kernels alone."""
        self.choose(level, self.score(level, count, width), width)

    def score(self, level: int, count: int, width: int) -> Tensor:
        """Return the logits of a level's nodes, which are chosen from the children of the level before."""
        head = self._head
        if head.path_free:
            head.advance(level, count, 1)
            return head.score(level, count)
        rows = count * width if level else count
        if level:
            tokens, likely = self._of(level - 1, rows if level > 1 else count, width, read=True)
            origin = self._origin[level, :rows]
            slots, above, below = head.paths(level, rows)
            self._kernels.grow(
                tokens,
                likely,
                self._path_probs[level - 1, : len(tokens)],
                self._tokens[level, :rows],
                self._path_probs[level, :rows],
                origin,
                self._chosen[level, :rows],
                count,
                slots,
                above if above is None else above[: len(tokens)],
                below,
            )
            head.gather(level, origin)
        head.advance(level, rows, width)
        return head.score(level, rows)

    def choose(self, level: int, logits: Tensor, width: int) -> None:
        """Choose the children of nodes by their logits `[rows, D]`."""
        draws = self._later if level and not self._head.path_free else self._first
        tokens, likely = self._of(level, len(logits), width)
        draws.draw(self._kernels, level, logits, tokens, likely, self._head.ids)
        trust = self._head.confidence(level, len(logits))
        if trust is not None:
            _trusted(likely, trust)

    def choose_at_once(self, counts: Sequence[int], width: int) -> None:
        """Choose the children at all levels, for a head that computes the logits of all of them at once."""
        made = node_places(counts, apart=self._apart)
        tokens, likely = (
            kept[:, : MOST_ROWS * width].view(-1, MOST_ROWS, width) for kept in (self._children, self._likely)
        )
        for places in torch.split(made, MOST_ROWS):
            found = self._first.draw_at(self._kernels, places, self._head.score_at(places), self._head.ids, width)
            level, row = places // MOST_ROWS, places % MOST_ROWS
            tokens[level, row] = found[0]
            likely[level, row] = self._ranks(width)[:width] if self._first.private else found[1]

    def made(self, requests: int, depth: int, width: int) -> list[Tensor]:
        """Return what `drafts` reads, where kernels have written it."""
        rows, size = requests * width, requests * width * width
        levels_made = self._children[:depth, :size], self._likely[:depth, :size]
        return [*levels_made, self._path_probs[:depth, :rows], self._chosen[:depth, :rows]]

    def drafts(self, starts: Sequence[Start | None], width: int, made: Sequence[Tensor]) -> list[Draft]:
        """Return the drafts, of the nodes whose paths are the likeliest.

        Args:
            starts: starts of the requests that were prepared; None for those that have ended.
            width: nodes of each level that drafts continue from.
            made: what `made` has returned, on the host.
        """
        children, likely, path_prob, chosen = (one.tolist() for one in made)
        if self._first.private and not self._head.at_once:
            likely = [self._ranks(width)[: len(starts) * width * width].tolist()] * len(children)
        drafts = []
        for row, start in enumerate(starts):
            if start is None:
                drafts.append(NO_DRAFT)
                continue
            levels = []
            for level in range(start.length):
                nodes = width if level and not self._head.path_free else 1
                own = slice(row * nodes * width, (row + 1) * nodes * width)
                at = slice(row * nodes, (row + 1) * nodes)
                levels.append((children[level][own], likely[level][own], path_prob[level][at], chosen[level][at]))
            if self._head.choices is not None:
                candidates = _chosen([(tokens, probs) for tokens, probs, _, _ in levels], self._head.choices)
            elif self._head.path_free:
                candidates = _products([(tokens, probs) for tokens, probs, _, _ in levels], start.nodes)
            else:
                candidates = _grown(levels, width)
            drafts.append(_draft(candidates, start.nodes, self._head.source, self._distributions(row, width)))
        return drafts

    def _distributions(self, row: int, width: int) -> "Callable[[int, int], Distribution] | None":
        """Return what finds the distribution that a node was drawn from, by its level and its parent there."""
        if not self._first.private:
            return None
        free, ids = self._head.path_free, self._head.ids

        @cache
        def distribution(level: int, origin: int) -> Distribution:
            if level == 0 or free:
                return self._first.distribution(level, row, ids)
            return self._later.distribution(level, row * width + origin, ids)

        return distribution

    def _ranks(self, width: int) -> Tensor:
        """Return the probabilities of children by their ranks alone, `[MOST_ROWS * width]`."""
        if width not in self._ranked:
            own = torch.cat([torch.full((1,), _FIRST_RANK * _NEXT_RANK**rank) for rank in range(width)])
            self._ranked[width] = own.repeat(MOST_ROWS)
        return self._ranked[width]

    def _of(self, level: int, rows: int, width: int, *, read: bool = False) -> tuple[Tensor, Tensor]:
        """Return the children of a level's nodes, tokens `[rows, width]`, and their probabilities."""
        size, likely = rows * width, self._likely[level]
        if self._first.private:
            likely = self._ranks(width) if read else self._unused
        return self._children[level, :size].view(rows, width), likely[:size].view(rows, width)


def node_places(counts: Sequence[int], *, apart: bool) -> Tensor:
    """Return of all nodes their level times `MOST_ROWS`, plus their request's row: int64, where kernels read.

    Args:
        counts: number of requests that each level has nodes of.
        apart: whether that is not the host's memory, to which numbers would have to be sent.
    """
    if apart:
        return torch.cat([level * MOST_ROWS + torch.arange(count) for level, count in enumerate(counts)])
    return torch.tensor([level * MOST_ROWS + row for level, count in enumerate(counts) for row in range(count)])


def _trusted(likely: Tensor, trust: Tensor) -> None:
    """Give the first of each node's children the probability that it is accepted; the others share what is left.

    Args:
        likely: probabilities `[rows, width]`, likeliest first, read and written.
        trust: probabilities `[rows]` that the first children are accepted.
    """
    first = likely[:, :1].clone()
    likely *= ((1 - trust[:, None]) / (1 - first).clamp(min=1e-6)).clamp(max=1.0)
    likely[:, 0] = trust
    torch.minimum(likely, trust[:, None], out=likely)


def _grown(levels: Sequence[tuple[list[int], list[float], list[float], list[int]]], width: int) -> list[BranchNode]:
    """Return all children of all levels' nodes; `levels` has their tokens, probabilities, paths and numbers."""
    candidates: list[BranchNode] = []
    before = 0  # where the children of the level before begin
    for level, (tokens, probs, path_prob, chosen) in enumerate(levels):
        first = len(candidates)
        for place, (token, prob) in enumerate(zip(tokens, probs, strict=True)):
            node = place // width
            parent = before + chosen[node] if level else ROOT
            candidates.append(BranchNode(path_prob[node] * prob, parent, token, prob, node))
        before = first
    return candidates


def _chosen(levels: Sequence[tuple[list[int], list[float]]], choices: Sequence[tuple[int, ...]]) -> list[BranchNode]:
    """Return the nodes on paths of ranks, as far as there are levels."""
    candidates: list[BranchNode] = []
    places: dict[tuple[int, ...], int] = {(): ROOT}
    for path in choices:
        if len(path) <= len(levels):
            tokens, probs = levels[len(path) - 1]
            parent, prob = places[path[:-1]], probs[path[-1]]
            places[path] = len(candidates)
            above = candidates[parent].path_prob if parent != ROOT else 1.0
            candidates.append(BranchNode(above * prob, parent, tokens[path[-1]], prob))
    return candidates


def _products(levels: Sequence[tuple[list[int], list[float]]], most: int) -> list[BranchNode]:
    """Return the `most` likeliest paths where every level's tokens may follow any of the level before."""
    candidates: list[BranchNode] = []
    # The candidates: probability of the path, level, rank at it, and the node that it follows.
    heap: list[tuple[float, int, int, int]] = []

    def offer(level: int, rank: int, parent: int) -> None:
        if level < len(levels) and rank < len(levels[level][1]):
            above = candidates[parent].path_prob if parent >= 0 else 1.0
            heappush(heap, (-above * levels[level][1][rank], level, rank, parent))

    offer(0, 0, ROOT)
    while heap and len(candidates) < most:
        path_prob, level, rank, parent = heappop(heap)
        candidates.append(BranchNode(-path_prob, parent, levels[level][0][rank], levels[level][1][rank]))
        offer(level, rank + 1, parent)
        offer(level + 1, 0, len(candidates) - 1)
    return candidates


def _draft(
    candidates: Sequence[BranchNode],
    most: int,
    source: str,
    distribution: Callable[[int, int], "Distribution"] | None = None,
) -> Draft:
    """Return the draft of the `most` nodes whose paths are the likeliest, the best path first.

    A parent comes before its children in `candidates` and its path is no less likely, so any prefix is a tree.
    """
    order = sorted(range(len(candidates)), key=lambda i: -candidates[i].path_prob)[:most]
    below: dict[int, list[int]] = {}
    for i in order:  # siblings by probability
        if candidates[i].path_prob > 0:
            below.setdefault(candidates[i].parent, []).append(i)
    tokens: list[int] = []
    parents: list[int] = []
    probs: list[float] = []
    distributions: list[Distribution] = []
    depths: dict[int, int] = {ROOT: -1}
    left = [(i, ROOT) for i in reversed(below.get(ROOT, ()))]
    while left:
        i, parent = left.pop()
        place = len(tokens)
        tokens.append(candidates[i].token)
        parents.append(parent)
        probs.append(candidates[i].prob)
        depths[place] = depths[parent] + 1
        if distribution is not None:
            distributions.append(distribution(depths[place], candidates[i].origin))
        left += [(child, place) for child in reversed(below.get(i, ()))]
    sources = (source,) * len(tokens)
    if distribution is not None:
        return Draft(tuple(tokens), tuple(parents), sources, None, tuple(distributions))
    return Draft(tuple(tokens), tuple(parents), sources, tuple(probs))
