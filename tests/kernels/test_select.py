"""Which kernels are chosen."""

import logging
import sys

import pytest

import parlay.kernels
from parlay.errors import ConfigError
from parlay.kernels.select import select_kernels

from .conftest import ISAS

needs_native = pytest.mark.skipif(not ISAS, reason="no native kernels")


@needs_native
def test_native_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARLAY_KERNELS", raising=False)
    monkeypatch.delenv("PARLAY_ISA", raising=False)
    assert select_kernels().name == f"native-{ISAS[0]}"
    assert select_kernels(force="native").name == f"native-{ISAS[0]}"


def test_reference_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert select_kernels(force="reference").name == "reference"
    monkeypatch.setenv("PARLAY_KERNELS", "reference")
    assert select_kernels().name == "reference"


@needs_native
def test_an_instruction_set_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from parlay.kernels import _native

    monkeypatch.setenv("PARLAY_ISA", "baseline")
    assert select_kernels(force="native").name == "native-baseline"
    monkeypatch.setenv("PARLAY_ISA", "avx1024")
    with pytest.raises(ConfigError, match="avx1024"):
        select_kernels(force="native")
    _native.set_isa(ISAS[0])


def test_unknown_names_are_errors() -> None:
    with pytest.raises(ConfigError, match="'native'"):
        select_kernels(force="nativ")
    with pytest.raises(ConfigError, match="tpu"):
        select_kernels(device="tpu")


def test_without_a_compiled_module(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("PARLAY_KERNELS", raising=False)
    monkeypatch.setitem(sys.modules, "parlay.kernels._native", None)
    monkeypatch.delattr(parlay.kernels, "_native", raising=False)
    monkeypatch.delitem(sys.modules, "parlay.kernels.cpu", raising=False)
    monkeypatch.delattr(parlay.kernels, "cpu", raising=False)
    with caplog.at_level(logging.WARNING, "parlay"):
        assert select_kernels().name == "reference"
    assert "native" in caplog.text
    with pytest.raises(ConfigError, match="cannot be imported"):
        select_kernels(force="native")
