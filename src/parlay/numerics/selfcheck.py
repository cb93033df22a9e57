"""Whether kernels keep the same-tokens guarantee here: rows alone against the same rows among others, bit by bit.

A library may sum in another order for few rows than for many, and which one does so where is not written anywhere.
So it is tried, on a model's own shapes and with data that cancel: what is left of such a sum is nothing but the
rounding errors of its order. On other data a difference in float32's last bit hides behind the rounding to bfloat16.
Random numbers come from integers, so that all machines compute on the same bits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import torch
from torch import Tensor

from parlay.kernels.base import AttentionMetadata, Kernels
from parlay.kernels.reference_cache_rows import in_bytes
from parlay.weights.kinds import BY_NAME, HALF, Kind
from parlay.weights.weight import Part, Weight

# Around powers of two, blocks of 4 and of 6 rows, and chunks of 48; 7 distinct rows fall on every place of those.
ROW_COUNTS = (
    *range(1, 10),
    *(11, 12, 13, 15, 16, 17, 18, 19, 23, 24, 25, 31, 32, 33, 36, 37, 47, 48, 49, 63, 64, 65, 95, 96, 97),
    *(127, 128, 129, 191, 192, 193, 255, 256, 257, 320),
)
DISTINCT = 7  # rows
FEW = (2, 3, 4, 5, 8, 13, 17, 50)  # for operations without blocks of rows
_KEYS = 160
_BLOCK = 16

Rows = Callable[[Tensor], Tensor]  # numbers of the distinct rows, [n] -> their results, [n, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One operation at one shape.

    Attributes:
        operation: a method of `Kernels`: `linear`, `logits`, `rms_norm`, `act_mul` or `attention`; or a whole model.
        sizes: K and N of a product, the width of a norm or activation, H, KV and D of attention, or a model's layers.
        dtype: dtype of inputs and weights.
        kind: kind of a product's weight, or of keys and values, where these are quantised.
    """

    operation: str
    sizes: tuple[int, ...]
    dtype: torch.dtype
    kind: str = ""

    def __str__(self) -> str:
        words = (self.operation, "x".join(map(str, self.sizes)), str(self.dtype).removeprefix("torch."), self.kind)
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a case.

    Attributes:
        row_counts: the numbers of rows among which a row had other bits than alone.
        bits: a checksum of the rows' bits alone; equal arithmetic gives equal checksums.
    """

    row_counts: tuple[int, ...]
    bits: int


def product_case(
    operation: str, inputs: int, outputs: int, dtype: torch.dtype, limit: int = 1 << 15, kind: str = ""
) -> Case:
    """Return the case of a weight `[outputs, inputs]`.

    Outputs are independent of each other, so some of them suffice; inputs are all needed.

    Args:
        operation: `linear` or `logits`.
        inputs: K.
        outputs: N.
        dtype: dtype of inputs and weights.
        limit: use only as many outputs as make this many elements, but at least 64.
        kind: kind of the weight, where that is quantised.
    """
    return Case(operation, (inputs, min(outputs, max(64, limit // inputs // 16 * 16))), dtype, kind)


def check(
    kernels: Kernels,
    cases: Iterable[Case],
    threads: int,
    row_counts: Sequence[int] = ROW_COUNTS,
    tick: Callable[[str], None] = lambda label: None,
) -> dict[Case, Finding]:
    """Compare the bits of rows alone on one thread with those of the same rows in calls of every size.

    Args:
        kernels: the kernels to check. Their threads and torch's are changed, and are `threads` in the end.
        cases: operations and shapes.
        threads: number of threads that the larger calls may use.
        row_counts: sizes of the calls; those around the kernels' own switches are added.
        tick: function called with a label before every case.
    """
    around = {count + d for count in kernels.row_thresholds for d in (-1, 0, 1) if count + d > 0}
    counts = {False: FEW, True: tuple(sorted({*row_counts, *around}))}
    made = {case: _OPERATIONS[case.operation](kernels, case) for case in cases}
    return compare(kernels, made, threads, lambda case: counts[case.operation in ("linear", "logits")], tick)


def compare(
    kernels: Kernels,
    made: Mapping[Case, Rows],
    threads: int,
    counts: Callable[[Case], Sequence[int]],
    tick: Callable[[str], None] = lambda label: None,
) -> dict[Case, Finding]:
    """Do what `check` does for anything that computes rows.

    Args:
        kernels: the kernels to check. Their threads and torch's are changed, and are `threads` in the end.
        made: functions that compute each case's rows, given the numbers of the distinct ones; in order at first.
        threads: number of threads that the larger calls may use.
        counts: sizes of the calls for a case.
        tick: function called with a label before every case.
    """
    _set_threads(kernels, 1)
    with kernels.device_context():
        alone = {case: torch.cat([rows(torch.tensor([i])) for i in range(DISTINCT)]) for case, rows in made.items()}
        _set_threads(kernels, threads)
        findings = {}
        for case, rows in made.items():
            tick(str(case))
            bad = []
            for count in counts(case):
                chosen = torch.arange(count) % DISTINCT
                if not _same_bits(rows(chosen), alone[case][chosen]):
                    bad.append(count)
            findings[case] = Finding(tuple(bad), crc32(_words(alone[case]).cpu().numpy().tobytes()))
    return findings


def _set_threads(kernels: Kernels, threads: int) -> None:
    torch.set_num_threads(threads)
    kernels.set_threads(threads)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(_words(a), _words(b))


def _words(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32)


def _random(seed: int, *shape: int) -> Tensor:
    """Return float32 numbers with all bits in use, from 2^-6 to 4 in size."""
    generator = torch.Generator().manual_seed(seed)
    mantissa = torch.randint(1 << 23, 1 << 24, shape, generator=generator)
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    exponent = torch.randint(0, 8, shape, generator=generator)
    return (mantissa * sign).float() / (1 << 22) / (1 << exponent)


def random_blocks(kind: Kind, outputs: int, inputs: int, seed: int) -> Weight:
    """Return a weight of random blocks whose factors are random numbers of ordinary size."""
    generator = torch.Generator().manual_seed(seed)
    shape = (outputs * inputs // kind.block, kind.size)
    blocks = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    for at in kind.factors:
        factors = torch.randint(0x2000, 0x3000, (len(blocks), 1), generator=generator, dtype=torch.int16)
        blocks[:, at : at + 2] = factors.view(torch.uint8)
    if kind.nibbles is not None:
        blocks[:, kind.nibbles + 7] = blocks[:, kind.nibbles + 7] & 15 | 0x20
    if kind.exponent is not None:
        blocks[:, kind.exponent] = 120 + blocks[:, kind.exponent] % 4
    return Weight((Part(kind, blocks.view(outputs, -1)),))


def _cancelling(inputs: int) -> tuple[Tensor, Tensor]:
    """Return indices [K] and signs [K] that make two factors' products cancel; see `_product`."""
    half = inputs // 2
    mixed = torch.randperm(half, generator=torch.Generator().manual_seed(inputs))
    odd = torch.arange(half, half + inputs % 2)  # left over
    return torch.cat((torch.arange(half), mixed, odd)), torch.cat((torch.ones(half), -torch.ones(inputs - half)))


def _product(kernels: Kernels, case: Case) -> Rows:
    inputs, outputs = case.sizes
    index, sign = _cancelling(inputs)
    x = kernels.to_device((_random(1, DISTINCT, inputs)[:, index] * sign).to(case.dtype))
    stored = torch.float16 if case.kind == HALF.name else case.dtype
    weight = Weight.of(_random(2, outputs, inputs)[:, index].to(stored).contiguous())
    if case.kind and BY_NAME[case.kind].block > 1:
        weight = random_blocks(BY_NAME[case.kind], outputs, inputs, seed=2)
    head = case.operation == "logits"
    packed = kernels.pack_head(weight) if head else kernels.pack_linear(weight)
    multiply = kernels.logits if head else kernels.linear

    def rows(chosen: Tensor) -> Tensor:
        out = torch.empty(len(chosen), outputs, dtype=torch.float32 if head else case.dtype)
        multiply(x[chosen], packed, out)
        return out

    return rows


def _norm(kernels: Kernels, case: Case) -> Rows:
    (width,) = case.sizes
    x, weight = (
        kernels.to_device(_random(seed, *shape).to(case.dtype))
        for seed, shape in ((1, (DISTINCT, width)), (2, (width,)))
    )

    def rows(chosen: Tensor) -> Tensor:
        out = torch.empty(len(chosen), width, dtype=case.dtype)
        kernels.rms_norm(x[chosen], weight, 1e-5, out)
        return out

    return rows


def _activation(kernels: Kernels, case: Case) -> Rows:
    (width,) = case.sizes
    gate_up = kernels.to_device(_random(1, DISTINCT, 2 * width).to(case.dtype))

    def rows(chosen: Tensor) -> Tensor:
        out = torch.empty(len(chosen), width, dtype=case.dtype)
        kernels.act_mul(gate_up[chosen], "silu", out)
        return out

    return rows


def _attention(kernels: Kernels, case: Case) -> Rows:
    heads, kv_heads, head_dim = case.sizes
    # A key occurs twice, far apart, with a value and its opposite.
    index, sign = _cancelling(_KEYS)
    shape = (_KEYS, kv_heads * head_dim)
    keys, values = _random(1, *shape)[index], _random(2, *shape)[index] * sign[:, None]

    def cache(x: Tensor) -> Tensor:
        rows = x.view(_KEYS // _BLOCK, _BLOCK, kv_heads, head_dim).transpose(1, 2).to(case.dtype).contiguous()
        return kernels.to_device(in_bytes(rows) if case.kind else rows)

    key_cache, value_cache = cache(keys), cache(values)
    query = kernels.to_device(_random(3, DISTINCT, heads, head_dim).to(case.dtype))
    last = torch.full((DISTINCT,), _KEYS, dtype=torch.int32)
    last[:3] = torch.tensor((1, _BLOCK + 1, _KEYS - 3))
    last, table = kernels.to_device(last), kernels.to_device(torch.arange(_KEYS // _BLOCK, dtype=torch.int32)[None])

    def rows(chosen: Tensor) -> Tensor:
        none = torch.zeros(len(chosen) + 1, dtype=torch.int32)
        request, first = none[:-1].clone(), none[:-1].clone()
        view = AttentionMetadata(table, request, first, last[chosen], none, torch.zeros(0, dtype=torch.int32))
        out = torch.empty(len(chosen), heads * head_dim, dtype=case.dtype)
        kernels.attention(query[chosen], key_cache, value_cache, view, head_dim**-0.5, out)
        return out

    return rows


_OPERATIONS: dict[str, Callable[[Kernels, Case], Rows]] = {
    "linear": _product,
    "logits": _product,
    "rms_norm": _norm,
    "act_mul": _activation,
    "attention": _attention,
}
