"""The contract of the kernels.

Rules for every operation, unless its docstring says otherwise:
    - tensors are contiguous; dtype "T" is float32 or bfloat16, the same for all T arguments of a call;
    - results are written to given outputs, nothing is allocated for the caller;
    - **row invariance**: the bits of a row's result depend on that row's inputs alone, never on the number of
      rows, the row's place, the other rows or the number of threads;
    - sums run in float32; a result is rounded to T where the docstring says "rounded", and nowhere else.

Torch operations that are row-invariant on a CPU and may be used outside the kernels: embedding, indexing and
copies; comparisons, maxima and integer arithmetic; single additions, products and quotients; cumsum. Not: matmul, sum
or logsumexp over a vocabulary, and any transcendental function, whose vector body and scalar tail differ; nor softmax
and log_softmax, whose bits depend on the instruction set that torch has chosen, which no numerics id names.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from torch import Tensor

from parlay.kernels.experts import ExpertKernels
from parlay.kernels.linear import LinearWeight
from parlay.kernels.memory import DeviceMemory, Staging
from parlay.kernels.metadata import AttentionMetadata, Filters, StateMetadata
from parlay.kernels.recurrent import Gate, RecurrentKernels
from parlay.kernels.sampling import SamplingKernels
from parlay.weights.weight import Weight

__all__ = ["Activation", "AttentionMetadata", "Filters", "Gate", "Kernels", "Staging", "StateMetadata"]

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu"]


class Kernels(DeviceMemory, RecurrentKernels, ExpertKernels, SamplingKernels, Protocol):
    """What a device offers. Shapes: T rows, H query heads, KV key heads, D head dimension.

    Attributes:
        name: the implementation's name and instruction set; a part of the numerics id.
        row_thresholds: numbers of rows from which `linear` and `logits` take another code path. It may change speed
            only, and the self-check tests both sides.
        prefetch: sets how far ahead weights are asked for, see `tuning.Prefetching`; None if it is fixed.
        host: kernels for tensors in the machine's memory; these themselves, unless they are a GPU's.
    """

    name: str
    row_thresholds: tuple[int, ...]
    prefetch: Callable[[int, int, int], None] | None

    @property
    def host(self) -> "Kernels": ...  # noqa: D102

    def fallback(self) -> "Kernels | None":
        """Return kernels that trust a library less and are slower, or None where there are none.

        Used where these break the contract on this machine; weights packed for these are of no use to those.
        """
        ...

    def set_threads(self, threads: int) -> None:
        """Set how many threads the kernels may use, the caller's included; not while a kernel runs."""
        ...

    def record(self, work: Callable[[], object]) -> Callable[[], None] | None:
        """Run `work`, and return a function that runs the operations it called once more, on the same memory.

        What is to change from run to run is written into the tensors that `work` used. Anything that `work` does
        besides calling these kernels is not repeated.

        Returns:
            None where the kernels cannot record; `work` has not run then.
        """
        ...

    def embed(self, weight: Tensor, tokens: Tensor, out: Tensor) -> None:
        """`out[i] = weight[tokens[i]]`.

        Args:
            weight: T `[V, H]`.
            tokens: int64 `[rows]`, each at least 0 and below V.
            out: T `[rows, H]`.
        """
        ...

    def embed_packed(self, weight: LinearWeight, tokens: Tensor, out: Tensor) -> None:
        """`out[i] = rounded(weight[tokens[i]])`, for a weight that is quantised or in float16.

        Args:
            weight: a weight from `pack_head`, `[V, H]`, of one part.
            tokens: int64 `[rows]`, each at least 0 and below V.
            out: T `[rows, H]`.
        """
        ...

    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        out: Tensor,
        plus_one: bool = False,
        delta: Tensor | None = None,
    ) -> None:
        """`out = rounded(rounded(x * rsqrt(mean(x^2) + eps)) * weight)`; `out` may be `x` or `delta`.

        Source: Zhang and Sennrich 2019 (arXiv 1910.07467); rounding as in transformers' LlamaRMSNorm.

        Args:
            x: T `[rows, H]`; written where there is a `delta`.
            weight: T `[H]`.
            eps: added to the mean.
            out: T `[rows, H]`.
            plus_one: `weight` is stored less one: `out = rounded(x * rsqrt(mean(x^2) + eps) * (1 + weight))`, as in
                transformers' GemmaRMSNorm.
            delta: T `[rows, H]`: first `x = rounded(x + delta)`.
        """
        ...

    def head_norm(
        self,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        heads: int,
        eps: float,
        plus_one: bool = False,
        v_weight: Tensor | None = None,
    ) -> None:
        """`rms_norm` of every query head and every key head by itself, in place.

        Args:
            qkv: T `[rows, (H + 2 KV) * D]`, queries, then keys, then values.
            q_weight: T `[D]`.
            k_weight: T `[D]`.
            heads: H.
            eps: added to the mean.
            plus_one: whether weights are stored less one, see `rms_norm`.
            v_weight: T `[D]`, of values; with None they stay as they are.
        """
        ...

    def head_squares(self, qkv: Tensor, q_squares: Tensor, k_squares: Tensor) -> None:
        """Write the sum of squares of every query head and every key head.

        Args:
            qkv: T `[rows, (H + 2 KV) * D]`, queries, then keys, then values.
            q_squares: float32 `[rows, H]`.
            k_squares: float32 `[rows, KV]`.
        """
        ...

    def joint_norm(
        self,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        q_squares: Tensor,
        k_squares: Tensor,
        heads: int,
        eps: float,
    ) -> None:
        """`rms_norm` of all query heads together and of all key heads together, in place.

        The means are of the sums of squares, added in their order; some heads may be on other ranks.

        Args:
            qkv: T `[rows, (H + 2 KV) * D]`, queries, then keys, then values, which stay as they are.
            q_weight: T `[H * D]`.
            k_weight: T `[KV * D]`.
            q_squares: float32 `[rows, at least H]`, from `head_squares`, of all ranks.
            k_squares: float32 `[rows, at least KV]`, from `head_squares`, of all ranks.
            heads: H.
            eps: added to the mean.
        """
        ...

    def layer_norm(
        self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor, delta: Tensor | None = None
    ) -> None:
        """`out = rounded((x - mean(x)) * rsqrt(mean((x - mean(x))^2) + eps) * weight + bias)`.

        `out` may be `x` or `delta`. Source: Ba, Kiros and Hinton 2016 (arXiv 1607.06450).

        Args:
            x: T `[rows, H]`; written where there is a `delta`.
            weight: T `[H]`.
            bias: T `[H]`.
            eps: added to the variance.
            out: T `[rows, H]`.
            delta: T `[rows, H]`: first `x = rounded(x + delta)`.
        """
        ...

    def rotary_store(
        self,
        qkv: Tensor,
        positions: Tensor,
        slots: Tensor,
        cos_sin: Tensor,
        q_out: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> None:
        """Rotate queries and keys (rounded once) and store keys and values in the cache.

        Half-split form: `(a, b) -> (a cos - b sin, b cos + a sin)` for the two halves of a head's first R columns,
        products and sums in float32 without fused multiply-add. The other columns stay as they are.

        Source: Su et al. 2021 (arXiv 2104.09864).

        Args:
            qkv: T `[rows, (H + KV) * D + KV * V]`, queries, then keys, then values, which may have another width.
            positions: int32 `[rows]`.
            slots: int64 `[rows]`; slot = block * block_size + offset. Rows of one slot have equal content; of rows
                with a negative one nothing is stored.
            cos_sin: float32 `[max_len, R]`, R/2 cosines and R/2 sines of each position; R is even, at most D.
            q_out: T `[rows, H, D]`.
            key_cache: T `[num_blocks, KV, block_size, D]`, or in eight bits, uint8 `[..., row_bytes(D)]`: every 32
                numbers of a row share a scale, as in GGUF's Q8_0.
            value_cache: as `key_cache`, with V for D.
            q_norm: T `[D]`, weight of an `rms_norm` of each query head behind its rotation; None for none.
            k_norm: T `[D]`, weight of such a norm of each key head; None for none.
            eps: added to the means of both norms.
        """
        ...

    def latent_store(
        self,
        query: Tensor,
        latent: Tensor,
        norm: Tensor,
        eps: float,
        positions: Tensor,
        slots: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
    ) -> None:
        """Rotate queries, and store rotated and normalised latents, which stand for all heads' keys and values.

        The first R columns turn as those of `rotary_store`; of a latent the others are normalised by `rms_norm`.

        Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.2.

        Args:
            query: T `[rows, H, D]`, read and written.
            latent: T `[rows, D]`.
            norm: T `[D - R]`.
            eps: added to the norm's mean.
            positions: int32 `[rows]`.
            slots: int64 `[rows]`, see `rotary_store`.
            cos_sin: float32 `[max_len, R]`, see `rotary_store`.
            cache: T `[num_blocks, 1, block_size, D]`, or in eight bits, see `rotary_store`.
        """
        ...

    def attention(
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        view: AttentionMetadata,
        scale: float,
        out: Tensor,
        window: int = 0,
        cap: float = 0.0,
        sinks: Tensor | None = None,
        chunk: int = 0,
    ) -> None:
        """Softmax attention of each row over the keys that its view shows.

        Query head h uses key head h // (H / KV). Scores, probabilities and sums are float32; the
        output is rounded once. The order of every sum is a matter of the keys' logical indices alone: the bits
        are the same whether a key is reached through the table or through an extra slot, and whichever block
        holds it. A row that sees no key gets zeros.

        Args:
            q: T `[rows, H, D]`; D and V are multiples of 8.
            key_cache: T `[num_blocks, KV, block_size, D]`, or in eight bits, see `rotary_store`; a number is read as
                scale * code, rounded to T.
            value_cache: as `key_cache`, with V for D.
            view: what each row sees.
            scale: factor on the scores.
            out: T `[rows, H * V]`.
            window: a row sees only the last so many of the keys that its view shows; 0 is all of them.
            cap: a scaled score s becomes `cap * tanh(s / cap)`; 0 leaves it.
            sinks: float32 `[H]`, scores of a key without a value that each head sees first, beside the others; a row
                that sees no other gets zeros. Source: Xiao et al. 2023 (arXiv 2309.17453); gpt-oss (OpenAI 2025).
            chunk: a row sees those alone of its keys whose index is at least the last multiple of this that is not
                above the index of its last key; 0 is all of them, and a window is 0 beside it. Source: Llama 4 (Meta
                2025).
        """
        ...

    def multiply(self, x: Tensor, other: Tensor, gate: Gate = "plain") -> None:
        """`x = rounded(x * other)`, or with `rounded(sigmoid(other))` or `rounded(ln(1 + e^other))` (softplus).

        Args:
            x: T `[rows, N]`, read and written.
            other: T `[rows, M]`, where M divides N: each number is for N / M neighbouring columns.
            gate: which of the three products.
        """
        ...

    def act_mul(self, gate_up: Tensor, activation: Activation, out: Tensor, limit: float = 0.0) -> None:
        """`out = rounded(rounded(activation(gate)) * up)`.

        "silu" is `x / (1 + e^-x)`; "gelu" is `x Phi(x)` with the normal distribution function Phi; "gelu_tanh" is
        its approximation `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`; "relu" is `max(x, 0)`, "relu2"
        its square;
        "clamped_swiglu" is `x / (1 + e^(-1.702 x))` of `min(x, 7)`, and takes `rounded(clamp(up, -7, 7) + 1)` for
        `up`, as gpt-oss does.

        Source: Shazeer 2020 (arXiv 2002.05202); Hendrycks and Gimpel 2016 (arXiv 1606.08415).

        Args:
            gate_up: T `[rows, 2 I]`, gate, then up.
            activation: the activation's name.
            out: T `[rows, I]`.
            limit: what `activation(gate)` is at most, and `up` too, which is at least `-limit`; 0 is none.
        """
        ...

    def activate(self, x: Tensor, activation: Activation) -> None:
        """`x = rounded(activation(x))` with the functions of `act_mul`.

        Args:
            x: T `[rows, I]`, read and written.
            activation: the activation's name.
        """
        ...

    def add_bias(self, x: Tensor, bias: Tensor) -> None:
        """`x = rounded(x + bias)`.

        Args:
            x: T `[rows, N]`, read and written.
            bias: T `[N]`.
        """
        ...

    def add_embedding(self, x: Tensor, weight: Tensor, index: Tensor) -> None:
        """`x[i] = rounded(x[i] + weight[index[i]])`.

        Args:
            x: T `[rows, H]`, read and written.
            weight: T `[n, H]`.
            index: int32 `[rows]`, each at least 0 and below n.
        """
        ...

    def scale(self, x: Tensor, factor: float) -> None:
        """`x = rounded(x * factor)`, the factor in float32.

        Args:
            x: T `[rows, H]`, read and written.
            factor: a finite number.
        """
        ...

    def soft_cap(self, x: Tensor, cap: float) -> None:
        """`x = cap * tanh(x / cap)`.

        Source: Bello et al. 2016 (arXiv 1611.09940).

        Args:
            x: float32 `[rows, V]`, read and written.
            cap: a number above 0.
        """
        ...

    def xielu(self, x: Tensor, numbers: Tensor) -> None:
        """`x = rounded(p x^2 + b x)` above 0, elsewhere `rounded(n (e^min(x, e) - 1 - x) + b x)`.

        Source: Huang and Schlag 2024 (arXiv 2411.13010), section 3.2; e is of its implementation.

        Args:
            x: T `[rows, I]`, read and written.
            numbers: float32 `[4]`: p, n, b and e, which is at most 0.
        """
        ...

    def pack_linear(self, weight: Tensor | Weight) -> LinearWeight:
        """Return a weight `[N, K]` in the form `linear` reads; done once, at load.

        Args:
            weight: plain numbers of type T, or parts of which some are quantised or in float16.
        """
        ...

    def linear(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:
        """`out = rounded(x weight^T)`.

        For outputs of a quantised kind rows are quantised to eight bits first (`kernels.reference_quantised`); bits
        are then the same with every instruction set. Weights in float16 meet rows widened to float32.

        Args:
            x: T `[rows, K]`.
            weight: a weight from `pack_linear`.
            out: T `[rows, N]`.
        """
        ...

    def pack_head(self, weight: Tensor | Weight) -> LinearWeight:
        """Return a weight `[N, K]` in the form `logits` and `embed_packed` read; as `pack_linear`."""
        ...

    def logits(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:
        """`out = x weight^T` with a float32 result for any T.

        Args:
            x: T `[rows, K]`.
            weight: a weight from `pack_head`.
            out: float32 `[rows, N]`.
        """
        ...

    def copy_slots(self, src_slots: Tensor, dst_slots: Tensor, key_cache: Tensor, value_cache: Tensor) -> None:
        """Copy cache entries from slots to slots; all are read before any is written.

        Args:
            src_slots: int64 `[n]`.
            dst_slots: int64 `[n]`, distinct.
            key_cache: T `[num_blocks, KV, block_size, D]`, or in eight bits, see `rotary_store`.
            value_cache: as `key_cache`; rows may have another width.
        """
        ...
