"""Models in several GGUF files: the same as in one, whichever part is named, and what does not fit is refused."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from asking import essence
from checkpoints import read_config, write_llama
from gguf_files import write_gguf

from parlay import LLM, ModelError, SamplingParams
from parlay.checkpoints.find import find_model
from parlay.checkpoints.gguf.parts import GGUFModel
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.checkpoints.loader import Checkpoint
from parlay.config import EngineConfig
from parlay.models.select import describe_model
from parlay.numerics.digests import digest_model
from parlay.runner.footprint import weight_bytes
from parlay.text.tokenizer import TextCodec

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
NAMES = [f"m-{i}-of-00003.gguf" for i in ("00001", "00002", "00003")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds a model in three parts, and beside it the same in one."""
    model = write_llama(tmp_path / "model", **SMALL)
    write_gguf(model, tmp_path / "whole.gguf", "Q8_0")
    (tmp_path / "parts").mkdir()
    write_gguf(model, tmp_path / "parts" / "m.gguf", "Q8_0", tensors_each=8)
    assert sorted(file.name for file in (tmp_path / "parts").iterdir()) == NAMES
    return tmp_path / "parts"


def patch(file: Path, key: str, kind: str, value: int) -> None:
    """Change a number in a file's metadata."""
    data = bytearray(file.read_bytes())
    name = key.encode()
    at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4
    struct.pack_into("<" + kind, data, at, value)
    file.write_bytes(data)


@pytest.mark.parametrize("name", [*NAMES, ""])
def test_all_parts_are_one_model(folder: Path, name: str) -> None:
    """Whichever part is named, or their folder."""
    whole = folder.parent / "whole.gguf"
    path = find_model(str(folder / name))
    assert path == folder / NAMES[0]
    ours, theirs = describe_model(str(folder / name)), describe_model(str(whole))
    assert (ours.vocab_size, ours.num_layers, ours.style) == (theirs.vocab_size, theirs.num_layers, theirs.style)
    assert weight_bytes(ours, torch.bfloat16) == weight_bytes(theirs, torch.bfloat16) > 0
    with Checkpoint(path) as parts, Checkpoint(whole) as one:
        assert parts.names == one.names
        for tensor in one.names:
            assert torch.equal(parts.read(tensor), one.read(tensor))
    params = SamplingParams(max_tokens=8, ignore_eos=True, logprobs=1)
    outputs = [LLM(m, max_model_len=64).generate("abc", params, use_tqdm=False) for m in (folder / name, whole)]
    assert essence(outputs[0][0].outputs[0]) == essence(outputs[1][0].outputs[0])


def test_readers_of_a_path_find_the_other_parts_too(folder: Path) -> None:
    """Even where nobody has looked for the first one."""
    last = folder / NAMES[2]
    assert read_config(last).num_layers == 2
    assert TextCodec(last).encode("abc") == TextCodec(folder.parent / "whole.gguf").encode("abc")
    assert digest_model(last) == digest_model(folder / NAMES[0])
    assert EngineConfig(model=str(folder)).model


def test_the_digest_sees_every_part(folder: Path) -> None:
    seen = {digest_model(folder / NAMES[0])}
    for name in NAMES:
        with GGUFFile(folder / name) as file:
            stored = list(file.tensors.values())[-1]
        data = bytearray((folder / name).read_bytes())
        data[stored.offset + stored.size // 2] ^= 1
        (folder / name).write_bytes(data)
        seen.add(digest_model(folder / NAMES[0]))
    patch(folder / NAMES[1], "split.tensors.count", "i", 99)  # only the first one's counts
    seen.add(digest_model(folder / NAMES[0]))
    assert len(seen) == 5


def test_tensors_lie_where_their_own_part_says(folder: Path) -> None:
    """A few bytes of every tensor by an independent reader of each part."""
    from gguf import GGUFReader

    with GGUFModel(folder / NAMES[1]) as model:
        count = 0
        for name in NAMES:
            for tensor in GGUFReader(folder / name).tensors:
                assert np.array_equal(model.raw(tensor.name)[0], tensor.data.view(np.uint8).reshape(-1))
                count += 1
        assert count == len(model.tensors)


def test_a_folder_of_two_models_is_none(folder: Path) -> None:
    shutil.copy(folder.parent / "whole.gguf", folder)
    with pytest.raises(ModelError, match=r"2 GGUF models; give one of the files: .*whole\.gguf"):
        describe_model(str(folder))


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_part(folder: Path, name: str) -> None:
    (folder / name).unlink()
    for other in set(NAMES) - {name}:
        with pytest.raises(ModelError, match=rf"{name} does not exist"):
            describe_model(str(folder / other))


def halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    ("part", "damage", "words"),
    [
        (1, lambda file: patch(file, "split.no", "H", 2), "says that it is part 3 of 3"),
        (1, lambda file: patch(file, "split.count", "H", 4), "says that it is part 2 of 4"),
        (
            0,
            lambda file: patch(file, "split.tensors.count", "i", 99),
            "says that .* have 99 tensors",
        ),
        (2, halve, "is damaged"),
    ],
)
def test_a_damaged_part_is_named(folder: Path, part: int, damage: Callable[[Path], None], words: str) -> None:
    damage(folder / NAMES[part])
    with pytest.raises(ModelError, match=f"{NAMES[part]} {words}"):
        describe_model(str(folder / NAMES[0]))


def test_parts_of_other_models(folder: Path, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "other", **{**SMALL, "num_hidden_layers": 3})
    write_gguf(other, tmp_path / "m.gguf", tensors_each=11)
    assert (tmp_path / NAMES[2]).is_file()
    shutil.copy(tmp_path / NAMES[1], folder / NAMES[1])
    with pytest.raises(ModelError, match=r"00003-of.* has the tensor '.*', and so has .*00002-of"):
        describe_model(str(folder / NAMES[0]))
    shutil.copy(folder / NAMES[2], folder / NAMES[1])
    patch(folder / NAMES[1], "split.no", "H", 1)
    with pytest.raises(ModelError, match=r"00003-of.* has the tensor '.*', and so has .*00002-of"):
        describe_model(str(folder / NAMES[0]))


def test_a_renamed_first_part(folder: Path) -> None:
    (folder / NAMES[0]).rename(folder / "first.gguf")
    with pytest.raises(ModelError, match=r"first\.gguf is part 1 of 3, .*-00001-of-00003\.gguf"):
        describe_model(str(folder / "first.gguf"))


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("name", ["merged.gguf", "m-00001-of-00001.gguf"])
def test_a_file_that_was_joined_is_whole(folder: Path, count: int, name: str) -> None:
    """llama.cpp's `gguf-split --merge` leaves a `split.count` of 0 in every file that it writes."""
    keys = {"split__count": count, "split__no": 0, "split__tensors__count": 21}
    merged = write_gguf(folder.parent / "model", folder.parent / name, "Q8_0", **keys)
    with GGUFModel(merged) as ours, GGUFModel(folder.parent / "whole.gguf") as theirs:
        assert ours.tensors.keys() == theirs.tensors.keys()
    assert TextCodec(merged).encode("ab") == TextCodec(folder.parent / "whole.gguf").encode("ab")
