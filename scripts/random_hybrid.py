"""Write a GGUF file with recurrent layers, of a real model's shape and with random weights, to measure speed on.

    python scripts/random_hybrid.py qwen3.5-0.8b hybrid.gguf
    python -m benchmarks.peers --model hybrid.gguf --peers llama.cpp

Tokens are tiny-code's, and so few that the output layer counts for less than in the real model, unless `--vocab` says
how many there are to be. `--mtp` adds Qwen3.5's layer for further tokens, whose drafts are as good as any guess.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from random_mixture import VOCAB, add_tokens, blocks

# Q4_K_M is a mix of kinds.
_KINDS = {"q4_0": Type.Q4_0, "q8_0": Type.Q8_0, "bf16": Type.BF16, "q4_k_m": None}


class Hybrid:
    """A file that is being written."""

    def __init__(self, path: Path, arch: str, kind: Type | None, vocab: int = VOCAB) -> None:
        """Begin it; matrices are stored as `kind`, or as llama.cpp mixes kinds in Q4_K_M."""
        self._rng, self._kind, self._arch, self.vocab = np.random.default_rng(0), kind, arch, vocab
        self.layers = 0
        self._writer = GGUFWriter(path, arch)
        add_tokens(self._writer, arch, vocab)

    def number(self, key: str, value: float) -> None:
        """Add a key of the architecture."""
        add = self._writer.add_uint32 if isinstance(value, int) else self._writer.add_float32
        add(f"{self._arch}.{key}", value)  # type: ignore[arg-type]

    def numbers(self, key: str, values: list[int]) -> None:
        """Add a list of numbers."""
        self._writer.add_array(f"{self._arch}.{key}", values)

    def matrix(self, name: str, *sizes: int) -> None:
        """Add a random weight, or a stack of them, that rows are multiplied with."""
        kind = self._kind or self._mixed(name)
        if kind == Type.BF16:
            upper = self._random(0.02, *sizes).view(np.uint32) >> 16
            made = upper.astype(np.uint16).view(np.uint8)
        else:
            made = blocks(self._rng, kind, *sizes)
        self._writer.add_tensor(f"{name}.weight", made, raw_dtype=kind)

    def _mixed(self, name: str) -> Type:
        """Return a matrix's kind in Q4_K_M: more bits for what counts most, in the outer layers and every third."""
        if name == "token_embd":
            return Type.Q6_K
        _, layer, part = name.split(".", 2)
        if part == "attn_qkv":
            return Type.Q5_K
        outer, index = self.layers // 8, int(layer)
        more = index < outer or index >= 7 * self.layers // 8 or (index - outer) % 3 == 2
        return Type.Q6_K if more and part.startswith(("attn_v", "ffn_down")) else Type.Q4_K

    def plain(self, name: str, *sizes: int, spread: float = 0.02, around: float = 0.0) -> None:
        """Add random numbers in float32."""
        self._writer.add_tensor(name, self._random(spread, *sizes) + np.float32(around))

    def rates(self, name: str, heads: int) -> None:
        """Add rates of decay, which are negative."""
        self._writer.add_tensor(name, -np.exp(self._random(1.0, heads) - 2))

    def norm(self, name: str, width: int) -> None:
        """Add a norm's weight."""
        self.plain(f"{name}.weight", width, around=1.0)

    def end(self) -> None:
        """Write what was added."""
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file(progress=True)
        self._writer.close()

    def _random(self, spread: float, *sizes: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return self._rng.standard_normal(sizes, dtype=np.float32) * np.float32(spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of a model; heads are those of its attention layers."""

    layers: int
    hidden: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int

    def sizes(self, file: Hybrid, layers: int) -> None:
        """Add what all architectures have."""
        file.layers = layers
        file.number("block_count", layers)
        file.number("context_length", 4096)
        file.number("embedding_length", self.hidden)
        file.number("feed_forward_length", self.width)
        file.number("vocab_size", file.vocab)
        file.number("attention.head_count", self.heads)
        file.number("attention.key_length", self.head_dim)
        file.number("attention.value_length", self.head_dim)
        file.number("attention.layer_norm_rms_epsilon", 1e-6)
        file.number("rope.freq_base", 1e7)
        file.matrix("token_embd", file.vocab, self.hidden)

    def attention(self, file: Hybrid, layer: str, gates: int) -> None:
        """Add an attention layer; `gates` is 1 where outputs have gates."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        file.matrix(f"{layer}attn_q", q * (1 + gates), self.hidden)
        file.matrix(f"{layer}attn_k", kv, self.hidden)
        file.matrix(f"{layer}attn_v", kv, self.hidden)
        file.matrix(f"{layer}attn_output", self.hidden, q)
        file.norm(f"{layer}attn_q_norm", self.head_dim)
        file.norm(f"{layer}attn_k_norm", self.head_dim)

    def network(self, file: Hybrid, layer: str) -> None:
        """Add a feed-forward network."""
        file.matrix(f"{layer}ffn_gate", self.width, self.hidden)
        file.matrix(f"{layer}ffn_up", self.width, self.hidden)
        file.matrix(f"{layer}ffn_down", self.hidden, self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen35(Shape):
    """Gated delta nets, and attention in every fourth layer."""

    arch: ClassVar[str] = "qwen35"
    key_heads: int
    value_heads: int
    state: int = 128

    def write(self, file: Hybrid, layers: int, *, mtp: bool = False) -> None:
        """Add all of the model."""
        keys, values, taps = self.key_heads * self.state, self.value_heads * self.state, 4
        self.sizes(file, layers + mtp)
        file.number("attention.head_count_kv", self.kv_heads)
        if mtp:
            file.number("nextn_predict_layers", 1)
            self.predict(file, f"blk.{layers}.")
        file.number("full_attention_interval", 4)
        file.number("rope.dimension_count", self.head_dim // 4)
        file.numbers("rope.dimension_sections", [11, 11, 10, 0])
        file.number("ssm.conv_kernel", taps)
        file.number("ssm.state_size", self.state)
        file.number("ssm.group_count", self.key_heads)
        file.number("ssm.time_step_rank", self.value_heads)
        file.number("ssm.inner_size", values)
        file.norm("output_norm", self.hidden)
        for i, layer in enumerate(f"blk.{i}." for i in range(layers)):
            file.norm(f"{layer}attn_norm", self.hidden)
            file.norm(f"{layer}post_attention_norm", self.hidden)
            if (i + 1) % 4 == 0:
                self.attention(file, layer, gates=1)
            else:
                file.matrix(f"{layer}attn_qkv", 2 * keys + values, self.hidden)
                file.matrix(f"{layer}attn_gate", values, self.hidden)
                file.matrix(f"{layer}ssm_out", self.hidden, values)
                file.plain(f"{layer}ssm_alpha.weight", self.value_heads, self.hidden)
                file.plain(f"{layer}ssm_beta.weight", self.value_heads, self.hidden)
                file.plain(f"{layer}ssm_conv1d.weight", 2 * keys + values, taps, spread=0.3)
                file.plain(f"{layer}ssm_dt.bias", self.value_heads)
                file.rates(f"{layer}ssm_a", self.value_heads)
                file.norm(f"{layer}ssm_norm", self.state)
            self.network(file, layer)

    def predict(self, file: Hybrid, layer: str) -> None:
        """Add a layer that predicts further tokens."""
        for norm in ("attn_norm", "post_attention_norm", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"):
            file.norm(layer + norm, self.hidden)
        file.matrix(f"{layer}nextn.eh_proj", self.hidden, 2 * self.hidden)
        self.attention(file, layer, gates=1)
        self.network(file, layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen35Moe(Qwen35):
    """The same with experts; `width` is that of each, and of the one that all rows go to."""

    arch: ClassVar[str] = "qwen35moe"
    experts: int
    chosen: int

    def sizes(self, file: Hybrid, layers: int) -> None:
        """Add what all architectures have, and how many experts there are."""
        Shape.sizes(self, file, layers)
        file.number("expert_count", self.experts)
        file.number("expert_used_count", self.chosen)
        file.number("expert_feed_forward_length", self.width)
        file.number("expert_shared_feed_forward_length", self.width)

    def network(self, file: Hybrid, layer: str) -> None:
        """Add the experts."""
        file.plain(f"{layer}ffn_gate_inp.weight", self.experts, self.hidden)
        file.plain(f"{layer}ffn_gate_inp_shexp.weight", self.hidden)
        for name, outputs, inputs in (
            ("gate", self.width, self.hidden),
            ("up", self.width, self.hidden),
            ("down", self.hidden, self.width),
        ):
            file.matrix(f"{layer}ffn_{name}_exps", self.experts, outputs, inputs)
            file.matrix(f"{layer}ffn_{name}_shexp", outputs, inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lfm2(Shape):
    """Short convolutions, and attention in the layers that are listed."""

    arch: ClassVar[str] = "lfm2"
    attention_layers: tuple[int, ...]

    def write(self, file: Hybrid, layers: int, *, mtp: bool = False) -> None:
        """Add all of the model, which has no layer for further tokens."""
        taps = 3
        self.sizes(file, layers)
        file.numbers("attention.head_count_kv", [self.kv_heads * (i in self.attention_layers) for i in range(layers)])
        file.number("rope.dimension_count", self.head_dim)
        file.number("shortconv.l_cache", taps)
        file.norm("token_embd_norm", self.hidden)
        for i, layer in enumerate(f"blk.{i}." for i in range(layers)):
            file.norm(f"{layer}attn_norm", self.hidden)
            file.norm(f"{layer}ffn_norm", self.hidden)
            if i in self.attention_layers:
                self.attention(file, layer, gates=0)
            else:
                file.matrix(f"{layer}shortconv.in_proj", 3 * self.hidden, self.hidden)
                file.matrix(f"{layer}shortconv.out_proj", self.hidden, self.hidden)
                file.plain(f"{layer}shortconv.conv.weight", self.hidden, taps, spread=0.3)
            self.network(file, layer)


SHAPES: dict[str, Qwen35 | Lfm2] = {
    "qwen3.5-0.8b": Qwen35(
        layers=24, hidden=1024, width=3584, heads=8, kv_heads=2, head_dim=256, key_heads=16, value_heads=16
    ),
    "qwen3.5-4b": Qwen35(
        layers=32, hidden=2560, width=9216, heads=16, kv_heads=4, head_dim=256, key_heads=16, value_heads=32
    ),
    "qwen3.5-35b-a3b": Qwen35Moe(
        layers=40,
        hidden=2048,
        width=512,
        heads=16,
        kv_heads=2,
        head_dim=256,
        key_heads=16,
        value_heads=32,
        experts=256,
        chosen=8,
    ),
    "lfm2-1.2b": Lfm2(
        layers=16,
        hidden=2048,
        width=8192,
        heads=32,
        kv_heads=8,
        head_dim=64,
        attention_layers=(2, 5, 8, 10, 12, 14),
    ),
}


def main() -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("output", type=Path)
    parser.add_argument("--kind", choices=_KINDS, default="q4_0", help="how matrices are stored (default: q4_0)")
    parser.add_argument("--layers", type=int, help="instead of the model's own number")
    parser.add_argument("--vocab", type=int, default=VOCAB, help=f"tokens (default: {VOCAB})")
    parser.add_argument("--mtp", action="store_true", help="with an MTP layer")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    if arguments.mtp and not isinstance(shape, Qwen35):
        parser.error(f"{arguments.shape} has no MTP layer")
    file = Hybrid(arguments.output, shape.arch, _KINDS[arguments.kind], arguments.vocab)
    shape.write(file, arguments.layers or shape.layers, mtp=arguments.mtp)
    file.end()


if __name__ == "__main__":
    main()
