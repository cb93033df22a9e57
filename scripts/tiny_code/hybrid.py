"""Train a small model of Qwen3.5's shape with a layer for further tokens (MTP), out of `tiny-code`.

Six of its eight layers are gated delta nets. Feed-forward networks, norms and embedding begin as tiny-code's,
attention as its projections where the shapes have a place for them, and what the model and its MTP layer learn is
mostly tiny-code's distribution, so that an hour gives a model whose text can be drafted. It ends by the clock, and
what is in the output can be served from the first save on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from model import ARITHMETIC, SHAPES, Model
from safetensors.torch import load_file, save_file
from tokenizer import ASSETS
from torch import Tensor, nn
from torch.func import functional_call
from train import CrossEntropy, learning_rate_scale, load_tokens
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

LENGTH, ROWS = 256, 8
MATRIX_RATE, VECTOR_RATE, DECAY = 2e-3, 1e-3, 0.05
FURTHER = 0.5  # weight of the MTP layer's loss
SAVE_EVERY_S, LOG_EVERY = 180.0, 20
SEED = 1234
TINY = SHAPES["target"]


def shape() -> Qwen3_5TextConfig:
    """Return the config: tiny-code's sizes, and attention in every fourth layer."""
    return Qwen3_5TextConfig(
        vocab_size=4096,
        hidden_size=TINY.hidden,
        intermediate_size=TINY.intermediate,
        num_hidden_layers=TINY.layers,
        num_attention_heads=TINY.heads,
        num_key_value_heads=TINY.kv_heads,
        head_dim=TINY.head_dim,
        linear_num_key_heads=TINY.heads,
        linear_num_value_heads=TINY.heads,
        linear_key_head_dim=TINY.head_dim,
        linear_value_head_dim=TINY.head_dim,
        full_attention_interval=4,
        max_position_embeddings=2048,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 1.0,
            "mrope_section": [11, 11, 10],
        },
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
        use_cache=False,
    )


class MTP(nn.Module):
    """The layer for further tokens, with the names of its tensors."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = qwen.Qwen3_5RMSNorm(hidden, eps=eps)
        self.pre_fc_norm_hidden = qwen.Qwen3_5RMSNorm(hidden, eps=eps)
        self.layers = nn.ModuleList([qwen.Qwen3_5DecoderLayer(config, config.layer_types.index("full_attention"))])
        self.norm = qwen.Qwen3_5RMSNorm(hidden, eps=eps)

    def forward(self, embedded: Tensor, states: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Return tokens' states, from their embeddings and the states before them, all `[rows, length, hidden]`."""
        joined = torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states)], -1)
        found: Tensor = self.norm(self.layers[0](self.fc(joined), position_embeddings=angles))
        return found


class Hybrid(nn.Module):
    """The model and its layer for further tokens."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        self.model, self.mtp = qwen.Qwen3_5TextModel(config), MTP(config)

    def forward(self, rows: Tensor, wanted: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return both losses, summed over the tokens.

        Args:
            rows: tokens, `[rows, length + 1]`.
            wanted: the teacher's logits after all but the last, `[rows, length, vocab]`; None to learn from the
                tokens alone.
        """
        tokens, table = rows[:, :-1], self.model.embed_tokens.weight
        states = self.model(tokens).last_hidden_state
        positions = torch.arange(tokens.shape[1] - 1)[None]
        angles = self.model.rotary_emb(states, positions)
        further = self.mtp(F.embedding(tokens[:, 1:], table), states[:, :-1], angles)

        def loss(found: Tensor, skipped: int) -> Tensor:
            logits, labels = F.linear(found, table).flatten(0, 1), rows[:, 1 + skipped :].flatten()
            soft = None if wanted is None else wanted[:, skipped:].flatten(0, 1)
            value: Tensor = CrossEntropy.apply(logits, labels, soft)  # type: ignore[no-untyped-call]
            return value

        return loss(states, 0), loss(further, 1)


@torch.no_grad()
def begin(tiny: dict[str, Tensor]) -> Hybrid:
    """Return the model with what it can take of tiny-code's tensors."""
    torch.manual_seed(SEED)
    config = shape()
    hybrid = Hybrid(config)
    for name in ("fc", "layers.0.self_attn.q_proj"):
        nn.init.normal_(hybrid.mtp.get_submodule(name).weight, std=0.02)
    heads, width, groups = TINY.heads, TINY.head_dim, TINY.heads // TINY.kv_heads

    def repeated(name: str) -> Tensor:
        return tiny[name].view(TINY.kv_heads, 1, width, -1).expand(-1, groups, -1, -1).reshape(heads * width, -1)

    def take(layer: nn.Module, before: str) -> None:
        attention = before + "self_attn."
        for name, module in layer.named_modules():
            if name.endswith("layernorm"):
                module.weight.copy_(tiny[f"{before}{name}.weight"] - 1)
            if name.startswith("mlp.") and isinstance(module, nn.Linear):
                module.weight.copy_(tiny[f"{before}{name}.weight"])
        if hasattr(layer, "linear_attn"):
            mixer = layer.linear_attn
            parts = [tiny[attention + "q_proj.weight"], *(repeated(f"{attention}{p}_proj.weight") for p in "kv")]
            mixer.in_proj_qkv.weight.copy_(torch.cat(parts))
            mixer.out_proj.weight.copy_(tiny[attention + "o_proj.weight"])
            mixer.conv1d.weight.mul_(0.1)[..., -1] += 1
        else:
            mixer = layer.self_attn
            gated = mixer.q_proj.weight.view(heads, 2, width, -1)
            gated[:, 0] = tiny[attention + "q_proj.weight"].view(heads, width, -1)
            gated[:, 1] = 0  # gates of a half
            mixer.o_proj.weight.copy_(2 * tiny[attention + "o_proj.weight"])
            for part in "kv":
                mixer.get_submodule(f"{part}_proj").weight.copy_(tiny[f"{attention}{part}_proj.weight"])

    for i, layer in enumerate(hybrid.model.layers):
        take(layer, f"layers.{i}.")
    take(hybrid.mtp.layers[0], f"layers.{TINY.layers - 1}.")
    hybrid.model.embed_tokens.weight.copy_(tiny["embed_tokens.weight"])
    for norm in (hybrid.model.norm, hybrid.mtp.norm):
        norm.weight.copy_(tiny["norm.weight"] - 1)
    hybrid.mtp.fc.weight += torch.eye(TINY.hidden).repeat(1, 2) / 2
    return hybrid


def optimizers_of(hybrid: Hybrid) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest; for all where torch's Muon, in bfloat16, takes too long."""
    named = list(hybrid.named_parameters()) if ARITHMETIC is torch.bfloat16 else []
    matrices = [p for name, p in named if p.ndim == 2 and "embed_tokens" not in name]
    others = [p for p in hybrid.parameters() if all(p is not q for q in matrices)]
    adam = torch.optim.AdamW(others, lr=VECTOR_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    if not matrices:
        return [adam]
    return [torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"), adam]


def as_read(hybrid: Hybrid) -> dict[str, Tensor]:
    """Return the parameters as the products read them; vectors stay in float32."""
    return {name: p.to(ARITHMETIC) if p.ndim > 1 else p for name, p in hybrid.named_parameters()}


def save(hybrid: Hybrid, output: Path) -> None:
    """Write a directory that is served; the file moves into place as a whole."""
    output.mkdir(parents=True, exist_ok=True)
    config = hybrid.model.config.to_dict() | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "mtp_num_hidden_layers": 1,
        "dtype": "bfloat16",
    }
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(ASSETS / "tiny-code" / file, output)
    tensors = {name: p.detach().bfloat16().contiguous() for name, p in hybrid.named_parameters()}
    partial = output / "model.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    partial.replace(output / "model.safetensors")


def windows(stream: np.ndarray, count: int, generator: torch.Generator) -> Tensor:
    """Return random windows, `[count, LENGTH + 1]`."""
    starts = torch.randint(len(stream) - LENGTH - 1, (count,), generator=generator).tolist()
    return torch.from_numpy(np.stack([stream[at : at + LENGTH + 1].astype(np.int64) for at in starts]))


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the corpus")
    parser.add_argument("--output", type=Path, required=True, help="directory of the model")
    parser.add_argument("--minutes", type=float, default=60.0)
    arguments = parser.parse_args()
    tokens, heldout = load_tokens(arguments.work, "train"), load_tokens(arguments.work, "heldout")
    stored = load_file(ASSETS / "tiny-code/model.safetensors")
    tiny = {name.removeprefix("model."): tensor.float() for name, tensor in stored.items()}
    teacher, hybrid = Model(TINY).requires_grad_(False), begin(tiny)
    teacher.load_state_dict(tiny)
    optimizers, generator = optimizers_of(hybrid), torch.Generator().manual_seed(SEED)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups]
    held = windows(heldout, 4 * ROWS, generator)
    print(f"{sum(p.numel() for p in hybrid.parameters()):,} parameters, {len(tokens):,} tokens", flush=True)

    @torch.no_grad()
    def evaluate() -> str:
        pairs = [functional_call(hybrid, as_read(hybrid), (rows, None)) for rows in held.chunk(4)]
        next_loss, further = (sum(each).item() for each in zip(*pairs, strict=True))
        return f"held-out {next_loss / (4 * ROWS * LENGTH):.3f} and {further / (4 * ROWS * (LENGTH - 1)):.3f}"

    began, step, saved = time.monotonic(), 0, time.monotonic()
    while (progress := (time.monotonic() - began) / (60 * arguments.minutes)) < 1:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * learning_rate_scale(step, progress)
        rows = windows(tokens, ROWS, generator)
        with torch.no_grad():
            wanted = teacher(rows[:, :-1])
        loss, further = functional_call(hybrid, as_read(hybrid), (rows, wanted))
        ((loss + FURTHER * further) / (ROWS * LENGTH)).backward()
        torch.nn.utils.clip_grad_norm_(hybrid.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        if step % LOG_EVERY == 0:
            seconds = time.monotonic() - began
            losses = f"loss {loss.item() / ROWS / LENGTH:.3f} and {further.item() / ROWS / (LENGTH - 1):.3f}"
            speed = step * ROWS * LENGTH / seconds
            print(
                f"step {step} | {losses} | {seconds / 60:.1f} of {arguments.minutes:g} min | {speed:.0f} tok/s",
                flush=True,
            )
        if time.monotonic() - saved > SAVE_EVERY_S:
            save(hybrid, arguments.output)
            saved = time.monotonic()
            print(f"saved at step {step}: {evaluate()} nats/token", flush=True)
    save(hybrid, arguments.output)
    print(f"{evaluate()} nats/token after {step * ROWS * LENGTH:,} tokens")


if __name__ == "__main__":
    main()
