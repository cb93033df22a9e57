"""The slow twins of the kernels of recurrent layers: one row after another, in numpy."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from parlay.kernels.base import Gate
from parlay.kernels.metadata import STATE_PIECE, StateMetadata
from parlay.kernels.reference_sampling import FloatArray


def _numbers(x: Tensor) -> FloatArray:
    values: FloatArray = x.float().numpy()
    return values


def _sigmoid(x: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):  # whose sigmoid is 0
        power: FloatArray = np.exp(-x)
    return np.float32(1) / (np.float32(1) + power)


def _softplus(x: FloatArray) -> FloatArray:
    wide = x.astype(np.float64)
    soft: FloatArray = np.where(wide > 20, wide, np.log1p(np.exp(np.minimum(wide, 20)))).astype(np.float32)
    return soft


def _unit(x: FloatArray) -> FloatArray:
    unit: FloatArray = x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + np.float32(1e-6))
    return unit


def _paths(states: StateMetadata) -> Iterator[tuple[int, list[tuple[int, int]], list[list[int]]]]:
    """Yield of each sequence its slot, what is replayed, and its rows with those before it."""
    for slot, first, last, begin, end in states.sequences.tolist():
        if begin < end:
            yield (
                slot,
                states.replayed[first:last].tolist(),
                [[r, *states.rows[r, 1:].tolist()] for r in range(begin, end)],
            )


class ReferenceRecurrent:
    """That part of `Kernels`; see there for what each method does."""

    def causal_conv(  # noqa: D102
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        silu: bool,
        states: StateMetadata,
        tails: Tensor,
        kept: Tensor,
        out: Tensor,
    ) -> None:
        taps = len(weight)

        def after(seen: Tensor, row: Tensor, slot: int) -> Tensor:
            seen = torch.cat((seen, row[None]))[1:]
            if slot >= 0:
                tails[slot] = seen
            return seen

        for slot, replayed, rows in _paths(states):
            seen = tails[slot].clone() if slot >= 0 else tails.new_zeros(tails.shape[1:])
            for place, to in replayed:
                seen = after(seen, kept[place], to)
            behind = {-1: seen}
            for row, parent, to, place in rows:
                window = _numbers(torch.cat((behind[parent], x[row][None])))
                total = np.zeros(x.shape[1], np.float32)
                for j in range(taps):
                    total = total + _numbers(weight[j]) * window[j]
                if bias is not None:
                    total = total + _numbers(bias)
                if silu:
                    total = total * _sigmoid(total)
                out[row] = torch.from_numpy(total)
                behind[row] = after(behind[parent], x[row], to)
                if place >= 0:
                    kept[place] = x[row]

    def gated_delta(  # noqa: D102
        self,
        x: Tensor,
        gates: Tensor,
        rate: Tensor,
        step_bias: Tensor,
        groups: int,
        tiled: bool,
        states: StateMetadata,
        stored: Tensor,
        kept: Tensor,
        kept_gates: Tensor,
        out: Tensor,
        channels: Tensor | None = None,
        write_scale: float = 1.0,
    ) -> None:
        heads, keys = stored.shape[1], stored.shape[3]
        group = np.arange(heads) % groups if tiled else np.arange(heads) // (heads // groups)
        gates = gates if channels is None else torch.cat((gates, channels), dim=1)

        def update(state: FloatArray, row: Tensor, gate: Tensor) -> tuple[FloatArray, FloatArray]:
            values, g = _numbers(row), _numbers(gate)
            q, k, v = np.split(values, (groups * keys, 2 * groups * keys))
            q, k = (_unit(part.reshape(groups, keys))[group] for part in (q, k))
            steps = _softplus(g[heads:] + step_bias.numpy()).reshape(heads, -1)  # of a head, or of its keys
            decay = np.exp(rate.numpy()[:, None] * steps)[..., None]
            state = state * decay
            difference = v.reshape(heads, -1) - (state * k[..., None]).sum(axis=1)
            state = (
                state
                + k[..., None] * (difference * (np.float32(write_scale) * _sigmoid(g[:heads]))[:, None])[:, None]
            )
            read = (state * (q / np.float32(keys**0.5))[..., None]).sum(axis=1)
            return state, read

        self._scan(update, x, gates, states, stored, kept, kept_gates, out)

    def state_space(  # noqa: D102
        self,
        x: Tensor,
        gates: Tensor,
        rate: Tensor,
        step_bias: Tensor,
        skip: Tensor,
        groups: int,
        least_step: float,
        most_step: float,
        states: StateMetadata,
        stored: Tensor,
        kept: Tensor,
        kept_gates: Tensor,
        out: Tensor,
    ) -> None:
        heads, keys = stored.shape[1], stored.shape[3]
        group = np.arange(heads) // (heads // groups)

        def update(state: FloatArray, row: Tensor, gate: Tensor) -> tuple[FloatArray, FloatArray]:
            values = _numbers(row)
            size = out.shape[1]
            own, b, c = np.split(values, (size, size + groups * keys))
            own = own.reshape(heads, -1)
            b, c = (part.reshape(groups, keys)[group] for part in (b, c))
            step = _softplus(_numbers(gate) + step_bias.numpy()).clip(least_step, most_step)
            state = state * np.exp(rate.numpy() * step)[:, None, None] + b[..., None] * (own * step[:, None])[:, None]
            return state, (state * c[..., None]).sum(axis=1) + skip.numpy()[:, None] * own

        self._scan(update, x, gates, states, stored, kept, kept_gates, out)

    @staticmethod
    def _scan(
        update: Callable[[FloatArray, Tensor, Tensor], tuple[FloatArray, FloatArray]],
        x: Tensor,
        gates: Tensor,
        states: StateMetadata,
        stored: Tensor,
        kept: Tensor,
        kept_gates: Tensor,
        out: Tensor,
    ) -> None:
        """Update a state `[heads, keys, values]` row by row; see `Kernels.gated_delta` for the arguments."""
        _, heads, pieces, keys, _ = stored.shape
        size = out.shape[1] // heads

        def keep(state: FloatArray, slot: int) -> FloatArray:
            if slot >= 0:
                padded = np.zeros((heads, keys, pieces * STATE_PIECE), np.float32)
                padded[..., :size] = state
                stored[slot] = torch.from_numpy(padded).view(heads, keys, pieces, STATE_PIECE).transpose(1, 2)
            return state

        for slot, replayed, rows in _paths(states):
            state = np.zeros((heads, keys, size), np.float32)
            if slot >= 0:
                state = stored[slot].transpose(1, 2).reshape(heads, keys, -1)[..., :size].numpy()
            for place, to in replayed:
                state = keep(update(state, kept[place], kept_gates[place])[0], to)
            behind = {-1: state}
            for row, parent, to, place in rows:
                state, read = update(behind[parent], x[row], gates[row])
                behind[row] = keep(state, to)
                out[row] = torch.from_numpy(read.reshape(-1))
                if place >= 0:
                    kept[place], kept_gates[place] = x[row], gates[row]

    def gated_norm(  # noqa: D102
        self, x: Tensor, gate: Tensor, weight: Tensor, group: int, eps: float, gate_first: bool, out: Tensor
    ) -> None:
        shape = (len(x), -1, group)
        values, opened = _numbers(x), _numbers(gate)
        opened = opened * _sigmoid(opened)
        parts = (values * opened if gate_first else values).reshape(shape)
        mean = np.square(parts).sum(axis=-1, keepdims=True) / np.float32(group)
        normal = torch.from_numpy(parts * (np.float32(1) / np.sqrt(mean + np.float32(eps)))).to(x.dtype)
        weighted = (normal * weight.view(-1, group)).view(x.shape)
        out.copy_(weighted if gate_first else weighted.float() * torch.from_numpy(opened))

    def multiply(self, x: Tensor, other: Tensor, gate: Gate = "plain") -> None:  # noqa: D102
        if gate != "plain":
            other = torch.from_numpy((_sigmoid if gate == "sigmoid" else _softplus)(_numbers(other))).to(x.dtype)
        if other.numel():
            x.view(*other.shape, -1).mul_(other[..., None])
