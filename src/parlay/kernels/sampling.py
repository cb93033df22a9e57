"""The contract of the kernels that choose tokens; the rules of `base` hold.

A draft with branches needs more than one token per row (`branch`), and of all candidates for its next level the few
that it continues from (`grow`). Neither affects the output, only what is drafted. Where drafts follow from a verdict
that the host does not know yet, it is found by `accept`.
"""

from typing import Protocol

from torch import Tensor

from parlay.kernels.metadata import Filters


class SamplingKernels(Protocol):
    """What a device offers for drawing. Shapes: V scores per row."""

    def process(self, scores: Tensor, temperatures: Tensor, filters: Filters | None) -> None:
        """Replace scores by `float32(score / temperature)`, and by -inf where a filter removes the token.

        NaN becomes -inf. At temperature 0 the first token in the total order keeps its score, alone. All
        implementations give the same bits.

        Args:
            scores: float32 `[rows, V]`, read and written; V < 2^21.
            temperatures: float32 `[rows]`, not negative, finite.
            filters: the rows' filters; None keeps all tokens.
        """
        ...

    def draw(
        self,
        scores: Tensor,
        temperatures: Tensor,
        seeds: Tensor,
        positions: Tensor,
        out: Tensor,
        filters: Filters | None = None,
        ids: Tensor | None = None,
        probs: Tensor | None = None,
    ) -> None:
        """Draw one token per row from softmax(score / temperature) with noise keyed by (seed, position, token).

        The token is the argmax of `double(float32(score / temperature)) + G(seed, position, token)` over the
        tokens that survive the filters, ties to the lowest id; at temperature 0 the argmax of the scores. NaN counts
        as -inf; a row of -inf gives 0. All implementations give the same tokens, exactly.

        Source: the Gumbel-max trick; coupling by shared noise: Daliri, Musco, Suresh 2024 (arXiv 2408.07978).

        Args:
            scores: float32 `[rows, V]`, logits before temperature; V < 2^21.
            temperatures: float32 `[rows]`, not negative, finite.
            seeds: int64 `[rows]` that holds the bits of a uint64.
            positions: int64 `[rows]`, position of the token to be drawn.
            out: int64 `[rows]`, written: tokens.
            filters: the rows' filters; None keeps all tokens.
            ids: int64 `[V]`, the token of each score, below 2^31: its noise, and what is written. Ties go to the
                first. None where scores are in the tokens' order.
            probs: float32 `[rows]`, written unless None: each drawn token's share in softmax(score / temperature),
                at temperature 0 in softmax(score), filters apart; 0 where that is no number. To float accuracy.
        """
        ...

    def log_softmax(self, scores: Tensor, out: Tensor) -> None:
        """`out = score - max - ln(sum of e^(score - max))`, the same bits in all implementations.

        Each e^(score - max) counts as so many units as `Filters` says: the sum is one of integers and depends on no
        order. NaN counts as -inf. Where a row's highest score is infinite, the tokens that have it share everything.

        Args:
            scores: float32 `[rows, V]`; V < 2^21.
            out: float32 `[rows, V]`, written; may be `scores`.
        """
        ...

    def log_probs(self, scores: Tensor, temperatures: Tensor, out: Tensor, filters: Filters | None = None) -> None:
        """Write the distribution that `draw` samples, as log-probabilities: `log_softmax` of `process`.

        The same bits in all implementations; at temperature 0 one token has everything.

        Args:
            scores: float32 `[rows, V]`, logits before temperature; V < 2^21.
            temperatures: float32 `[rows]`, not negative, finite.
            out: float32 `[rows, V]`, written; not `scores`.
            filters: the rows' filters; None keeps all tokens.
        """
        ...

    def excess(
        self,
        target: Tensor,
        draft: Tensor,
        scales: Tensor,
        mass: Tensor,
        out: Tensor | None = None,
        ids: Tensor | None = None,
    ) -> None:
        """`out = ln(max(scale e^target - e^draft, 0))`, and `mass` the sum of what the logarithm is taken of.

        That is what is left of the target's distribution after the draft's was rejected, not normalised. Shares below
        e^-29 count as nothing, and sums are of units (see `Filters`), so that all implementations give the same bits.

        Source: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192), the adjusted distribution; with a scale Sun et al.
        2024 (arXiv 2403.10444).

        Args:
            target: float32 `[rows, V]`, log-probabilities; V < 2^21.
            draft: float32 `[rows, D]`, log-probabilities.
            scales: float64 `[rows]`, 0 to 1, of which float32 is used.
            mass: float64 `[rows]`, written.
            out: float32 `[rows, V]`, written unless None; -inf where nothing is left.
            ids: int64 `[D]`, the target's tokens that the draft's are; None where D = V and they are the same.
        """
        ...

    def gumbel(self, seed: int, position: int, out: Tensor) -> None:
        """Write the noise `G(seed, position, token)` of all tokens, the same bits in all implementations.

        `G = -ln(-ln(1 - u))`, `u = (word + 1/2) / 2^32`, with the word `token % 4` of Philox4x32-10 at key
        (seed low, seed high) and counter (token // 4, position low, stream 0, position high).

        Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

        Args:
            seed: a number from 0 to 2^64 - 1.
            position: a number that is not negative.
            out: float64 `[V]`.
        """
        ...

    def branch(
        self,
        scores: Tensor,
        temperatures: Tensor,
        seeds: Tensor,
        positions: Tensor,
        out: Tensor,
        probs: Tensor,
        filters: Filters | None = None,
        ids: Tensor | None = None,
    ) -> None:
        """Choose the `k` tokens per row that are likeliest to be drawn, the one that `draw` gives first.

        They are the first in the order of what `draw` takes the argmax of: with noise, so that a proposer that shares
        the target's noise has the target's second choice second. All implementations give the same tokens, exactly.

        At temperature 0 a token's probability is its share in softmax(score). Otherwise it is its share in
        softmax(2 value) over the 16 highest values: a wide lead says that the target, which has the same noise, is
        likely to agree.

        Source: for the noise and the factor, simulations of coupled trees; without noise it is EAGLE-2's top-k
        (Li et al. 2024, arXiv 2406.16858).

        Args:
            scores: float32 `[rows, V]`; this and the others are as in `draw`.
            temperatures: at 0 there is no noise, and filters have no effect.
            seeds: int64 `[rows]`.
            positions: int64 `[rows]`.
            out: int64 `[rows, k]`, written; k at most 16. Where fewer tokens survive the filters, the first of `ids`,
                or 0, fills the rest.
            probs: float32 `[rows, k]`, written; 0 for what fills, and where it is no number.
            filters: the rows' filters.
            ids: int64 `[V]`.
        """
        ...

    def grow(
        self,
        tokens: Tensor,
        probs: Tensor,
        worth: Tensor,
        out: Tensor,
        out_worth: Tensor,
        origin: Tensor,
        chosen: Tensor,
        drafts: int,
        slots: Tensor | None = None,
        above: Tensor | None = None,
        below: Tensor | None = None,
    ) -> None:
        """Choose, for each of `n` drafts, the `w` nodes that it continues from at the next level.

        A node's worth is that of its parent times its own probability. The most worthy are chosen, of equals the
        first; a node that is worth nothing is chosen only where there are no others.

        Args:
            tokens: int64 `[n * v, k]`, the children of each draft's `v` nodes, from `branch`.
            probs: float32 `[n * v, k]`, their probabilities, from `branch`.
            worth: float32 `[n * v]`, of the nodes.
            out: int64 `[n * w]`, written: tokens of the chosen; w at most v * k.
            out_worth: float32 `[n * w]`, written.
            origin: int64 `[n * w]`, written: the row of each one's parent.
            chosen: int64 `[n * w]`, written: its number among its draft's v * k.
            drafts: number of drafts, n.
            slots: int32 `[n * w]`, where the keys of the chosen will lie; None for what has none.
            above: int32 `[n * v, d]`, the slots of each node's path, its own last; d may be 0.
            below: int32 `[n * w, d + 1]`, written: the same of the chosen.
        """
        ...

    def accept(
        self,
        drawn: Tensor,
        tokens: Tensor,
        parents: Tensor,
        roots: Tensor,
        path: Tensor,
        emitted: Tensor,
        accepted: Tensor,
        filler: int = 0,
    ) -> None:
        """Verify the drafts of `S` sequences in a pass of T rows: walk each along the tokens that were drawn.

        The walk begins at the row of the last known token. While a child of its row ran the token that was drawn
        there, it goes on from that child's row. Stop tokens and limits do not end it.

        Args:
            drawn: int64 `[T]`, the token drawn in each row.
            tokens: int64 `[T]`, the token that each row ran.
            parents: int32 `[T]`, of a node the row of its parent, which comes before it; -1 of other rows. Children
                of a row have different tokens.
            roots: int64 `[S]`, the row of each sequence's last known token.
            path: int64 `[S, d + 1]`, written: the rows of the walk; the last one fills the rest.
            emitted: int64 `[S, d + 1]`, written: the tokens drawn there, then `filler`.
            accepted: int64 `[S]`, written: number of accepted nodes; at most d.
            filler: token where none is emitted.
        """
        ...
