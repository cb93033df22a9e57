"""Write a checkpoint as bfloat16 safetensors with its configuration."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from model import MAX_POSITIONS, NORM_EPS, ROPE_THETA, SHAPES, VOCAB_SIZE, Shape
from safetensors.torch import save_file
from tokenizer import ASSETS, SPECIAL_TOKENS

NAMES = {"target": "tiny-code", "draft": "tiny-code-draft"}
END_ID, PAD_ID = range(2)  # the special tokens come first in the vocabulary
assert SPECIAL_TOKENS[PAD_ID] == "<|pad|>"


def model_config(shape: Shape) -> dict[str, object]:
    """Describe the model as a Llama."""
    sizes = asdict(shape)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["intermediate"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv_heads"],
        "head_dim": sizes["head_dim"],
        "max_position_embeddings": MAX_POSITIONS,
        "rope_theta": ROPE_THETA,
        "rms_norm_eps": NORM_EPS,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": END_ID,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
        "torch_dtype": "bfloat16",
    }


def generation_config() -> dict[str, object]:
    """Return the defaults of generation."""
    return {"bos_token_id": END_ID, "eos_token_id": END_ID, "pad_token_id": PAD_ID}


def write_json(path: Path, value: dict[str, object]) -> None:
    """Write one indented JSON file."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> None:
    """Export one role's checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=sorted(NAMES))
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--out", type=Path, help="default: the package's assets")
    arguments = parser.parse_args()
    folder: Path = arguments.out or ASSETS / NAMES[arguments.role]
    folder.mkdir(parents=True, exist_ok=True)
    state = torch.load(arguments.work / f"{arguments.role}.pt")["model"]
    tensors = {f"model.{name}": tensor.bfloat16() for name, tensor in state.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    write_json(folder / "config.json", model_config(SHAPES[arguments.role]))
    write_json(folder / "generation_config.json", generation_config())


if __name__ == "__main__":
    main()
