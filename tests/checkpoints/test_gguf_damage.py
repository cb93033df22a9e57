"""A GGUF file is believed in nothing: whatever is wrong with it, a ModelError that names it, at once and cheaply."""

import resource
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import read_config, write_llama
from gguf import GGUFWriter
from gguf_files import write_gguf
from hypothesis import example, given
from hypothesis import strategies as st
from text.test_gguf_tokenizer import spm_keys

from parlay import LLM, ModelError
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.checkpoints.loader import Checkpoint
from parlay.kernels.select import select_kernels
from parlay.models.select import describe_model, load_model
from parlay.numerics.digests import digest_model
from parlay.text.tokenizer import TextCodec

HUGE = (1 << 63) + 5


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def header(*parts: bytes, version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, length: int, data: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + data


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def nested(depth: int) -> bytes:
    return struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 0, 0)


PLENTY = b"\0" * 4096
DAMAGE: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["empty"]),
    "safetensors": (b"\x40\0\0\0\0\0\0\0{}", ["not a GGUF file"]),
    "three letters": (b"GGU", ["not a GGUF file"]),
    "four letters": (b"GGUF", ["past the end"]),
    "version 1": (header(version=1), ["version 1"]),
    "version 99": (header(version=99), ["version 99"]),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), ["big-endian"]),
    "many keys": (header(keys=HUGE), ["claims", str(HUGE)]),
    "many tensors": (header(tensors=HUGE), ["claims", str(HUGE)]),
    "missing keys": (header(keys=1000), ["past the end"]),
    "missing tensors": (header(tensors=1000), ["past the end"]),
    "long key": (header(struct.pack("<Q", HUGE), PLENTY, keys=1), ["name of a key"]),
    "key beyond": (header(struct.pack("<Q", 900), b"abc", keys=1), ["past the end"]),
    "key no text": (header(key(b"\xff\xfe", 4, b"\0" * 4), keys=1), ["UTF-8"]),
    "text beyond": (header(key("a", 8, struct.pack("<Q", HUGE)), PLENTY, keys=1), ["past the end"]),
    "same key": (header(key("a", 4, b"\0" * 4) * 2, keys=2), ["'a' comes twice"]),
    "unknown type": (header(key("a", 77, b""), PLENTY, keys=1), ["a has", "unknown type 77"]),
    "array of arrays": (header(key("a", 9, nested(100_000)), keys=1), ["a is an array of the type 9"]),
    "long array": (header(key("a", 9, array(0, HUGE)), PLENTY, keys=1), ["a claims", str(HUGE)]),
    "long array of texts": (header(key("a", 9, array(8, HUGE)), PLENTY, keys=1), ["a claims"]),
    "array beyond": (header(key("a", 9, array(12, 4000)), PLENTY, keys=1), ["a runs past the end"]),
    "texts beyond": (header(key("a", 9, array(8, 4000)), PLENTY, keys=1), ["past the end"]),
    "text in an array beyond": (
        header(key("a", 9, array(8, 1, struct.pack("<Q", HUGE))), PLENTY, keys=1),
        ["a runs past the end"],
    ),
    "alignment 0": (header(key("general.alignment", 4, struct.pack("<I", 0)), keys=1), ["general.alignment"]),
    "alignment 24": (header(key("general.alignment", 4, struct.pack("<I", 24)), keys=1), ["general.alignment"]),
    "alignment text": (header(key("general.alignment", 8, text("32")), keys=1), ["general.alignment"]),
    "no dimensions": (header(tensor("a", ()), tensors=1), ["'a' has 0 dimensions"]),
    "many dimensions": (
        header(text("a"), struct.pack("<I", 0xFFFFFFFF), PLENTY, tensors=1),
        ["'a' has 4294967295 dimensions"],
    ),
    "tensor type": (header(tensor("a", (32,), 200), PLENTY, tensors=1), ["'a'", "unknown type 200"]),
    "tensor type not served": (header(tensor("a", (256,), 15), PLENTY, tensors=1), ["'a'", "Q8_K", "Q4_K"]),
    "no such kind of blocks": (
        header(tensor("a", (256,), 24), PLENTY, tensors=1),
        ["'a'", "I8", "Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, TQ1_0, TQ2_0 are"],
    ),
    "empty tensor": (header(tensor("a", (0, 5)), PLENTY, tensors=1), ["'a' has shape [5, 0]"]),
    "half a block": (header(tensor("a", (48, 2), 8), PLENTY, tensors=1), ["'a' has shape [2, 48]", "Q8_0"]),
    "tensor beyond": (header(tensor("a", (5000,)), PLENTY, tensors=1), ["'a' would lie at"]),
    "offset beyond": (header(tensor("a", (4,), offset=1 << 60), PLENTY, tensors=1), ["'a' would lie at"]),
    "offset wraps": (header(tensor("a", (4,), offset=(1 << 64) - 32), PLENTY, tensors=1), ["'a' would lie at"]),
    "offset between": (header(tensor("a", (4,), offset=3), PLENTY, tensors=1), ["'a' would lie at"]),
    "size wraps": (header(tensor("a", (1 << 62, 1 << 62)), PLENTY, tensors=1), ["'a' would lie at"]),
    "same tensor": (header(tensor("a", (4,)) * 2, PLENTY, tensors=2), ["'a' comes twice"]),
    "tensors upon each other": (
        header(tensor("a", (900,)), tensor("b", (900,)), PLENTY, tensors=2),
        ["upon each other"],
    ),
    "no metadata": (header(), ["lacks", "general.architecture"]),
    "architecture": (header(key("general.architecture", 8, text("mamba")), keys=1), ["'mamba'", "llama"]),
    "architecture no text": (header(key("general.architecture", 4, b"\1\0\0\0"), keys=1), ["general.architecture"]),
    "nothing embedded": (header(key("general.architecture", 8, text("llama")), keys=1), ["token_embd.weight"]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_headers(tmp_path: Path, damage: str) -> None:
    data, words = DAMAGE[damage]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    for read in (describe_model, LLM):
        with cheap(), pytest.raises(ModelError) as error:
            read(str(path))
        assert all(word in str(error.value) for word in ["model.gguf", *words]), str(error.value)
        assert "\n" not in str(error.value)


class cheap:  # noqa: N801 - reads as what it asserts
    """No memory may be spent on nonsense."""

    def __enter__(self) -> None:
        self._peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        tracemalloc.start()

    def __exit__(self, *_: object) -> None:
        allocated = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert allocated < 64 << 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._peak < 256 << 10


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small file with everything in it: several kinds of tensors, a byte-level tokenizer, scaled frequencies."""
    path = tmp_path_factory.mktemp("good")
    model = write_llama(path / "model", num_hidden_layers=1, hidden_size=32, intermediate_size=32, head_dim=8)

    def add(writer: GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", np.array([1, 8, 8, 8], np.float32))

    return write_gguf(model, path / "model.gguf", "Q8_0", change=add, llama__rope__freq_base=1e30)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pieces")
    model = write_llama(
        path / "model", num_hidden_layers=1, hidden_size=32, intermediate_size=32, head_dim=8, vocab_size=400
    )
    return write_gguf(model, path / "model.gguf", "F16", **{k.replace(".", "__"): v for k, v in spm_keys().items()})


def use(path: Path) -> None:
    """All that is done with a file, up to running it; anything but a ModelError is a failure."""
    for read in (read_config, digest_model, TextCodec, read_tensors):
        try:
            read(path)
        except ModelError as error:
            check_words(error, path)


def check_words(error: ModelError, path: Path) -> None:
    assert str(path) in str(error)
    assert "\n" not in str(error)


def read_tensors(path: Path) -> None:
    with Checkpoint(path) as weights, GGUFFile(path) as file:
        assert all(stored.size <= path.stat().st_size for stored in file.tensors.values())
        for name in weights._where:
            weights.shape(name)
            weights.read(name, torch.bfloat16)


def test_the_good_ones_are_good(good: Path, pieces: Path) -> None:
    for path in (good, pieces):
        for read in (read_config, digest_model, TextCodec, read_tensors):
            read(path)
        LLM(path, max_model_len=32).generate("abc")


def test_every_truncation(good: Path, tmp_path: Path) -> None:
    data, path = good.read_bytes(), tmp_path / "cut.gguf"
    for length in [*range(200), *range(200, len(data), 997), len(data) - 33]:
        path.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_config(path)


def mutated(good: Path, changes: list[tuple[int, bytes]]) -> bytes:
    data = bytearray(good.read_bytes())
    for at, new in changes:
        at %= len(data)
        data[at : at + len(new)] = new[: len(data) - at]
    return bytes(data)


# Most of a file is data, in which anything is valid; so most changes go to the header.
PLACES = st.integers(0, 1200) | st.integers(0, 12_000) | st.integers(0, 1 << 20)
WORDS = (
    st.binary(min_size=1, max_size=12)
    | st.integers(0, 300).map(lambda n: struct.pack("<Q", n))
    | st.integers(0, 31).map(lambda n: struct.pack("<I", n))
    | st.sampled_from([HUGE, (1 << 64) - 1, 1 << 32, 1 << 40]).map(lambda n: struct.pack("<Q", n))
    | st.sampled_from([0.0, -1.0, float("nan"), float("inf"), 3e38, 1e-45]).map(lambda x: struct.pack("<f", x))
)
CHANGES = st.lists(st.tuples(PLACES, WORDS), min_size=1, max_size=4)


@pytest.mark.parametrize("which", ["good", "pieces"])
def test_mutations(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source: Path = request.getfixturevalue(which)
    path = tmp_path / "mutated.gguf"

    @given(CHANGES)
    def run(changes: list[tuple[int, bytes]]) -> None:
        path.write_bytes(mutated(source, changes))
        with cheap():
            use(path)

    run()


FIELDS = st.sampled_from(
    [
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "rope.freq_base",
        "rope.dimension_count",
        "rope.scaling.factor",
        "rope.scaling.type",
        "expert_count",
        "expert_used_count",
        "attention.sliding_window",
        "attention.value_length",
    ]
)
VALUES = (
    st.integers(0, 300)
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(width=32)
    | st.booleans()
    | st.text(max_size=3)
    | st.sampled_from(["linear", "yarn", "longrope", "none"])
    | st.lists(st.integers(0, 64), min_size=1, max_size=3)
)


def test_sizes_that_nothing_has(tmp_path: Path) -> None:
    """Any metadata: a model, or a typed error before anything is made as large as a file claims."""
    kernels = select_kernels()
    model = write_llama(tmp_path / "model", num_hidden_layers=1, hidden_size=32, intermediate_size=32, head_dim=8)

    @given(st.dictionaries(FIELDS, VALUES, min_size=1, max_size=3))
    @example({"feed_forward_length": 1 << 60})
    @example({"block_count": 1 << 31})
    @example({"block_count": 2})
    @example({"attention.head_count": 1 << 30, "attention.key_length": 1 << 30})
    @example({"attention.head_count": 0})
    @example({"embedding_length": 0})
    @example({"rope.freq_base": 0.0})
    @example({"rope.freq_base": float("nan")})
    def run(keys: dict[str, Any]) -> None:
        file = write_gguf(model, tmp_path / "m.gguf", **{"llama." + k: v for k, v in keys.items()})
        try:
            with cheap():
                load_model(describe_model(str(file)), torch.float32, 16, kernels)
        except ModelError as error:
            check_words(error, file)

    run()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"llama__expert_count": 8}, ["lacks the tensor", "experts.0.down_proj"]),
        ({"llama__expert_count": 1 << 30}, ["num_experts is 1073741824"]),
        ({"llama__expert_count": -1}, ["num_experts is -1"]),
        ({"llama__expert_count": 2, "llama__expert_used_count": 3}, ["num_experts_per_tok=3", "2 experts"]),
        ({"llama__attention__sliding_window": "wide"}, ["sliding_window must be a number"]),
        ({"llama__attention__sliding_window": -5}, ["sliding_window must be a number above 0"]),
        ({"llama__rope__scaling__type": "yarn", "llama__rope__scaling__attn_factor": 2.0}, ["attn_factor"]),
        ({"split__count": 3, "split__no": 0}, ["is part 1 of 3", "-00001-of-00003"]),
        ({"llama__feed_forward_length": [32, 64]}, ["feed_forward_length", "layer to layer"]),
        ({"llama__rope__dimension_count": 4}, ["rotating 4 of 8"]),
        ({"llama__attention__value_length": 16}, ["as wide as their keys"]),
        ({"llama__feed_forward_length": 1 << 40}, ["intermediate_size is 1099511627776"]),
        ({"llama__feed_forward_length": 40}, ["ffn|mlp"]),
        ({"llama__block_count": 9000}, ["num_hidden_layers is 9000"]),
        ({"llama__block_count": 2}, ["lacks the tensor", "layers.1"]),
        ({"llama__block_count": None}, ["lacks the key 'llama.block_count'"]),
        ({"llama__embedding_length": "wide"}, ["llama.embedding_length must be"]),
        ({"llama__rope__freq_base": 0.0}, ["freq_base must be above 0"]),
    ],
    ids=str,
)
def test_refusals(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    model = write_llama(tmp_path / "model", num_hidden_layers=1, hidden_size=32, intermediate_size=32, head_dim=8)
    file = write_gguf(model, tmp_path / "m.gguf", **changes)
    with pytest.raises(ModelError) as error:
        LLM(file, max_model_len=16)
    for word in ["m.gguf", *words]:
        assert any(w in str(error.value) for w in word.split("|")), str(error.value)


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    file = write_gguf(model, tmp_path / "m.gguf", tokenizer__ggml__tokens=[f"<{i}>" for i in range(300)])
    with pytest.raises(ModelError, match="names 300 tokens but embeds only 257"):
        describe_model(str(file))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_values_that_are_no_numbers(tmp_path: Path, kind: str) -> None:
    model = write_llama(tmp_path / "model")
    file = write_gguf(model, tmp_path / "m.gguf", kind)
    with GGUFFile(file) as opened:
        stored = opened.tensors["blk.1.attn_k.weight"]
    data = bytearray(file.read_bytes())
    nan = {"F32": b"\0\0\xc0\x7f", "BF16": b"\xc0\x7f"}.get(kind, b"\0\x7e")
    data[stored.offset : stored.offset + len(nan)] = nan
    file.write_bytes(data)
    with pytest.raises(ModelError, match=r"m\.gguf: tensor 'model\.layers\.1\.self_attn\.k_proj.*not numbers"):
        LLM(file, max_model_len=16)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello, world")
    with pytest.raises(ModelError, match=r"notes\.txt is not a GGUF file"):
        LLM(tmp_path / "notes.txt")


def test_leftover_tensors_are_named(tmp_path: Path) -> None:
    def add(writer: GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_odd.weight", np.zeros(4, np.float32))

    file = write_gguf(write_llama(tmp_path / "model"), tmp_path / "m.gguf", change=add)
    with pytest.raises(ModelError, match=r"m\.gguf.*'blk\.0\.attn_odd\.weight'"):
        LLM(file)
