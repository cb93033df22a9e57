"""Mixtures of experts, in Triton: which experts a row goes to, and the sum of what they answer."""

import triton
import triton.language as tl
from torch import Tensor

from .elementwise import sigmoid
from .launch import EXACT, padded, rounded

_PIECE = 1024  # columns at most that one program mixes
_NONE = tl.constexpr(2**30)  # above every index


@triton.jit
def _best(values, free, index):
    """Return the greatest of the free values, none of which is NaN, and the lowest index that has it."""
    most = tl.max(tl.where(free, values, float("-inf")))
    return most, tl.min(tl.where(free & (values == most), index, _NONE))


@triton.jit
def _shares(scores, bias, free, index, SIGMOID: tl.constexpr, GROUPS: tl.constexpr):
    """Return what experts take of a row, what that is to be divided by, and by which they are chosen: never NaN."""
    score = tl.load(scores + index, mask=free, other=0.0)
    low = float("-inf")
    choice = tl.where(free & (score == score), score, low)
    if SIGMOID:
        share = tl.where(free, sigmoid(score), 0.0)
        total = 1.0
    else:
        most = tl.max(choice)
        most = tl.where(most == low, tl.load(scores), most)
        share = tl.where(free, tl.exp(score - most), 0.0)
        total = tl.sum(share)
    if (SIGMOID and GROUPS > 1) or bias is not None:  # sigmoids of high scores are alike
        choice = tl.div_rn(share, total)
        if bias is not None:
            choice += tl.load(bias + index, mask=free, other=0.0)
        choice = tl.where(choice == choice, choice, low)
    return share, total, choice


@triton.jit
def _of_best_groups(
    choice, free, member, SIZE: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr
):
    """Return which experts are free and in one of the groups whose two best are the best."""
    low = float("-inf")
    best = tl.max(tl.where(free, choice, low), axis=1)
    worth = best
    if SIZE > 1:
        first = tl.min(tl.where(free & (choice == best[:, None]), member, _NONE), axis=1)
        worth += tl.max(tl.where(free & (member != first[:, None]), choice, low), axis=1)
        worth = tl.where(worth == worth, worth, low)
    groups = tl.arange(0, BLOCK)
    left = groups < GROUPS
    for _ in range(KEPT):
        _most, found = _best(worth, left, groups)
        left = left & (groups != found)
    return free & (left[:, None] == 0)


@triton.jit(do_not_specialize_on_alignment=["scores", "experts", "weights", "bias", "scales"])
def _route(
    scores, experts, weights, bias, scales, factor,
    EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr, NORMALISE: tl.constexpr,
    SIGMOID: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_CHOSEN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    size: tl.constexpr = EXPERTS // GROUPS
    group = tl.arange(0, BLOCK_GROUPS)[:, None]
    member = tl.arange(0, BLOCK)[None, :]
    index = group * size + member  # an expert's id, and another one's where it is not free
    free = (group < GROUPS) & (member < size)
    share, total, choice = _shares(scores + row * EXPERTS, bias, free, index, SIGMOID, GROUPS)
    if GROUPS > 1:
        free = _of_best_groups(choice, free, member, size, GROUPS, KEPT, BLOCK_GROUPS)
    place = tl.arange(0, BLOCK_CHOSEN)
    ids = tl.zeros((BLOCK_CHOSEN,), tl.int32)
    shares = tl.zeros((BLOCK_CHOSEN,), tl.float32)
    own_total = tl.sum(shares)  # 0, to which shares are added one by one
    for j in range(CHOSEN):
        _most, found = _best(choice, free, index)
        free = free & (index != found)
        own = tl.sum(tl.where(index == found, share, 0.0))
        ids = tl.where(place == j, found, ids)
        shares = tl.where(place == j, own, shares)
        own_total += own
    if NORMALISE:
        total = own_total
        if SIGMOID:
            total += 1e-20  # all may be too small for a number
    weight = tl.div_rn(shares, total) * factor
    inside = place < CHOSEN
    if scales is not None:
        weight = weight * tl.load(scales + ids, mask=inside, other=0.0)
    tl.store(experts + row * CHOSEN + place, ids, mask=inside)
    tl.store(weights + row * CHOSEN + place, weight, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["x", "weights", "out", "shared", "gate"])
def _mix_experts(x, weights, out, shared, gate, CHOSEN: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    dtype: tl.constexpr = out.dtype.element_ty
    total = tl.zeros((BLOCK,), tl.float32)
    for j in range(CHOSEN):
        answer = tl.load(x + (row * CHOSEN + j) * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        total = total + tl.load(weights + row * CHOSEN + j) * answer
    if shared is not None:
        own = tl.load(shared + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        if gate is not None:
            own = own * sigmoid(tl.load(gate + row))
        total = total + own
    tl.store(out + row * WIDTH + column, rounded(total, dtype).to(dtype), mask=inside)


class TritonRouting:
    """Choice of experts, and sums of their answers; see `Kernels` for what each method does."""

    def route(  # noqa: D102
        self,
        scores: Tensor,
        experts: Tensor,
        weights: Tensor,
        normalise: bool,
        sigmoid: bool = False,
        bias: Tensor | None = None,
        groups: int = 1,
        kept_groups: int = 1,
        factor: float = 1.0,
        scales: Tensor | None = None,
    ) -> None:
        rows, count = scores.shape
        chosen = weights.shape[1]
        if groups < 1 or count % groups or not 1 <= kept_groups <= groups or chosen > count // groups * kept_groups:
            raise ValueError("a row is to choose among whole groups of as many experts at least")
        if not rows or not chosen:
            return
        block_groups, block = padded(groups), padded(count // groups)
        _route[rows,](
            scores,
            experts,
            weights,
            bias,
            scales,
            float(factor),
            count,
            chosen,
            groups,
            kept_groups,
            normalise,
            sigmoid,
            block_groups,
            block,
            padded(chosen),
            num_warps=1 if block_groups * block <= 512 else 4,
            **EXACT,
        )

    def mix_experts(  # noqa: D102
        self, x: Tensor, weights: Tensor, out: Tensor, shared: Tensor | None = None, gate: Tensor | None = None
    ) -> None:
        rows, chosen, width = x.shape
        if not rows or not width:
            return
        block = min(padded(width), _PIECE)
        _mix_experts[rows, triton.cdiv(width, block)](
            x, weights, out, shared, gate, chosen, width, block, num_warps=4, **EXACT
        )
