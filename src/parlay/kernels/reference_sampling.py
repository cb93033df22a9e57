"""The slow, obvious twins of the native kernels that choose tokens."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parlay.kernels.base import Filters
from parlay.kernels.reference_noise import gumbel_noise, ln

FloatArray = npt.NDArray[np.float32]
_SEEN = 16  # values among which a sampled token's probability is its share
_SHARPNESS = 2.0  # of these shares


def decay(x: FloatArray) -> FloatArray:
    """Return e^x of what is not above 0, at least e^-30, by the same operations as the native one."""
    one, magic = np.float32(1), np.float32(1.5 * 2**23)
    bounded = np.maximum(x, np.float32(-30))
    shifted = bounded * np.float32(float.fromhex("0x1.715476p+0")) + magic
    n = shifted - magic
    high, low = (np.float32(float.fromhex(part)) for part in ("0x1.62e4p-1", "0x1.7f7d1cp-20"))  # of ln 2
    r = (bounded - n * high) - n * low
    q = np.full_like(r, float.fromhex("0x1.685188p-10"))
    for factor in ("0x1.123bdep-7", "0x1.555b98p-5", "0x1.55548ep-3", "0x1.fffff8p-2"):
        q = q * r + np.float32(float.fromhex(factor))
    p = (r * r * q + r) + one
    result: FloatArray = np.ldexp(p, n.astype(np.int32))
    return result


def survivors(scores: FloatArray, min_p: float, top_k: int, top_p: float) -> npt.NDArray[np.int64]:
    """Return the ids that survive the filters, in the total order.

    Args:
        scores: `[vocab]` after temperature, no NaN.
        min_p: see `Filters`, as the others.
        top_k: 0 or less, or the vocabulary or more, keeps all.
        top_p: 1 keeps all.
    """
    best = scores.max()
    if np.isinf(best):
        return np.flatnonzero(scores == np.inf)[:1]
    with np.errstate(over="ignore"):
        below = scores - best
    order = np.argsort(-scores, kind="stable")
    if min_p > 0:
        order = order[below[order] >= ln(np.array([max(min_p, 2.0**-1022)]))]
    if top_k > 0:
        order = order[:top_k]
    if top_p < 1:
        units = np.rint(decay(below[order]).astype(np.float64) * 2.0**42).astype(np.int64).cumsum()
        total = int(units[-1])
        target = min(max(math.ceil(top_p * float(total)), 1), total)
        order = order[: int(np.searchsorted(units, target)) + 1]
    return order


def process_row(
    scores: FloatArray, temperature: float, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0
) -> FloatArray:
    """Return one row as `Kernels.process` leaves it.

    Args:
        scores: `[vocab]` before temperature.
        temperature: 0 keeps the first token in the total order.
        min_p: see `Filters`, as the others.
        top_k: 0 or less, or the vocabulary or more, keeps all.
        top_p: 1 keeps all.
    """
    values: FloatArray = np.where(np.isnan(scores), np.float32(-np.inf), scores)
    if temperature == 0:
        kept = np.array([values.argmax()])
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            values = (values / np.float32(temperature)).astype(np.float32)
        values[np.isnan(values)] = -np.inf
        if min_p <= 0 and not 0 < top_k < len(values) and top_p >= 1:
            return values
        kept = survivors(values, min_p, top_k, top_p)
    processed = np.full_like(values, -np.inf)
    processed[kept] = values[kept]
    return processed


def _share(scores: FloatArray, place: int, temperature: float) -> float:
    """Return a score's share in the softmax of all, 0 where that is no number."""
    scaled = process_row(scores, temperature, 0.0, 0, 1.0).astype(np.float64)
    if scaled[place] == -np.inf or scaled.max() == np.inf:
        return 0.0
    powers = np.exp(scaled - scaled.max())
    return float(powers[place] / powers.sum())


def _lead(values: npt.NDArray[np.float64], own: float) -> float:
    """Return a value's share in the softmax of all times `_SHARPNESS`, 0 where that is no number."""
    if np.isinf(values[0]):
        return 0.0
    powers = np.exp(_SHARPNESS * (values - values[0]))
    return float(np.exp(_SHARPNESS * (own - values[0])) / powers.sum())


def _probabilities(logs: Tensor) -> FloatArray:
    """Return e^x of log-probabilities; less than a unit counts as nothing."""
    row = logs.numpy()
    return np.where(row > np.float32(-29), decay(np.minimum(row, np.float32(0))), np.float32(0))


def _noise(seed: Tensor, position: Tensor, tokens: Tensor) -> npt.NDArray[np.float64]:
    """Return the noise of tokens `[V]`."""
    noise = gumbel_noise(int(seed) % 2**64, int(position), int(tokens.max()) + 1)
    own: npt.NDArray[np.float64] = noise[tokens.numpy()]
    return own


class ReferenceSampling:
    """`SamplingKernels` as it reads; see there for what each method does."""

    def process(self, scores: Tensor, temperatures: Tensor, filters: Filters | None) -> None:  # noqa: D102
        rows = range(len(scores))
        limits = [(0.0, 0, 1.0) for _ in rows]
        if filters:
            limits = list(zip(filters.min_p.tolist(), filters.top_k.tolist(), filters.top_p.tolist(), strict=True))
        for row in rows:
            processed = process_row(scores[row].numpy(), float(temperatures[row]), *limits[row])
            scores[row] = torch.from_numpy(processed)

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
        processed = scores.clone()
        self.process(processed, temperatures, filters)
        tokens = torch.arange(scores.shape[1]) if ids is None else ids
        for row, values in enumerate(processed.double().numpy()):
            temperature = float(temperatures[row])
            if temperature > 0:
                values += _noise(seeds[row], positions[row], tokens)
            place = int(values.argmax())
            out[row] = tokens[place]
            if probs is not None:
                probs[row] = _share(scores[row].numpy(), place, temperature or 1.0)

    def log_softmax(self, scores: Tensor, out: Tensor) -> None:  # noqa: D102
        for row, given in enumerate(scores.numpy()):
            values = np.where(np.isnan(given), np.float32(-np.inf), given)
            best = values.max()
            if np.isinf(best):
                shared = values == best
                logs = np.where(shared, -ln(np.array([float(shared.sum())])), -np.inf)
            else:
                with np.errstate(over="ignore"):
                    units = np.rint(decay(values - best).astype(np.float64) * 2.0**42).astype(np.int64).sum()
                shift = ln(np.array([float(units)])) - 42 * float.fromhex("0x1.62e42fefa39efp-1")
                logs = (values.astype(np.float64) - float(best)) - shift
            with np.errstate(over="ignore"):
                out[row] = torch.from_numpy(logs.astype(np.float32))

    def log_probs(  # noqa: D102
        self, scores: Tensor, temperatures: Tensor, out: Tensor, filters: Filters | None = None
    ) -> None:
        out.copy_(scores)
        self.process(out, temperatures, filters)
        self.log_softmax(out, out)

    def excess(  # noqa: D102
        self,
        target: Tensor,
        draft: Tensor,
        scales: Tensor,
        mass: Tensor,
        out: Tensor | None = None,
        ids: Tensor | None = None,
    ) -> None:
        spread = torch.full_like(target, -math.inf)
        spread[:, torch.arange(target.shape[1]) if ids is None else ids] = draft
        for row, scale in enumerate(scales.float().numpy()):
            left = np.maximum(scale * _probabilities(target[row]) - _probabilities(spread[row]), np.float32(0))
            units = np.rint(left.astype(np.float64) * 2.0**42).astype(np.int64)
            mass[row] = float(units.sum()) / 2.0**42
            if out is not None:
                some = left > 0
                out[row] = -math.inf
                out[row, torch.from_numpy(some)] = torch.from_numpy(ln(left[some].astype(np.float64))).float()

    def gumbel(self, seed: int, position: int, out: Tensor) -> None:  # noqa: D102
        out.copy_(torch.from_numpy(gumbel_noise(seed, position, len(out))))

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
        tokens = torch.arange(scores.shape[1]) if ids is None else ids
        out[:], probs[:] = tokens[0], 0
        processed = scores.clone()
        self.process(processed, temperatures, filters)
        for row, values in enumerate(processed.double().numpy()):
            sampled = float(temperatures[row]) > 0
            if sampled:
                values += _noise(seeds[row], positions[row], tokens)
            else:
                values = np.nan_to_num(scores[row].double().numpy(), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
            order = np.argsort(-values, kind="stable")
            chosen = order[values[order] > -np.inf][: out.shape[1]]
            out[row, : len(chosen)] = tokens[chosen]
            for place, one in enumerate(chosen):
                if sampled:
                    probs[row, place] = _lead(values[order[:_SEEN]], values[one])
                else:
                    probs[row, place] = _share(scores[row].numpy(), int(one), 1.0)

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
        rows, children = tokens.shape
        nodes, wide = rows // drafts, len(out) // drafts
        worths = worth[:, None] * probs
        for draft in range(drafts):
            first = draft * nodes
            own = worths[first : first + nodes].reshape(-1).numpy()
            for place, best in enumerate(np.argsort(-own, kind="stable")[:wide]):
                row, to = first + int(best) // children, draft * wide + place
                out[to], out_worth[to] = tokens[row, int(best) % children], float(own[best])
                origin[to], chosen[to] = row, int(best)
                if slots is not None and above is not None and below is not None:
                    below[to] = torch.cat((above[row], slots[to : to + 1]))
