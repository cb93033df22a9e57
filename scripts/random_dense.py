"""Write a Llama of a real model's shape with random weights in bfloat16, to measure speed on.

    python scripts/random_dense.py 8b build/random-8b

Tokens are tiny-code's, in a vocabulary of the real size; what the model answers means nothing.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from parlay.checkpoints.find import find_model

SHAPES = {  # layers, hidden, inner, heads, key heads, vocabulary: Llama 3.2 1B and 3.1 8B
    "1b": (16, 2048, 8192, 32, 8, 128256),
    "8b": (32, 4096, 14336, 32, 8, 128256),
}
_SPREAD = 0.02


def write(name: str, path: Path, layers: int | None = None, context: int = 8192) -> None:
    """Write the model of a shape to a directory, with fewer layers if so asked."""
    all_layers, hidden, inner, heads, kv_heads, vocab = SHAPES[name]
    layers = layers or all_layers
    dim, device = hidden // heads, "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)

    def random(outputs: int, inputs: int) -> torch.Tensor:
        made = torch.randn((outputs, inputs), generator=generator, device=device, dtype=torch.bfloat16)
        return (made * _SPREAD).cpu()

    path.mkdir(parents=True, exist_ok=True)
    tiny = find_model("tiny-code")
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(tiny / file, path / file)
    config = json.loads((tiny / "config.json").read_text()) | {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "tie_word_embeddings": name == "1b",
        "torch_dtype": "bfloat16",
    }
    (path / "config.json").write_text(json.dumps(config, indent=2))
    index: dict[str, str] = {}
    ends = {"model.embed_tokens.weight": random(vocab, hidden), "model.norm.weight": torch.ones(hidden).bfloat16()}
    if name != "1b":
        ends["lm_head.weight"] = random(vocab, hidden)
    for number in range(layers + 1):
        prefix = f"model.layers.{number}."
        tensors = ends
        if number < layers:
            tensors = {
                f"{prefix}self_attn.q_proj.weight": random(heads * dim, hidden),
                f"{prefix}self_attn.k_proj.weight": random(kv_heads * dim, hidden),
                f"{prefix}self_attn.v_proj.weight": random(kv_heads * dim, hidden),
                f"{prefix}self_attn.o_proj.weight": random(hidden, heads * dim),
                f"{prefix}mlp.gate_proj.weight": random(inner, hidden),
                f"{prefix}mlp.up_proj.weight": random(inner, hidden),
                f"{prefix}mlp.down_proj.weight": random(hidden, inner),
                f"{prefix}input_layernorm.weight": torch.ones(hidden).bfloat16(),
                f"{prefix}post_attention_layernorm.weight": torch.ones(hidden).bfloat16(),
            }
        file = f"model-{number:05}.safetensors"
        save_file(tensors, path / file, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=int, help="instead of the model's own number")
    parser.add_argument("--context", type=int, default=8192, help="most tokens of a sequence (default: 8192)")
    arguments = parser.parse_args()
    write(arguments.shape, arguments.output, arguments.layers, arguments.context)


if __name__ == "__main__":
    main()
