"""The contract of the kernels of recurrent layers; the rules of `base` hold."""

from typing import Literal, Protocol

from torch import Tensor

from parlay.kernels.metadata import StateMetadata

Gate = Literal["plain", "sigmoid", "softplus"]


class RecurrentKernels(Protocol):
    """What a device offers for layers with states. Shapes: T rows."""

    def causal_conv(
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
        """`out[i] = rounded(f(sum of weight[j] * x[L - 1 - j rows before i] over j + bias))`, column by column.

        Rows before are those of a row's path.

        Args:
            x: T `[rows, C]`.
            weight: T `[L, C]`, 2 to 8 taps, the row's own last; they are added in order.
            bias: T `[C]`; None for none.
            silu: f is that instead of nothing.
            states: what rows go on from.
            tails: T `[slots, L - 1, C]`, the last rows of x, newest last.
            kept: T `[places, C]`, rows of x.
            out: T `[rows, C]`.
        """
        ...

    def gated_delta(
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
        """The gated delta rule, row by row in float32: `S = d S; S += k (b (v - S^T k))^T; out = rounded(S^T q)`.

        `d = e^(rate softplus(gates[H + h] + step_bias))` and `b = write_scale sigmoid(gates[h])`; `k = l2(k)` and
        `q = l2(q) / sqrt(K)` with `l2(x) = x / sqrt(sum(x^2) + 1e-6)`. With `channels` d is a diagonal matrix of K
        such numbers instead: `S = d S` multiplies each row of S with its own.

        Source: Yang et al. 2024 (arXiv 2412.06464), equation 10; with channels, Kimi Team 2025 (arXiv 2510.26692),
        equation 1.

        Args:
            x: T `[rows, 2 G K + H V]`: queries, keys, values; V is a multiple of 16.
            gates: T `[rows, 2 H]`; beside channels `[rows, H]`.
            rate: float32 `[H]`, below 0.
            step_bias: float32 `[H]`; beside channels `[H K]`.
            groups: G, heads of queries and keys. H / G neighbouring heads of values read the same one,
            tiled: or with this head h reads `h % G`.
            states: what rows go on from.
            stored: float32 `[slots, H, ceil(V / 32), K, 32]`, columns of S in pieces.
            kept: T `[places, 2 G K + H V]`, rows of x.
            kept_gates: T `[places, 2 H]`, rows of gates; beside channels `[places, H + H K]`, theirs behind.
            out: T `[rows, H V]`.
            channels: T `[rows, H K]`, in place of the last H gates.
            write_scale: factor in b; 2 allows negative eigenvalues of the state transition. Source: Grazzi et al.
                2024 (arXiv 2411.12537).
        """
        ...

    def state_space(
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
        """Mamba-2's recurrence, row by row in float32: `S = e^(rate s) S + B (s x)^T; out = rounded(S^T C + skip x)`.

        `s = clamp(softplus(gates + step_bias), least_step, most_step)`.

        Source: Dao and Gu 2024 (arXiv 2405.21060), section 3.

        Args:
            x: T `[rows, H V + 2 G K]`: x, B, C; V is a multiple of 16. H / G neighbouring heads share B and C.
            gates: T `[rows, H]`.
            rate: float32 `[H]`, below 0.
            step_bias: float32 `[H]`.
            skip: float32 `[H]`.
            groups: G.
            least_step, most_step: bounds of s.
            states: what rows go on from.
            stored: float32 `[slots, H, ceil(V / 32), K, 32]`, columns of S in pieces.
            kept: T `[places, H V + 2 G K]`, rows of x.
            kept_gates: T `[places, H]`, rows of gates.
            out: T `[rows, H V]`.
        """
        ...

    def gated_norm(
        self, x: Tensor, gate: Tensor, weight: Tensor, group: int, eps: float, gate_first: bool, out: Tensor
    ) -> None:
        """`rms_norm` of each `group` of columns, then times `silu(gate)`, rounded again; or of x times that.

        Args:
            x: T `[rows, N]`.
            gate: T `[rows, N]`.
            weight: T `[group]`, or `[N]`.
            group: columns; it divides N.
            eps: added to the mean.
            gate_first: x is multiplied before it is normalised, without rounding.
            out: T `[rows, N]`; it may be x.
        """
        ...
