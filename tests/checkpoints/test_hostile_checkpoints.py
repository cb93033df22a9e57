"""Checkpoints with one wrong file each, tried in processes of their own: a model or an error of ours, and no harm."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from asking import random_seed
from checkpoints import write_llama
from gguf_files import write_gguf
from hostile_files import LIMIT
from safetensors.torch import load_file

SCRIPT = Path(__file__).parents[1] / "support" / "hostile_files.py"
BATCH = 1000
GROWTH = 256 << 10  # KiB, from the 50th case of a process to its last
SHAPE = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "head_dim": 8}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good")
    model = write_llama(path / "llama", vocab_size=300, **SHAPE)
    (model / "generation_config.json").write_text('{"temperature": 0.7, "top_k": 5, "eos_token_id": [1, 2]}')
    texts = {"chat_template": "{{ messages[0].content }}", "bos_token": "<s>", "eos_token": {"content": "x"}}
    (model / "tokenizer_config.json").write_text(json.dumps(texts))
    pickled = write_llama(path / "pickled", vocab_size=300, **SHAPE)
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    write_gguf(model, path / "model.gguf", "Q8_0")
    return path


def batch(good: Path, work: Path, seed: int, first: int, end: int) -> tuple[int, Counter[str], list[str], int]:
    """Return the case to go on with, how cases ended, what is wrong, and how much memory grew, in KiB."""
    command = [sys.executable, str(SCRIPT), str(good), str(work), str(seed), str(first), str(end)]
    with (work / "trouble").open("w") as trouble:
        try:
            limit = 60 + LIMIT + (end - first)
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=trouble, text=True, timeout=limit, check=False
            )
            out, why = done.stdout, f"ended with {done.returncode}"
        except subprocess.TimeoutExpired as error:
            out, why = (error.stdout or b"").decode(), "hangs"
    ends, wrong, case, sizes = Counter[str](), [], first - 1, []
    for line in out.splitlines():
        word, _, rest = line.partition(" ")
        if word == "case":
            case = int(rest)
        elif word in ("begin", "memory"):
            sizes.append(int(rest))
        else:
            ends[word] += 1
            wrong += [f"case {case}: {rest}"] if word == "WRONG" else []
    if not out.splitlines() or not out.splitlines()[-1].startswith("memory"):
        wrong.append(f"case {case}: the process {why}: {(work / 'trouble').read_text()[-300:]}")
        return max(case, first) + 1, ends, wrong, 0
    return end, ends, wrong, sizes[-1] - sizes[0]


def check(good: Path, work: Path, cases: int, seconds: float) -> None:
    seed, began, at = random_seed(), time.monotonic(), 0
    ends, wrong, most = Counter[str](), [], 0
    while at < cases and (at == 0 or time.monotonic() - began < seconds):
        at, some, found, grown = batch(good, work, seed, at, min(at + BATCH, cases))
        ends, wrong, most = ends + some, wrong + found, max(most, grown)
    print(f"{at} cases in {time.monotonic() - began:.0f} s: {dict(ends)}, grew by {most} KiB at most")
    assert not wrong, f"with PARLAY_TEST_SEED={seed}: " + "; ".join(wrong[:40])
    assert most < GROWTH
    assert ends["refused"] > ends.total() / 4
    assert ends["ok"] > ends.total() / 50


def test_hostile_checkpoints(good: Path, tmp_path: Path) -> None:
    check(good, tmp_path, 90, 60)


@pytest.mark.soak
def test_many_hostile_checkpoints(good: Path, tmp_path: Path) -> None:
    """20,000, unless time runs out before: `PARLAY_SOAK_SECONDS`."""
    check(good, tmp_path, 20_000, float(os.environ.get("PARLAY_SOAK_SECONDS", "60")))
