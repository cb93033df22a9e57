"""Headers that are written: what two readers find in them."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from hypothesis import given
from hypothesis import strategies as st

from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.checkpoints.gguf.writer import ALIGNMENT, Entry, Value, encode, header, padding
from parlay.weights.kinds import KINDS

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
SINGLE = st.floats(width=32, allow_nan=False, allow_infinity=False)
VALUES: st.SearchStrategy[Value] = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    SINGLE,
    TEXT.filter(bool),
    st.lists(TEXT, min_size=1, max_size=5),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5),
    st.lists(SINGLE, min_size=1, max_size=5),
)
KEYS = st.text("abc.xyz_", min_size=1, max_size=12).map("x.{}".format)
ENTRIES = st.builds(
    lambda kind, rows, blocks: (kind, (*rows, blocks * kind.block)),
    st.sampled_from([kind for kind in KINDS.values() if kind.name != "Q2_0"]),  # which the package does not know yet
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(1, 3),
)


@given(st.dictionaries(KEYS, VALUES, max_size=6), st.lists(ENTRIES, max_size=5))
def test_what_is_written_is_read(
    tmp_path_factory: Any, metadata: dict[str, Value], tensors: list[tuple[Any, tuple[int, ...]]]
) -> None:
    path = Path(tmp_path_factory.mktemp("header")) / "m.gguf"
    entries = [Entry(f"t{i}", kind, shape) for i, (kind, shape) in enumerate(tensors)]
    data = [bytes([i + 1]) * entry.size for i, entry in enumerate(entries)]
    start = header({key: encode(value) for key, value in metadata.items()}, entries)
    assert len(start) % ALIGNMENT == 0
    path.write_bytes(start + b"".join(one + bytes(padding(len(one))) for one in data))
    with GGUFFile(path) as file:
        assert file.verbatim() == {key: encode(value) for key, value in metadata.items()}
        for key, value in metadata.items():
            assert read(file, key, value) == value
        assert list(file.tensors) == [entry.name for entry in entries]
        for entry, one in zip(entries, data, strict=True):
            stored = file.tensors[entry.name]
            assert (stored.kind, stored.shape, stored.size) == (entry.kind, entry.shape, entry.size)
            assert file.raw(entry.name)[0].tobytes() == one
    theirs = GGUFReader(path)
    assert {key: theirs.fields[key].contents() for key in metadata} == metadata
    for tensor, entry, one in zip(theirs.tensors, entries, data, strict=True):
        assert (tensor.name, tuple(tensor.shape)[::-1], tensor.data.tobytes()) == (entry.name, entry.shape, one)


def read(file: GGUFFile, key: str, value: Value) -> Value:
    if isinstance(value, list):
        return file.texts(key) if isinstance(value[0], str) else file.numbers(key)
    if isinstance(value, str):
        return file.text(key)
    if isinstance(value, float):
        return float(np.float32(file.number(key)))
    return file.value(key)
