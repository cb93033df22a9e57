"""The native kernels that choose tokens."""

import torch
from torch import Tensor

from parlay.kernels import _native
from parlay.kernels.base import AttentionView, Filters
from parlay.kernels.checks import fits as _fits
from parlay.kernels.checks import sound as _sound

_NONE = (0, 0, 0)  # addresses of filters that keep all
Held = Tensor | AttentionView | Filters | None


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class NativeDrawing:
    """`Drawing` in C++; see there for what each method does."""

    # While recording: every tensor that an operation was given, lest its memory go to somebody else.
    _held: list[Held] | None

    def process(self, scores: Tensor, temperatures: Tensor, filters: Filters | None) -> None:  # noqa: D102
        assert _sound(scores, temperatures)
        rows, vocab = scores.shape
        assert scores.dtype is torch.float32
        assert _fits(filters, rows)
        if self._held is not None:
            self._held += (scores, temperatures, filters)
        _native.process(
            scores.data_ptr(), temperatures.data_ptr(), *(filters.addresses if filters else _NONE), rows, vocab
        )

    def draw(  # noqa: D102
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
        assert _sound(scores, temperatures)
        assert scores.dtype is torch.float32
        assert all(t is None or t.dtype is torch.int64 for t in (seeds, positions, out, ids))
        rows, vocab = scores.shape
        assert _fits(filters, rows)
        if self._held is not None:
            self._held += (scores, temperatures, seeds, positions, out, filters, ids, probs)
        noise = (seeds.data_ptr(), positions.data_ptr(), out.data_ptr())
        named = (0 if ids is None else ids.data_ptr(), 0 if probs is None else probs.data_ptr())
        limits = filters.addresses if filters else _NONE
        _native.draw(scores.data_ptr(), temperatures.data_ptr(), *limits, *noise, *named, rows, vocab)

    def gumbel(self, seed: int, position: int, out: Tensor) -> None:  # noqa: D102
        assert out.dtype is torch.float64
        if self._held is not None:
            self._held += (out,)
        _native.gumbel(seed, position, out.data_ptr(), out.size(0))

    def branch(  # noqa: D102
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
        assert _sound(scores, temperatures)
        assert scores.dtype is probs.dtype is torch.float32
        assert all(t is None or t.dtype is torch.int64 for t in (seeds, positions, out, ids))
        assert out.shape == probs.shape
        assert out.is_contiguous()
        assert probs.is_contiguous()
        rows, vocab = scores.shape
        assert _fits(filters, rows)
        if self._held is not None:
            self._held += (scores, temperatures, seeds, positions, out, probs, filters, ids)
        noise = (seeds.data_ptr(), positions.data_ptr(), out.data_ptr())
        limits = filters.addresses if filters else _NONE
        _native.branch(
            scores.data_ptr(),
            temperatures.data_ptr(),
            *limits,
            *noise,
            _at(ids),
            probs.data_ptr(),
            rows,
            vocab,
            out.size(1),
        )

    def grow(  # noqa: D102
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
        given = (tokens, probs, worth, out, out_worth, origin, chosen)
        assert all(t.is_contiguous() for t in given)
        assert tokens.dtype is out.dtype is origin.dtype is chosen.dtype is torch.int64
        assert all(t is None or (t.dtype is torch.int32 and t.is_contiguous()) for t in (slots, above, below))
        if self._held is not None:
            self._held += (*given, slots, above, below)
        rows, children = tokens.shape
        _native.grow(
            tokens.data_ptr(),
            probs.data_ptr(),
            worth.data_ptr(),
            out.data_ptr(),
            out_worth.data_ptr(),
            origin.data_ptr(),
            chosen.data_ptr(),
            _at(slots),
            _at(above),
            _at(below),
            drafts,
            rows,
            children,
            out.size(0),
            0 if above is None else above.size(1),
        )
