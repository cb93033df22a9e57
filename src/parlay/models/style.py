"""What distinguishes one family of decoders from another, as data; the defaults are Llama's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from parlay.checkpoints.loader import TensorReader
    from parlay.kernels.base import Activation, Kernels
    from parlay.models.context import ForwardContext, StateCache
    from parlay.models.tensor_origins import TensorOrigin
    from parlay.parallel.group import Group
    from parlay.types.cache import RecurrentSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Rotary embedding of positions.

    Attributes:
        theta: the base.
        kind: kind of scaling; see `rotary`.
        scaling: the scaling's own numbers, as checkpoints name them.
        short_factor: divisors of `longrope`, one per frequency.
        long_factor: the same beyond the original context.
        partial: share of a head's columns that are rotated.
        query_growth: beta of a factor on queries that grows with their position, `1 + beta * ln(1 + floor(position /
            original))`, as in Llama 4 and Ministral 3; 0 is none.
        original: context that this is counted in, in tokens.
        nope_growth: it is only on queries of layers without rotary embedding; their positions count from 1.
    """

    theta: float
    kind: str = "default"
    scaling: dict[str, float] = field(default_factory=dict)
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    partial: float = 1.0
    query_growth: float = 0.0
    original: int = 1
    nope_growth: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts in place of some layers' feed-forward networks; the defaults are Mixtral's.

    Attributes:
        count: experts per layer.
        top_k: experts that a row goes to.
        width: inner width of an expert.
        normalise: whether the weights of the chosen experts add up to 1.
        sparse: whether each layer has experts.
        sigmoid: an expert's share is the sigmoid of its score, instead of a softmax over all.
        selection_bias: the router has biases that count where experts are chosen, but not in their weights.
        groups: experts form so many groups.
        kept_groups: number of groups that a row chooses from.
        factor: factor on the weights of the chosen experts.
        shared: inner width of an expert that all rows go to; 0 is none.
        shared_factor: factor on that expert's output.
        shared_gate: whether that output is multiplied with the sigmoid of a score of its own.
        biases: the router and the experts have biases.
        latent: columns of what experts read and give, between two projections; 0 where that is the hidden state.
        scaled_inputs: the weight of a row's only expert is a factor on what that reads instead of what it gives.
        with_mlp: they are added to the layer's feed-forward network instead of replacing it, see `ParallelExperts`.
        limits: each layer's limit of `Kernels.act_mul` in its experts, 0 for none; empty: none has one.
    """

    count: int
    top_k: int
    width: int
    normalise: bool = True
    sparse: tuple[bool, ...]
    sigmoid: bool = False
    selection_bias: bool = False
    groups: int = 1
    kept_groups: int = 1
    factor: float = 1.0
    shared: int = 0
    shared_factor: float = 1.0
    shared_gate: bool = False
    biases: bool = False
    latent: int = 0
    scaled_inputs: bool = False
    with_mlp: bool = False
    limits: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Widths of latent attention, in columns; see `latent`.

    Attributes:
        query_rank: columns of the queries' own latents; 0 where they have none.
        kv_rank: columns of the latents that stand for keys and values.
        nope_dim: columns of a head's query without rotary embedding.
        rope_dim: columns of a head's query with rotary embedding, behind the others.
        value: columns of a head's value.
        interleaved: the two columns of a rotary pair are adjacent in the files.
    """

    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value: int
    interleaved: bool = True

    @property
    def query(self) -> int:
        """Columns of a head's query."""
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Heads of one layer's keys and values.

    Attributes:
        count: key heads.
        width: columns of each head, of queries too.
        value: columns of each head's values, where they are not as wide; 0 where they are.
        values: whether values have a projection of their own; otherwise that of keys gives them too.
        source: the layer before it whose keys and values it reads; -1 where it has its own.
        queries: heads of queries, where they are not as many as the model's config says; 0 where they are.
    """

    count: int
    width: int
    value: int = 0
    values: bool = True
    source: int = -1
    queries: int = 0

    @property
    def value_width(self) -> int:
        """Columns of each head's values."""
        return self.value or self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGate:
    """What attention's output is multiplied with: a function of a projection of what attention reads.

    Attributes:
        separate: the projection is a tensor of its own, `gate_proj`, instead of rows behind each head's query.
        by_head: it has one number for each head, instead of one for each column; only where it is separate.
        softplus: the function is that, instead of the sigmoid.
    """

    separate: bool = False
    by_head: bool = False
    softplus: bool = False


class AttentionBiases(TypedDict):
    """Attributes of a `Style` that most families have one key for."""

    qkv_bias: bool
    output_bias: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What `decoder.Decoder` does differently from a plain Llama.

    Attributes:
        activation: the feed-forward network's activation.
        gated: whether the feed-forward network has a gate.
        xielu: the activation is xIELU instead, with numbers of each layer's own; without a gate.
        qkv_bias: queries, keys and values have biases.
        output_bias: attention's output projection has a bias.
        output_gate: gate on attention's output.
        mlp_bias: the feed-forward network has biases.
        head_norms: each head's query and key is normalised before it is rotated.
        head_norm_weights: these norms have weights.
        value_norms: each head's value is normalised, without a weight.
        post_rotary_norms: each head's query and key is normalised after it is rotated.
        nope_unnormed: layers without rotary embedding have none of these norms.
        joint_norms: all heads' queries are normalised together before they are rotated, and all keys.
        layer_norms: norms subtract the mean.
        parallel: attention and the feed-forward network read the same, and both join the residual stream.
        pre_norms: what attention and the feed-forward network read is normalised.
        post_norms: what a layer adds to the residual stream is normalised.
        post_norm_eps: what the means of those norms have added, where it is not what others have; 0 where it is.
        plus_one: norms multiply by 1 + weight.
        final_plus_one: the last norm multiplies by 1 + weight.
        fused_qkv: queries, keys and values are stored as one tensor.
        fused_mlp: gate and up are stored as one tensor.
        windows: keys that each layer sees at most, 0 for all; empty: all layers see all.
        chunks: positions of each layer's chunks, whose rows see no key of another one, 0 for none; empty: there are
            none.
        local_rotary: rotary embedding of the layers that have a window, where it differs.
        nope: whether each layer has no rotary embedding (NoPE); empty: all have one.
        interleaved: the two columns of a rotary pair are adjacent in the files, instead of half a head apart.
        score_scale: factor on attention's scores; None is `head_dim ** -0.5`.
        score_cap: soft cap of attention's scores; 0 is none.
        embedding_norm: embeddings are normalised, without a weight.
        embedding_scale: factor on embeddings.
        residual_scale: factor on what is added to the residual stream.
        logit_divisor: divisor of logits. Passes are recorded only if it is a power of two.
        logit_cap: soft cap of logits; 0 is none.
        latent: widths of latent attention, in place of heads of keys and values; None is grouped-query attention.
        heads: each layer's heads, where they differ from layer to layer.
        widths: each layer's inner width of the feed-forward network, where they differ.
        limits: each layer's limit of `Kernels.act_mul` in its feed-forward network and the expert that all rows go
            to, 0 for none; empty: none has one.
        layer_scalars: what a layer leaves is multiplied with a number of its own.
        layer_inputs: columns of a further input that each layer has of the token, see `layer_inputs`; 0 for none.
        recurrent: layers in the place of some layers' attention, or beside it.
        recurrent_pre_norms: whether what they and their networks read is normalised instead, where attention's layers
            have norms behind alone.
        recurrent_parallel: whether attention runs in parallel: both read the same rows, and their outputs are added.
        attention_scale: factor on attention's outputs, or on its values, which is the same.
        gate_scale: factor on the gates of the feed-forward network, before its activation.
        network_scale: factor on the feed-forward network's outputs.
        networks: whether each layer is a feed-forward network or experts alone, and otherwise attention or a
            recurrent layer alone; empty: all layers have both.
        sinks: whether each layer's query heads have attention sinks: a learnt score without a value; empty: none has.
        experts: None where all layers have one feed-forward network.
    """

    activation: Activation = "silu"
    gated: bool = True
    xielu: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    output_gate: OutputGate | None = None
    mlp_bias: bool = False
    head_norms: bool = False
    head_norm_weights: bool = True
    value_norms: bool = False
    post_rotary_norms: bool = False
    nope_unnormed: bool = False
    joint_norms: bool = False
    layer_norms: bool = False
    parallel: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    post_norm_eps: float = 0.0
    plus_one: bool = False
    final_plus_one: bool = True
    fused_qkv: bool = False
    fused_mlp: bool = False
    windows: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()
    local_rotary: Rotary | None = None
    nope: tuple[bool, ...] = ()
    interleaved: bool = False
    score_scale: float | None = None
    score_cap: float = 0.0
    embedding_norm: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_divisor: float = 1.0
    logit_cap: float = 0.0
    latent: Latent | None = None
    heads: tuple[Heads, ...] = ()
    widths: tuple[int, ...] = ()
    limits: tuple[float, ...] = ()
    layer_scalars: bool = False
    layer_inputs: int = 0
    recurrent: RecurrentLayers | None = None
    recurrent_pre_norms: bool = False
    recurrent_parallel: bool = False
    attention_scale: float = 1.0
    gate_scale: float = 1.0
    network_scale: float = 1.0
    networks: tuple[bool, ...] = ()
    sinks: tuple[bool, ...] = ()
    experts: Experts | None = None


class RecurrentLayers(Protocol):
    """Recurrent layers in the place of attention, or beside it; each kind is a file that has this as a dataclass.

    Attributes:
        layers: whether each layer is one of this kind.
        alike_in_mlx: files for MLX have the same tensors, but for the order of a convolution's.
    """

    alike_in_mlx: ClassVar[bool]

    @property
    def layers(self) -> tuple[bool, ...]: ...  # noqa: D102

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the name and shape of every tensor of a layer, beside a residual stream of so many columns."""
        ...

    def spec(self, hidden: int, group: Group) -> RecurrentSpec:
        """Return what a layer keeps on one of the ranks."""
        ...

    def products(self, hidden: int) -> list[tuple[str, tuple[int, int]]]:
        """Return the names and shapes of a layer's linear layers."""
        ...

    def make(self, hidden: int, eps: float, read: TensorReader, kernels: Kernels, group: Group) -> Mixer:
        """Read a layer; `eps` is that of the model's norms."""
        ...

    def gguf_layers(self, layout: Mapping[str, Any]) -> RecurrentLayers:
        """Return the layers as a GGUF file has them, whose keys of a config, beside those of all files, are given."""
        ...

    def gguf_origins(self, layout: Mapping[str, Any]) -> dict[str, TensorOrigin]:
        """Return what such a file's tensors of a layer are made of, where it is not those of the same names."""
        ...

    def gguf_sizes(self) -> dict[str, int]:
        """Return the sizes of a layer by the keys of GGUF files."""
        ...

    def gguf_unsupported(self) -> str:
        """Return what of such layers llama.cpp does not read; empty where it reads all."""
        ...


class Mixer(Protocol):
    """What mixes the rows of a sequence: a recurrent layer with its weights."""

    def __call__(self, x: Tensor, context: ForwardContext, cache: StateCache) -> Tensor:
        """Return `[rows, hidden]` for normalised rows `[rows, hidden]`, going on from the states in the cache."""
        ...


class Product(NamedTuple):
    """A linear layer, or several of one shape.

    Attributes:
        name: name of its purpose.
        shape: outputs and inputs.
        times: number of them that a row goes through.
        among: number that there are to choose from, by a router that chooses evenly; `times` where nothing is chosen.
    """

    name: str
    shape: tuple[int, int]
    times: int
    among: int

    def read(self, rows: int) -> float:
        """Return how many of them so many rows go through, on average."""
        return self.among * (1 - (1 - self.times / self.among) ** rows) if self.among else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryModel:
    """Description of a model that a class of another library computes.

    Attributes:
        library: its name and version, on which the bits of the results depend.
        products: linear layers as in `ModelConfig.products`.
    """

    library: str
    products: tuple[Product, ...]
