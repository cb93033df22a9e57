"""Measure both exported models: held-out loss, and how well the draft stands in for the target."""

from __future__ import annotations

import argparse
import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from export import NAMES
from tokenizer import ASSETS, texts
from torch import Tensor
from train import load_tokens
from transformers import AutoModelForCausalLM

WINDOW = 1024
CONTINUATION = 64
BATCH = 64
DRAFTED = 4


@torch.no_grad()
def logits_of(model: Any, ids: Tensor) -> Tensor:
    """Return float32 logits."""
    logits: Tensor = model(ids).logits.float()
    return logits


def on_corpus(target: Any, draft: Any, stream: np.ndarray) -> dict[str, float]:
    """Losses, agreement of the most likely token, and acceptance when sampling at temperature 1."""
    sums = np.zeros(4)
    count = (len(stream) - 1) // WINDOW
    for index in range(count):
        window = stream[index * WINDOW : (index + 1) * WINDOW + 1].astype(np.int64)
        ids = torch.from_numpy(window)
        wanted = logits_of(target, ids[None, :-1])[0]
        drafted = logits_of(draft, ids[None, :-1])[0]
        accepted = torch.minimum(wanted.softmax(-1), drafted.softmax(-1)).sum(-1).mean()
        agreed = (wanted.argmax(-1) == drafted.argmax(-1)).float().mean()
        losses = [F.cross_entropy(logits, ids[1:]).item() for logits in (wanted, drafted)]
        sums += [*losses, agreed.item(), accepted.item()]
    names = ("target_nats", "draft_nats", "top1_agreement", "sampled_acceptance")
    return dict(zip(names, (sums / count).tolist(), strict=True))


def on_prefixes(target: Any, draft: Any) -> dict[str, float]:
    """Agreement along the target's greedy continuations, and tokens per verification of a chain."""
    lines = gzip.decompress((ASSETS / "evaluation/prefixes.jsonl.gz").read_bytes()).splitlines()
    prefixes = torch.tensor([json.loads(line)["token_ids"] for line in lines])
    length, rows = prefixes.shape[1], []
    for batch in prefixes.chunk(len(prefixes) // BATCH):
        whole = target.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=False,
            min_new_tokens=CONTINUATION,
            max_new_tokens=CONTINUATION,
        )
        guess = logits_of(draft, whole[:, :-1]).argmax(-1)
        rows.append(guess[:, length - 1 :] == whole[:, length:])
    agreed = torch.cat(rows)
    emitted = steps = 0
    for row in agreed.tolist():
        position = 0
        while position < len(row):
            accepted = 0
            while accepted < DRAFTED and position + accepted < len(row) and row[position + accepted]:
                accepted += 1
            position += accepted + 1
            steps += 1
        emitted += len(row)
    return {
        "greedy_agreement": agreed.float().mean().item(),
        f"tokens_per_step_of_{DRAFTED}": emitted / steps,
    }


def main() -> None:
    """Print the measurements as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the corpus")
    work: Path = parser.parse_args().work
    target, draft = (AutoModelForCausalLM.from_pretrained(ASSETS / NAMES[role]) for role in ("target", "draft"))
    stream = load_tokens(work, "heldout")
    size = sum(len(text.encode()) for text in texts(work / "heldout.jsonl"))
    result = on_corpus(target, draft, stream)
    bits = len(stream) / size / math.log(2)
    result |= {f"{role}_bits_per_byte": result[f"{role}_nats"] * bits for role in NAMES}
    result |= {"bytes_per_token": size / len(stream)} | on_prefixes(target, draft)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
