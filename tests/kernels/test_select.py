"""Which kernels are chosen."""

import logging
import platform
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import parlay.kernels
from parlay import system
from parlay.errors import ConfigError
from parlay.kernels import select
from parlay.kernels.select import select_kernels

from .conftest import ISAS

needs_native = pytest.mark.skipif(not ISAS, reason="no native kernels")


@needs_native
def test_native_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARLAY_KERNELS", raising=False)
    monkeypatch.delenv("PARLAY_ISA", raising=False)
    assert select_kernels().name == f"native-{ISAS[0]}"
    assert select_kernels(force="native").name == f"native-{ISAS[0]}"


@needs_native
@pytest.mark.skipif("x86" not in platform.machine(), reason="of x86-64 alone")
def test_what_the_system_says_of_the_processor() -> None:
    """Linux lists what the processor has and it lets programs use."""
    words = set(system.processor()[1].split())
    needed = {
        "avx2": {"avx2", "fma", "f16c"},
        "avx512": {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
    }
    needed["avx512vnni"] = needed["avx512"] | {"avx512_vnni"}
    needed["avx512bf16"] = needed["avx512vnni"] | {"avx512_bf16"}
    assert set(ISAS) - {"amx", "baseline"} == {name for name, of in needed.items() if of <= words}
    assert "amx" not in ISAS or {"amx_tile", "amx_bf16"} <= words


def test_reference_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert select_kernels(force="reference").name == "reference"
    monkeypatch.setenv("PARLAY_KERNELS", "reference")
    assert select_kernels().name == "reference"


@needs_native
def test_an_instruction_set_on_request(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setenv("PARLAY_ISA", "baseline")
    assert select_kernels(force="native").name == "native-baseline"
    monkeypatch.delenv("PARLAY_ISA")
    assert select_kernels(force="native").name == f"native-{ISAS[0]}"
    monkeypatch.setenv("PARLAY_ISA", "avx1024")
    with pytest.raises(ConfigError, match="avx1024"):
        select_kernels(force="native")


@needs_native
def test_a_processor_without_vectors(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from parlay.kernels import _native

    monkeypatch.setattr(_native, "isas", lambda: ["baseline"])
    with caplog.at_level(logging.WARNING, "parlay"):
        assert select_kernels(force="native")
    assert "none of the instruction sets" in caplog.text
    assert "several times slower" in caplog.text


@pytest.mark.parametrize("installed", ["2.13.0+cpu", "2.14.1", "2.14.0a0+git1234", "nightly"])
def test_a_torch_that_was_tested(
    installed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "__version__", installed)
    with caplog.at_level(logging.WARNING, "parlay"):
        select_kernels(force="reference")
    assert not caplog.text


def test_a_torch_out_of_range(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An older one is refused; a newer one may have other bits, which `parlay verify` and the self-check show."""
    monkeypatch.setattr(torch, "__version__", "2.4.1")
    with pytest.raises(ConfigError, match=r"^torch 2\.4\.1 is too old; install 2\.\d+ to 2\.\d+$"):
        select_kernels(force="reference")
    monkeypatch.setattr(torch, "__version__", "3.0.0+cu999")
    with caplog.at_level(logging.WARNING, "parlay"):
        select_kernels(force="reference")
    assert "torch 3.0.0+cu999 is newer" in caplog.text


def test_the_package_asks_for_the_same_versions_of_torch() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (wanted,) = (one for one in project["dependencies"] if one.startswith("torch"))
    (first, oldest), (second, newest) = select.TORCH
    assert wanted == f"torch>={first}.{oldest},<{second}.{newest + 1}"


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
