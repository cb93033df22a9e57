"""How weights lie for the native kernels: in panels of 32 outputs, each one stream."""

import torch

from parlay.kernels import _native
from parlay.kernels.huge_pages import empty_huge
from parlay.kernels.linear import PackedPart
from parlay.weights.codebooks import codebook_of, has_codebook
from parlay.weights.weight import Part

_PANEL = 32
_BF16 = torch.bfloat16


def pack_part(part: Part) -> PackedPart:
    """Return a part of a weight as `linear` reads it."""
    return _pack_blocks(part) if part.quantised else _pack_numbers(part)


def _pack_numbers(part: Part) -> PackedPart:
    """Lay out plain numbers in panels of 32 outputs, see csrc/linear.h: inputs run slowest, bfloat16 in pairs."""
    (outputs, inputs), dtype = part.data.shape, part.data.dtype
    step = 2 if dtype is _BF16 else 1
    padded = torch.nn.functional.pad(part.data, (0, -inputs % step, 0, -outputs % _PANEL))
    panels = padded.view(-1, _PANEL, padded.shape[1] // step, step).transpose(1, 2)
    packed = empty_huge(panels.shape, dtype)
    packed.copy_(panels)
    return PackedPart(part.kind, packed, outputs)


def _pack_blocks(part: Part) -> PackedPart:
    """Lay out blocks in panels of 32 outputs, see csrc/formats.h: as many bytes as before, but for small scales."""
    stored, outputs = part.data.contiguous(), len(part.data)
    panels = -(-outputs // _PANEL)
    size = _native.packed_bytes(part.inputs, part.kind.number)
    if not size:
        raise ValueError(f"{part.kind.name} has no products of its own; dequantise the weight first")
    packed = empty_huge((panels, size), torch.uint8)
    codebook = torch.from_numpy(codebook_of(part.kind.name)) if has_codebook(part.kind.name) else None
    _native.pack(stored, packed, part.inputs, part.kind.number, codebook)
    return PackedPart(part.kind, packed, outputs)
