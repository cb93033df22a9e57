"""Sample continuations of corpus text from the target, for the draft to learn from."""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizer import ASSETS
from train import SAMPLED_LENGTH, SEED, WORKERS, load_tokens
from transformers import AutoModelForCausalLM

PROMPT = 64
BATCH = 96


def main() -> None:
    """Write sequences of a prompt and its continuation, one half of them greedy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the corpus")
    parser.add_argument("--minutes", type=float, required=True, help="start no batch after this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    stream = load_tokens(arguments.work, "train")
    random = np.random.default_rng(SEED)
    model: Any = AutoModelForCausalLM.from_pretrained(ASSETS / "tiny-code")
    end = time.monotonic() + 60 * arguments.minutes

    def sample(greedy: bool) -> list[torch.Tensor]:
        torch.set_num_threads(1)
        batches = []
        while time.monotonic() < end:
            starts = random.integers(0, len(stream) - PROMPT, BATCH)
            prompts = np.stack([stream[s : s + PROMPT].astype(np.int64) for s in starts])
            batches.append(
                model.generate(
                    torch.from_numpy(prompts),
                    attention_mask=torch.ones(prompts.shape, dtype=torch.long),
                    min_new_tokens=SAMPLED_LENGTH - PROMPT,
                    max_new_tokens=SAMPLED_LENGTH - PROMPT,
                    do_sample=not greedy,
                    top_k=0,
                )
            )
        return batches

    with ThreadPoolExecutor(WORKERS) as pool:
        batches = [batch for group in pool.map(sample, (False, True)) for batch in group]
    tokens = torch.cat(batches)
    tokens = tokens[torch.randperm(len(tokens))].flatten()
    np.save(arguments.work / "sampled.npy", tokens.numpy().astype(np.uint16))
    print(f"{len(tokens):,} tokens in {len(batches)} batches")


if __name__ == "__main__":
    main()
