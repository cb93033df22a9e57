"""Small random checkpoints in Hugging Face format, with a tokenizer of single bytes."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from parlay.checkpoints.config import read_raw
from parlay.models.config import ModelConfig, parse_config
from parlay.models.families import llama
from parlay.models.tensor_shapes import weight_shapes

EOS = 256
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
VOCAB = 257


def write_llama(
    path: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
    calm: float = 1.0,
    noise: float = 0.0,
    template: str = CHAT,
    **overrides: Any,
) -> Path:
    """Write a Llama with random weights: 64 wide, 3 layers, 4 heads in 2 groups unless overridden.

    `scale` multiplies the head's weights: small values flatten the distribution. `calm` multiplies what layers add to
    the residual stream: small values let the last token decide, so that texts fall into loops. `noise` is added to
    every matrix, relative to its own spread: the result agrees in part with what the same seed gives without.
    `template` is that of chats.
    """
    path.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "torch_dtype": str(dtype).removeprefix("torch."),
        **overrides,
    }
    (path / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)
    disturbance = torch.Generator().manual_seed(seed + 1)
    tensors = {}
    for name, shape in weight_shapes(llama.describe(read_config(path))).items():
        if len(shape) == 1:
            tensor = name.endswith("norm.weight") + 0.1 * torch.randn(shape, generator=generator)
        else:
            tensor = torch.randn(shape, generator=generator) * (1.0 if "embed" in name else 1.5 * shape[1] ** -0.5)
            tensor += noise * tensor.std() * torch.randn(shape, generator=disturbance)
        if name == "lm_head.weight":
            tensor *= scale
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= calm
        tensors[name] = tensor.to(dtype)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    write_byte_tokenizer(path, config["vocab_size"], template)
    return path


def write_byte_tokenizer(path: Path, vocab_size: int = VOCAB, template: str = CHAT) -> None:
    """Write a tokenizer whose ids below 256 are bytes; 256 ends a text; further ones are named after themselves."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet[: min(vocab_size, 256)])}
    vocab |= {f"<{i}>": i for i in range(len(vocab), vocab_size)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if vocab_size > EOS:
        tokenizer.add_special_tokens([f"<{EOS}>"])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


def read_config(path: Path) -> ModelConfig:
    """Return the shape of the model in a directory or GGUF file."""
    return parse_config(path, read_raw(path))


def edit_config(path: Path, *without: str, **changes: Any) -> Path:
    """Change and remove keys of a model's config; returns its path."""
    file = path / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if key not in without}))
    return path
