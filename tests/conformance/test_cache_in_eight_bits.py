"""The same tokens with `kv_cache_dtype="int8"`, compared with plain decoding whose cache is in eight bits, too."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from asking import Ask, run
from checking import check_cell
from checkpoints import write_llama
from conftest import DTYPES, MakeLLM, Pair, Plain
from table import CONDITIONS, CONFIGURATIONS, OF_TREES, TEMPERATURES, Cell

from parlay import LLM, CompletionOutput

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
    pairs = {}
    for name in DTYPES:
        path, dtype = tmp_path_factory.mktemp(name), getattr(torch, name)
        shape = {"seed": 2, "dtype": dtype, "scale": 7.0, "calm": 0.2, "head_dim": 32}
        pairs[name] = Pair(write_llama(path / "target", **shape), write_llama(path / "draft", noise=0.06, **shape))
    return pairs


@pytest.fixture(scope="module")
def plain(models: dict[str, Pair]) -> Plain:
    """What plain decoding gives with a cache in eight bits: every request alone, its prompt whole."""
    engines = {
        name: LLM(
            str(pair.target),
            max_model_len=128,
            enable_prefix_caching=False,
            speculative_config=None,
            kv_cache_dtype=IN_EIGHT_BITS,
        )
        for name, pair in models.items()
    }
    known: dict[tuple[str, Ask], list[CompletionOutput]] = {}

    def complete(dtype: str, asks: Sequence[Ask]) -> list[CompletionOutput]:
        for ask in asks:
            if (dtype, ask) not in known:
                known[dtype, ask] = run(engines[dtype], [ask])
        return [completion for ask in asks for completion in known[dtype, ask]]

    return complete


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, id=str(cell), marks=() if suite else pytest.mark.soak) for cell, suite in cells()],
)
def test_the_same_tokens(
    make_llm: MakeLLM, models: dict[str, Pair], plain: Plain, monkeypatch: pytest.MonkeyPatch, cell: Cell
) -> None:
    check_cell(cell, make_llm, models, plain, monkeypatch, kv_cache_dtype=IN_EIGHT_BITS)
