"""Blocks of one and two bits: as loops read them, alone and from a file."""

from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import write_llama
from gguf_files import write_gguf
from pieces import logits_of

from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.weights.kinds import BY_NAME, READ_AS, Kind
from parlay.weights.weight import Part
from parlay.weights.widened import widened


def by_loops(kind: Kind, block: bytes) -> list[float]:
    """As ggml's functions that dequantise them."""
    d, levels = float(np.frombuffer(block[:2], np.float16)[0]), block[2:]
    if kind.name == "Q1_0":
        return [d if levels[j // 8] >> j % 8 & 1 else -d for j in range(128)]
    return [((levels[j // 4] >> j % 4 * 2 & 3) - 1) * d for j in range(64)]


@pytest.mark.parametrize("kind", READ_AS, ids=str)
def test_the_same_numbers(kind: Kind) -> None:
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (3, 4, kind.size), dtype=np.uint8)
    blocks[..., :2] = np.float16(rng.standard_normal((3, 4, 1))).view(np.uint8)
    expected = [[x for block in row for x in by_loops(kind, block.tobytes())] for row in blocks]
    found = Part(READ_AS[kind], torch.from_numpy(widened(kind, blocks.reshape(3, -1)))).numbers()
    assert found.tolist() == expected


def test_a_file(tmp_path: Path) -> None:
    wide = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
    file = write_gguf(write_llama(tmp_path / "model", **wide), tmp_path / "m.gguf", "Q1_0")
    with GGUFFile(file) as opened:
        raw, _ = opened.raw("blk.0.ffn_up.weight")
        assert opened.read("blk.0.ffn_up.weight")[0].tolist() == [
            x for block in raw.reshape(512, 2, -1)[0] for x in by_loops(BY_NAME["Q1_0"], block.tobytes())
        ]
    found, expected = logits_of(file, torch.float32), logits_of(file, torch.float32, storage="plain")
    assert (found - expected).std() < 0.15 * expected.std()
