"""How much of what the target writes a reduced draft vocabulary covers: `coverage.py RESPONSES HEAD`.

RESPONSES is the `training/responses.jsonl` of a run of `parlay train`, HEAD a directory with an EAGLE-3 head.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

responses, head = map(Path, sys.argv[1:])
offsets = load_file(head / "model.safetensors")["d2t"]
known = set((offsets + torch.arange(len(offsets))).tolist())
with responses.open() as file:
    next(file)  # what the responses were written with
    tokens = [token for line in file for token in json.loads(line)["response"]]
print(f"{len(known):,} tokens cover {sum(t in known for t in tokens) / len(tokens):.1%} of {len(tokens):,} written")
