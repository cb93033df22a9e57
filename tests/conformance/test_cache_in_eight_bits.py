"""The same tokens with `kv_cache_dtype="int8"`, compared with plain decoding whose cache is in eight bits, too."""

from collections.abc import Iterator

import pytest
from checking import check_cell
from conftest import DTYPES, MakeLLM, Pair, Plain, decoding_plainly, write_pairs
from table import CONDITIONS, CONFIGURATIONS, OF_TREES, TEMPERATURES, Cell

IN_EIGHT_BITS = "int8"
NAMES = (*CONDITIONS, *OF_TREES)


def cells() -> Iterator[tuple[Cell, bool]]:
    """Yield every configuration under every condition, and whether the suite runs it: each under one in turn."""
    for i, (configuration, how) in enumerate(CONFIGURATIONS.items()):
        names = [name for name in NAMES if name in how.conditions]
        for j, name in enumerate(names):
            options, n = how.conditions[name].options, i + j
            cell = Cell(
                configuration,
                name,
                DTYPES[n % 2],
                TEMPERATURES[n % 3],
                options[n % len(options)],
                how.more[n % len(how.more)],
            )
            yield cell, not how.in_turn and j == i % len(names)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Those of the suite, with heads as wide as a block of the cache."""
    return write_pairs(tmp_path_factory, head_dim=32)


@pytest.fixture(scope="module")
def plain(models: dict[str, Pair]) -> Plain:
    """What plain decoding gives with a cache in eight bits: every request alone, its prompt whole."""
    return decoding_plainly(models, kv_cache_dtype=IN_EIGHT_BITS)


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, id=str(cell), marks=() if suite else pytest.mark.soak) for cell, suite in cells()],
)
def test_the_same_tokens(
    make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, monkeypatch: pytest.MonkeyPatch, cell: Cell
) -> None:
    check_cell(cell, make_llm, models, plain, monkeypatch, kv_cache_dtype=IN_EIGHT_BITS)
