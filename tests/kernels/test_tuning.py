"""How far ahead weights are asked for: measured once, remembered, and no bit of a product hangs on it."""

from pathlib import Path

import pytest
import torch

from parlay import env
from parlay.cache_file import CacheFile
from parlay.kernels import tuning
from parlay.kernels.base import Kernels
from parlay.kernels.reference import ReferenceKernels
from parlay.kernels.tuning import Prefetching, measure, tune
from parlay.numerics.selfcheck import random_blocks
from parlay.weights.kinds import BY_NAME
from parlay.weights.weight import Weight

from .helpers import random, same_bits
from .test_quantised import multiplied


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measuring, with weights of a megabyte, and a cache folder of the test's own."""
    monkeypatch.setattr(tuning, "measure", measure)
    monkeypatch.setattr(tuning, "_BYTES", 8 << 20)
    monkeypatch.setattr(env, "cache_dir", lambda: tmp_path)


@pytest.fixture
def asked(native: Kernels, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """What the kernels are told."""
    told: list[tuple[int, int, int]] = []
    usual = native.prefetch
    assert usual is not None

    def prefetch(*distances: int) -> None:
        told.append(distances)  # type: ignore[arg-type]
        usual(*distances)

    monkeypatch.setattr(native, "prefetch", prefetch)
    return told


def test_no_bit_hangs_on_it(native: Kernels) -> None:
    assert native.prefetch is not None
    plain = Weight.of(random(96, 2048, dtype=torch.bfloat16, seed=1))
    blocks = random_blocks(BY_NAME["Q4_K"], 96, 2048, seed=1)
    for rows in (1, 5, 8, 20):
        x = random(rows, 2048, dtype=torch.bfloat16, seed=2)
        native.prefetch(5, 6144, 10240)
        expected = [multiplied(native, x, weight) for weight in (plain, blocks)]
        for distances in ((0, 0, 0), (0, 2048, 4096), (100, 10240, 0), (0, 1 << 20, 1 << 20)):
            native.prefetch(*distances)
            for weight, own in zip((plain, blocks), expected, strict=True):
                assert same_bits(multiplied(native, x, weight), own)
    native.prefetch(5, 6144, 10240)


def test_it_is_measured_once(native: Kernels, asked: list[tuple[int, int, int]], tmp_path: Path) -> None:
    tune(native, 1)
    assert len(asked) > 10
    (found,) = CacheFile("prefetching", 2, folder=tmp_path).read().values()
    assert asked[-1] == tuple(found.values())
    first = asked[-1]
    asked.clear()
    tune(native, 1)
    assert asked == [first]
    tune(native, 2)  # another number of threads is another setting
    assert len(CacheFile("prefetching", 2, folder=tmp_path).read()) == 2


def test_the_usual_stays_unless_another_is_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuning._best([lambda: 1.0, lambda: 0.99, lambda: 1.0], 0) == 0
    assert tuning._best([lambda: 1.0, lambda: 0.9, lambda: 0.8], 0) == 2
    # On a busy machine, in which one round says the contrary of all others.
    usual = iter([1.0] * 6)
    other = iter([0.5, 0.5, 0.5, 1.0, 0.5, 0.5])
    assert tuning._best([lambda: next(usual), lambda: next(other)], 0) == 0


def test_without_a_cache_folder(monkeypatch: pytest.MonkeyPatch, native: Kernels) -> None:
    monkeypatch.setattr(env, "cache_dir", lambda: None)
    monkeypatch.setattr(tuning, "measure", lambda kernels: Prefetching(1, 2, 3))
    tune(native, 1)


def test_kernels_that_nobody_tunes() -> None:
    tune(ReferenceKernels(), 1)
