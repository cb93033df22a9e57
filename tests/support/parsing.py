"""What the tests of parsers share: values that nobody expects, and what may come of them."""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from parlay import ParlayError

# The few are the same every time; the many are for `make soak`.
FEW, MANY = 40, 20_000
examples = pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.soak)])

ODD_NUMBERS = st.sampled_from(
    [True, False, 10**400, -(10**400), 1 << 63, 1 << 64, 0, -1, 1e308, 0.5, 2.0, "3", "1e5"]
)
ODD_FLOATS = st.sampled_from([float("nan"), float("inf"), float("-inf"), 5e-324, -0.0])
ODD_TEXTS = st.sampled_from(["\ud800", "a\0b", "\n", "", " ", "x" * 5000, "../..", "/etc/passwd", "é", "null"])
ODD = ODD_NUMBERS | ODD_FLOATS | ODD_TEXTS | st.none()
ANY = st.recursive(
    ODD | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | ODD_TEXTS, inner, max_size=3),
    max_leaves=6,
)
# Deeper than Python's parser of JSON can follow.
DEEP = "[" * 100_000 + "]" * 100_000


def many(count: int) -> Callable[[Any], Any]:
    """Settings of a test with so many examples; with many, they are others every time."""
    return settings(
        max_examples=count,
        derandomize=count <= FEW,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def edits(value: Any, changes: st.SearchStrategy[Any] = ANY) -> st.SearchStrategy[Any]:
    """Return a strategy of copies of a mapping in which some values are others, or gone."""

    def edit(change: tuple[dict[str, Any], set[str]]) -> dict[str, Any]:
        new, gone = change
        return {k: v for k, v in {**value, **new}.items() if k not in gone}

    keys = st.sampled_from(sorted(value))
    return st.tuples(st.dictionaries(keys, changes, max_size=3), st.sets(keys, max_size=1)).map(edit)


Patch = list[tuple[int, bytes]]
PATCHES: st.SearchStrategy[Patch] = st.lists(
    st.tuples(st.integers(0, 4000) | st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8)), max_size=4
)
CUTS = st.none() | st.integers(0, 1 << 20)


def damaged(whole: bytes, patch: Patch, cut: int | None = None) -> bytes:
    """Return other bytes in some places, and the end missing from `cut` on, both counted around."""
    data = bytearray(whole)
    for at, new in patch:
        at %= len(data)
        data[at : at + len(new)] = new[: len(data) - at]
    return bytes(data if cut is None else data[: cut % len(data)])


@contextmanager
def orderly() -> Iterator[None]:
    """Whatever is done here succeeds or raises one of our own errors: one sentence, soon, and at no cost."""
    peak, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    try:
        yield
    except ParlayError as error:
        message = str(error)
        assert message, "says nothing"
        assert "\n" not in message, message
        assert len(message) < 2000, message
    assert time.perf_counter() - began < 10, "hangs"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 256 << 10, "takes memory"
