"""The native module's types are what nanobind writes for it."""

from pathlib import Path

import pytest

from parlay import kernels

native = pytest.importorskip("parlay.kernels._native")
stubgen = pytest.importorskip("nanobind.stubgen")


def test_the_stub_is_that_of_the_module() -> None:
    generator = stubgen.StubGen(native)
    generator.put(native)
    (folder,) = (Path(path) for path in kernels.__path__ if (Path(path) / "base.py").exists())
    assert generator.get() == (folder / "_native.pyi").read_text(), "after a change to csrc/, run: make stub"
