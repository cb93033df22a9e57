"""What the tests of training share: a target of few tokens whose next one depends mostly on the last, and prompts."""

import json
from pathlib import Path
from typing import Any

import torch
from checkpoints import write_llama

from parlay.train.options import TrainOptions

LETTERS = 26


def write_target(path: Path, seed: int = 5) -> Path:
    """Write a target with a vocabulary of 64, of which the letters A to Z are prompts' tokens."""
    return write_llama(path, seed=seed, scale=5.0, calm=0.1, vocab_size=64, eos_token_id=63)


def write_prompts(file: Path, count: int = 256) -> Path:
    """Write random letters as prompts, with completions of the same kind."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(LETTERS, (count, 24), generator=generator).tolist()
    texts = ["".join(chr(65 + i) for i in row) for row in rows]
    file.write_text("".join(json.dumps({"prompt": t[:12], "completion": t[12:]}) + "\n" for t in texts))
    return file


def options(target: Path, data: Path, output: Path, **more: Any) -> TrainOptions:
    """Return options of a short run on what the target writes."""
    chosen = {
        "generate": 160,
        "response_tokens": 48,
        "max_length": 96,
        "epochs": 3,
        "batch_size": 8,
        "learning_rate": 1e-2,
        "held_out": 0.1,
        **more,
    }
    return TrainOptions(target=str(target), data=str(data), output=str(output), **chosen)
