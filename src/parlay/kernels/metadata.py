"""What kernels are told about rows besides numbers: which keys they see, which tokens they may draw."""

from dataclasses import dataclass

from torch import Tensor

STATE_PIECE = 32  # columns of a recurrent state that lie together, as in csrc/table.h


@dataclass(frozen=True)
class AttentionMetadata:
    """Which keys each of `T` rows sees. All tensors are int32.

    A row sees the keys first..last-1 of its request's block table and after them its list of extra slots: key
    `last + i` of the row lies in its i-th extra slot. That list holds the row's ancestors in a draft, oldest
    first, and the row itself.

    Attributes:
        tables: `[requests, max_blocks]`, block ids. Adjacent rows of a request may be read together, so its entries
            hold blocks from the lowest `first` to the highest `last` among them; the others are not used.
        row_request: `[T]`, the row of `tables` that belongs to each row.
        first: `[T]`, first key seen.
        last: `[T]`, one past the last key seen through the table; at least `first`.
        extra_offsets: `[T + 1]`, where each row's part of `extra_slots` begins.
        extra_slots: `[E]`, slots.
    """

    tables: Tensor
    row_request: Tensor
    first: Tensor
    last: Tensor
    extra_offsets: Tensor
    extra_slots: Tensor


@dataclass(frozen=True)
class StateMetadata:
    """What each of `T` rows of a recurrent layer goes on from, and what is left of it. All tensors are int32.

    A sequence begins with the state of a slot, or with zeros. Rows of a draft that a step before ran and that were
    accepted are applied to it first, by what was kept of them; then its own rows, each after the one that it goes on
    from. A state is stored after some of them. Of rows of a draft that is not yet verified the inputs are kept
    instead, at a place each. No slot or place is both read and written.

    Attributes:
        sequences: `[S, 5]`: slot, or -1 for zeros; begin and end of its part of `replayed`; begin and end of its
            rows. Those without rows are last.
        rows: `[T, 4]`: sequence, or -1 of a row that pads a pass, of which nothing is kept; the row before it on its
            path, or -1 for none; the slot that the state is stored to behind it, or -1; the place that its inputs are
            kept at, or -1. A sequence's rows with a place are its last; each of the others goes on from the one
            before.
        replayed: `[R, 2]`: place; the slot that the state is stored to behind it, or -1.
    """

    sequences: Tensor
    rows: Tensor
    replayed: Tensor


@dataclass(frozen=True)
class Filters:
    """Which tokens of each row may be drawn: those that survive min-p, then top-k, then top-p.

    With `s = float32(score / temperature)`, `best` the highest s of the row and the total order (s descending, id
    ascending), the survivors are a prefix of that order:
        - min-p keeps the tokens whose `float32(s - best)` is at least `ln(min_p)`;
        - top-k keeps the first `top_k` of these;
        - top-p keeps the shortest prefix of these whose units are at least `ceil(top_p * units of all of these)`,
          where a token has `rint(2^42 w)` units and w is e^float32(s - best) in float32. Sums of units are exact,
          so a nucleus depends on no order of summation. What is less likely than 2^-43 of the best token weighs
          nothing; of 262,144 tokens all that is less than 2^-25 of the whole.

    Where best is +inf a row that filters keeps the first token that has it, alone. At temperature 0 filters have no
    effect.

    Attributes:
        min_p: float64 `[rows]`, 0 to 1; 0 keeps all.
        top_k: int64 `[rows]`; 0 or less, or V or more, keeps all.
        top_p: float64 `[rows]`, above 0, at most 1; 1 keeps all.
    """

    min_p: Tensor
    top_k: Tensor
    top_p: Tensor

    def first(self, rows: int) -> "Filters":
        """Return the filters of the first rows."""
        return Filters(self.min_p[:rows], self.top_k[:rows], self.top_p[:rows])
