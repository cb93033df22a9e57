"""GGUF files: the same bits as the same weights in safetensors, the same tokens, and typed errors for the rest."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from asking import CODE, completed_code
from checkpoints import read_config, write_llama
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf_files import add_raw, finish, random_blocks, write_gguf
from pieces import logits_of

from parlay import LLM, ModelError
from parlay.checkpoints.find import find_model
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.models.select import describe_model
from parlay.numerics.digests import digest_model


def dequantisable(kind: GGMLQuantizationType) -> bool:
    """Whether the package can dequantise a kind."""
    try:
        gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except (KeyError, NotImplementedError):
        return False
    return True


KINDS = [kind.name for kind in GGMLQuantizationType if kind.name not in ("F32", "F16") and dequantisable(kind)]
logits = partial(logits_of, storage="plain")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_what_the_package_makes_of_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In slabs of any size."""
    blocks = random_blocks(kind, (11, 512), seed=4)
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    add_raw(writer, "x", blocks, kind)
    finish(writer)
    with GGUFFile(tmp_path / "a.gguf") as file, np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, GGMLQuantizationType[kind]).astype(np.float32)
        for slab in (1 << 20, 1, 513, 2048, 5000):
            monkeypatch.setattr("parlay.checkpoints.gguf.reader._SLAB", slab)
            found = file.read("x").float().numpy()
            assert found.shape == (11, 512)
            assert np.array_equal(found, expected, equal_nan=True)


def test_a_wrong_order_of_rows_would_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_llama(tmp_path / "model")
    monkeypatch.setattr("gguf_files.interleave", lambda weight, heads: weight)
    file = write_gguf(model, tmp_path / "model.gguf")
    assert not torch.allclose(logits(file), logits(model), atol=0.1)


@pytest.mark.parametrize("original", [32, 8192])
def test_llama3_scaling_is_recognised(tmp_path: Path, original: int) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }
    model = write_llama(tmp_path / "model", rope_theta=500000.0, rope_scaling=scaling)

    def add(writer: GGUFWriter) -> None:
        # As llama.cpp's converter computes them.
        divisors = []
        for i in range(0, 16, 2):
            frequency = 1.0 / 500000.0 ** (i / 16)
            length = 2 * np.pi / frequency
            if length < original / 4.0:
                divisors.append(1.0)
            elif length > original / 1.0:
                divisors.append(8.0)
            else:
                smooth = (original / length - 1.0) / 3.0
                divisors.append(1 / ((1 - smooth) / 8.0 + smooth))
        writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))

    file = write_gguf(model, tmp_path / "model.gguf", change=add)
    assert torch.equal(logits(file), logits(model))
    plain = write_gguf(model, tmp_path / "plain.gguf")
    assert original > 4096 or not torch.equal(logits(plain), logits(model))

    def wrong(writer: GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, 8, dtype=np.float32))

    with pytest.raises(ModelError, match=r"wrong\.gguf.*rope_freqs"):
        describe_model(str(write_gguf(model, tmp_path / "wrong.gguf", change=wrong)))


def test_every_way_to_end_is_known(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    ends = {"tokenizer__ggml__eot_token_id": 3, "tokenizer__ggml__eom_token_id": 4}
    assert read_config(write_gguf(model, tmp_path / "m.gguf", **ends)).eos_token_ids == (256, 3, 4)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("F32", "float32"), ("F16", "float16"), ("Q8_0", "bfloat16"), ("Q4_0", "bfloat16"), ("BF16", "bfloat16")],
)
def test_dtypes(tmp_path: Path, kind: str, name: str) -> None:
    assert read_config(write_gguf(write_llama(tmp_path / "m"), tmp_path / "m.gguf", kind)).dtype == name


# The reader beside the package's own, and names beside the package's own table.


def test_the_header_as_the_package_reads_it(tmp_path: Path) -> None:
    file = write_gguf(find_model("tiny-code"), tmp_path / "m.gguf", "Q8_0")
    reader = GGUFReader(file)
    with GGUFFile(file) as ours:
        assert list(ours.tensors) == [t.name for t in reader.tensors]
        for theirs in reader.tensors:
            stored = ours.tensors[theirs.name]
            assert stored.shape == tuple(theirs.shape.tolist())[::-1]
            assert (stored.kind.name, stored.offset, stored.size) == (
                theirs.tensor_type.name,
                theirs.data_offset,
                theirs.n_bytes,
            )
            expected = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
            assert torch.equal(ours.read(theirs.name).float(), torch.from_numpy(np.array(expected, np.float32)))
        read = {"STRING": ours.text, "UINT32": ours.integer, "FLOAT32": ours.number}
        compared = set()
        for key, field in reader.fields.items():
            kinds = [kind.name for kind in field.types]
            if key.startswith("GGUF."):
                continue
            if kinds[0] == "ARRAY":
                found: Any = ours.texts(key) if kinds[1] == "STRING" else ours.numbers(key)
                assert ours.length(key) == len(found)
            elif kinds[0] == "BOOL":
                found = ours.flag(key, not field.contents())
            else:
                found = read[kinds[0]](key)
            assert found == pytest.approx(field.contents()) if kinds[0] == "FLOAT32" else found == field.contents()
            compared.add(kinds[-1])
        assert compared >= {"STRING", "UINT32", "FLOAT32", "INT32", "BOOL"}


# Whole engines.


def test_a_file_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    """Headers are remembered: not those of a file that has changed, however soon and to the same size."""
    path, names = tmp_path / "a.gguf", []
    for name in ("one", "two"):
        writer = GGUFWriter(path, "llama")
        writer.add_name(name)
        add_raw(writer, name, random_blocks("Q8_0", (2, 32), seed=1), "Q8_0")
        finish(writer)
        os.utime(path, ns=(1, 1))
        with GGUFFile(path) as file, GGUFFile(path) as again:
            names.append((file.text("general.name"), *file.tensors))
            assert file.header == again.header
            again.tensors.clear()  # a file's own
            assert file.tensors
    assert names == [("one", "one"), ("two", "two")]


@pytest.fixture(scope="module")
def tiny_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(
        find_model("tiny-code"), tmp_path_factory.mktemp("gguf") / "tiny-code.gguf", "BF16", pre="ufakzeka"
    )


def test_tiny_code_completes_alike(tiny_code: Path) -> None:
    """With every proposer, either model or both in a GGUF file."""
    expected = completed_code(LLM("tiny-code", max_model_len=128, speculative_config=None), 32)
    draft = {"lengths": "fixed", "method": "draft_model", "num_speculative_tokens": 3}
    for target, speculative in (
        (tiny_code, None),
        (tiny_code, {"lengths": "fixed", "method": "ngram"}),
        (tiny_code, {**draft, "model": str(tiny_code)}),
        ("tiny-code", {**draft, "model": str(tiny_code)}),
    ):
        llm = LLM(target, max_model_len=128, speculative_config=speculative)
        assert completed_code(llm, 32) == expected
        assert speculative is None or llm.engine.stats.emitted > llm.engine.stats.steps * len(CODE)


def test_the_chat_template_comes_along(tiny_code: Path) -> None:
    messages = [{"role": "user", "content": "sort a list"}]
    found = LLM(tiny_code, max_model_len=64).chat_prompt(messages)
    assert found == LLM("tiny-code", max_model_len=64).chat_prompt(messages)


def test_a_draft_model_with_other_tokens_is_refused(tmp_path: Path, tiny_code: Path) -> None:
    tokens = json.loads((find_model("tiny-code") / "tokenizer.json").read_text())["model"]["vocab"]
    ordered = sorted(tokens, key=lambda t: tokens[t])
    ordered[300], ordered[301] = ordered[301], ordered[300]
    other = write_gguf(
        find_model("tiny-code"),
        tmp_path / "other.gguf",
        "BF16",
        pre="ufakzeka",
        tokenizer__ggml__tokens=ordered,
    )
    drafts = {"lengths": "fixed", "method": "draft_model", "model": str(other), "vocabulary": "same"}
    with pytest.raises(ModelError, match="other ids to tokens"):
        LLM(tiny_code, speculative_config=drafts)


def test_a_digest_names_weights_and_shape(tmp_path: Path) -> None:
    model, other = write_llama(tmp_path / "a"), write_llama(tmp_path / "b", seed=1)
    seen = {
        digest_model(write_gguf(model, tmp_path / "a.gguf")),
        digest_model(write_gguf(model, tmp_path / "c.gguf")),
        digest_model(write_gguf(other, tmp_path / "b.gguf")),
        digest_model(write_gguf(model, tmp_path / "d.gguf", "F16")),
        digest_model(write_gguf(model, tmp_path / "e.gguf", llama__rope__freq_base=5.0)),
    }
    assert len(seen) == 4
