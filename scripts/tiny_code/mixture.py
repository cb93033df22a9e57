"""Train a small mixture of experts on the corpus, beginning with the weights of `tiny-code`.

Each layer's feed-forward network is cut into pieces of its inner width, and each expert begins as one of them
("sparse upcycling", Komatsuzaki et al. 2022, arXiv 2212.05055), so that minutes of training give a model whose text
can be drafted. It ends by the clock, and resumes nothing.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizer import ASSETS
from train import load_tokens
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

EXPERTS, CHOSEN, PIECES = 8, 2, 4  # each piece begins two experts
LENGTH, ROWS, RATE, WARMUP = 256, 16, 1e-3, 40
SEED = 1234


def upcycled() -> MixtralForCausalLM:
    """Return a mixture that has tiny-code's attention and embedding, and pieces of its feed-forward networks."""
    dense = AutoModelForCausalLM.from_pretrained(ASSETS / "tiny-code", dtype=torch.float32)
    old = dense.config
    width = old.intermediate_size // PIECES
    names = "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim rms_norm_eps"
    names += " max_position_embeddings rope_parameters tie_word_embeddings bos_token_id eos_token_id pad_token_id"
    same = {name: getattr(old, name) for name in names.split()}
    config = MixtralConfig(
        **same, intermediate_size=width, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN, sliding_window=None
    )
    torch.manual_seed(SEED)
    mixture = MixtralForCausalLM(config)
    with torch.no_grad():
        mixture.load_state_dict(dense.state_dict(), strict=False)
        for layer, other in zip(mixture.model.layers, dense.model.layers, strict=True):
            for e in range(EXPERTS):
                piece = slice(e % PIECES * width, (e % PIECES + 1) * width)
                up = torch.cat([other.mlp.gate_proj.weight[piece], other.mlp.up_proj.weight[piece]])
                layer.mlp.experts.gate_up_proj[e] = up
                # Weights add up to 1, where the network added all of its pieces.
                layer.mlp.experts.down_proj[e] = other.mlp.down_proj.weight[:, piece] * PIECES
    return mixture


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the corpus")
    parser.add_argument("--output", type=Path, required=True, help="directory of the model")
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    tokens, heldout = load_tokens(arguments.work, "train"), load_tokens(arguments.work, "heldout")
    model = upcycled()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    generator = torch.Generator().manual_seed(SEED)

    def batch(stream: object, count: int) -> torch.Tensor:
        starts = torch.randint(len(stream) - LENGTH - 1, (count,), generator=generator).tolist()
        return torch.stack([torch.from_numpy(stream[at : at + LENGTH + 1].astype("int64")) for at in starts])

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        found = model(rows[:, :-1], output_router_logits=True)
        loss = F.cross_entropy(found.logits.flatten(0, 1), rows[:, 1:].flatten())
        return loss + 0.01 * found.aux_loss if model.training else loss

    began, step = time.monotonic(), 0
    while (progress := (time.monotonic() - began) / (60 * arguments.minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((step + 1) / WARMUP, 1 - progress)
        loss = loss_of(batch(tokens, ROWS))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 20 == 0:
            print(f"step {step} | loss {loss.item():.3f} | {60 * arguments.minutes * progress:.0f} s", flush=True)
    model.eval()
    with torch.no_grad():
        print(f"held-out {loss_of(batch(heldout, 64)).item():.3f} nats/token after {step * ROWS * LENGTH:,} tokens")
    model.bfloat16().save_pretrained(arguments.output)
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (ASSETS / "tiny-code" / file).exists():
            shutil.copy(ASSETS / "tiny-code" / file, arguments.output)


if __name__ == "__main__":
    main()
