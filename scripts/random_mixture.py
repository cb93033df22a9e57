"""Write a GGUF file of a mixture's shape with random weights, for the speed of models that are too large to fetch.

    python scripts/random_mixture.py gpt-oss-20b mixture.gguf --layers 4

Tokens are tiny-code's, so that any engine can read a prompt; what the model answers means nothing.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter

from parlay.checkpoints.find import find_model
from parlay.text.gguf_vocabulary import vocabulary


@dataclass(frozen=True, slots=True)
class Latent:
    """Widths of latent attention."""

    query_rank: int
    rank: int
    content: int
    turning: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of a model, with what its architecture has beside."""

    arch: str
    hidden: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    chosen: int
    kind: Type  # of the experts' blocks
    window: int = 0
    latent: Latent | None = None


SHAPES = {
    "gpt-oss-20b": Shape(
        arch="gpt-oss",
        hidden=2880,
        width=2880,
        heads=64,
        kv_heads=8,
        head_dim=64,
        experts=32,
        chosen=4,
        kind=Type.MXFP4,
        window=128,
    ),
    "qwen3-30b-a3b": Shape(
        arch="qwen3moe",
        hidden=2048,
        width=768,
        heads=32,
        kv_heads=4,
        head_dim=128,
        experts=128,
        chosen=8,
        kind=Type.Q4_0,
    ),
    "glm-4.7-flash": Shape(
        arch="deepseek2",
        hidden=2048,
        width=1536,
        heads=20,
        kv_heads=1,
        head_dim=576,
        experts=64,
        chosen=4,
        kind=Type.Q4_0,
        latent=Latent(768, 512, 192, 64, 256),
    ),
}
VOCAB = 4096


def blocks(rng: np.random.Generator, kind: Type, *shape: int) -> np.ndarray:
    """Return random blocks of numbers around 0.02, as bytes `[..., outputs, bytes of a row]`."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    made = rng.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=np.uint8)
    if kind == Type.MXFP4:
        made[..., 0] = 119  # 2^-8
    elif kind == Type.Q6_K:
        made[..., -2:] = _half(2e-5)
    else:
        scale = {Type.Q4_0: 0.004, Type.Q8_0: 0.0003, Type.Q4_K: 0.00015, Type.Q5_K: 0.00007}[kind]
        made[..., :2] = _half(scale)
        if kind in (Type.Q4_K, Type.Q5_K):  # what is subtracted, as much as numbers have on average
            made[..., 2:4] = _half(scale * (7.5 if kind == Type.Q4_K else 15.5))
    return made.reshape(*shape[:-1], -1)


def _half(value: float) -> np.ndarray:
    """Return the bytes of a float16."""
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def add_tokens(writer: GGUFWriter, arch: str, count: int = VOCAB) -> None:
    """Add tiny-code's vocabulary, padded to so many tokens."""
    for key, value in vocabulary(find_model("tiny-code"), arch, count, (0,), {}).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, list(value))  # type: ignore[call-overload]


def write(shape: Shape, layers: int, path: Path) -> None:
    """Write the file."""
    rng, writer, a = np.random.default_rng(0), GGUFWriter(path, shape.arch), shape.arch
    keys: dict[str, Any] = {
        f"{a}.block_count": layers,
        f"{a}.context_length": 4096,
        f"{a}.embedding_length": shape.hidden,
        f"{a}.feed_forward_length": shape.width,
        f"{a}.expert_feed_forward_length": shape.width,
        f"{a}.attention.head_count": shape.heads,
        f"{a}.attention.head_count_kv": shape.kv_heads,
        f"{a}.attention.key_length": shape.head_dim,
        f"{a}.attention.value_length": shape.head_dim,
        f"{a}.expert_count": shape.experts,
        f"{a}.expert_used_count": shape.chosen,
        f"{a}.rope.dimension_count": shape.head_dim,
    }
    if shape.window:
        keys[f"{a}.attention.sliding_window"] = shape.window
    if (latent := shape.latent) is not None:
        own = {
            "attention.q_lora_rank": latent.query_rank,
            "attention.kv_lora_rank": latent.rank,
            "attention.value_length": latent.rank,
            "attention.key_length_mla": latent.content + latent.turning,
            "attention.value_length_mla": latent.value,
            "rope.dimension_count": latent.turning,
            "leading_dense_block_count": 0,
            "expert_shared_count": 1,
            "expert_gating_func": 2,
            "vocab_size": VOCAB,
        }
        keys |= {f"{a}.{key}": value for key, value in own.items()}
    for key, value in keys.items():
        writer.add_uint32(key, value)
    writer.add_float32(f"{a}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{a}.rope.freq_base", 150000.0)
    if latent is not None:
        writer.add_float32(f"{a}.expert_weights_scale", 1.8)
        writer.add_bool(f"{a}.expert_weights_norm", True)
    add_tokens(writer, a)

    def matrix(name: str, kind: Type, *sizes: int) -> None:
        writer.add_tensor(f"{name}.weight", blocks(rng, kind, *sizes), raw_dtype=kind)

    def plain(name: str, *sizes: int, spread: float = 0.02, around: float = 0.0) -> None:
        writer.add_tensor(name, (rng.standard_normal(sizes) * spread + around).astype(np.float32))

    q, kv, oss = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.arch == "gpt-oss"
    matrix("token_embd", Type.Q8_0, VOCAB, shape.hidden)
    matrix("output", Type.Q8_0, VOCAB, shape.hidden)
    plain("output_norm.weight", shape.hidden, around=1.0)
    for layer in (f"blk.{i}." for i in range(layers)):
        plain(f"{layer}attn_norm.weight", shape.hidden, around=1.0)
        plain(f"{layer}{'post_attention_norm' if oss else 'ffn_norm'}.weight", shape.hidden, around=1.0)
        attention: dict[str, tuple[int, ...]] = {
            "attn_q": (q, shape.hidden),
            "attn_k": (kv, shape.hidden),
            "attn_v": (kv, shape.hidden),
            "attn_output": (shape.hidden, q),
        }
        if latent is not None:
            attention = {
                "attn_q_a": (latent.query_rank, shape.hidden),
                "attn_q_b": (shape.heads * (latent.content + latent.turning), latent.query_rank),
                "attn_kv_a_mqa": (latent.rank + latent.turning, shape.hidden),
                "attn_k_b": (shape.heads, latent.rank, latent.content),
                "attn_v_b": (shape.heads, latent.value, latent.rank),
                "attn_output": (shape.hidden, shape.heads * latent.value),
            }
            plain(f"{layer}attn_q_a_norm.weight", latent.query_rank, around=1.0)
            plain(f"{layer}attn_kv_a_norm.weight", latent.rank, around=1.0)
            plain(f"{layer}exp_probs_b.bias", shape.experts)
        for name, sizes in attention.items():
            matrix(layer + name, Type.Q8_0, *sizes)
            if oss:
                plain(f"{layer}{name}.bias", sizes[0])
        if oss:
            plain(f"{layer}attn_sinks.weight", shape.heads)
            plain(f"{layer}ffn_gate_inp.bias", shape.experts)
        elif latent is None:
            for x in "qk":
                plain(f"{layer}attn_{x}_norm.weight", shape.head_dim, around=1.0)
        plain(f"{layer}ffn_gate_inp.weight", shape.experts, shape.hidden, spread=0.05)
        for name, (outputs, inputs) in {
            "gate": (shape.width, shape.hidden),
            "up": (shape.width, shape.hidden),
            "down": (shape.hidden, shape.width),
        }.items():
            matrix(f"{layer}ffn_{name}_exps", shape.kind, shape.experts, outputs, inputs)
            if latent is not None:
                matrix(f"{layer}ffn_{name}_shexp", shape.kind, outputs, inputs)
            if oss:
                plain(f"{layer}ffn_{name}_exps.bias", shape.experts, outputs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


def main() -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    write(SHAPES[arguments.shape], arguments.layers, arguments.output)


if __name__ == "__main__":
    main()
