"""What follows from the self-check, and what is remembered of it."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.breaking import OtherOrder

from parlay.kernels.reference import ReferenceKernels
from parlay.numerics import kernel_choice, selfcheck
from parlay.numerics.kernel_choice import check_invariance, choose_kernels
from parlay.numerics.selfcheck import Case, product_case

CASES = [product_case("linear", 96, 64, torch.bfloat16), Case("act_mul", (40,), torch.float32)]


def sound() -> ReferenceKernels:
    """Kernels that no machine breaks."""
    return ReferenceKernels("float32")


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where findings are remembered; the folder is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    yield tmp_path / "cache" / "parlay" / "selfcheck.json"
    torch.set_num_threads(threads)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """The cases that were really checked."""
    cases: list[Case] = []
    check = selfcheck.check

    def spy(kernels: Any, asked: Any, threads: int) -> Any:
        cases.extend(asked)
        return check(kernels, asked, threads)

    monkeypatch.setattr(selfcheck, "check", spy)
    return cases


def test_a_finding_is_remembered(memory: Path, checked: list[Case]) -> None:
    first = check_invariance(sound(), CASES, 2)
    assert first.exact
    assert checked == CASES
    assert memory.is_file()
    assert check_invariance(sound(), CASES, 2) == first
    assert checked == CASES
    # Another case is checked alone, and the order of cases is no matter.
    more = Case("rms_norm", (40,), torch.float32)
    assert check_invariance(sound(), [*CASES, more], 2).bits != first.bits
    assert checked == [*CASES, more]
    assert check_invariance(sound(), CASES, 2) == first


def test_failures_are_remembered_too(memory: Path, checked: list[Case]) -> None:
    broken = OtherOrder(sound(), lambda rows: rows == 5)
    first = check_invariance(broken, CASES, 1)
    assert first.broken == (CASES[0],)
    assert check_invariance(broken, CASES, 1) == first
    assert checked == CASES


@pytest.mark.parametrize(
    "change", ["threads", "name", "row_thresholds", "onednn", "mkl", "torch", "cpu", "kernels", "row counts"]
)
def test_another_setting_is_checked_anew(
    memory: Path, checked: list[Case], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    kernels, threads = sound(), 1
    check_invariance(kernels, CASES, threads)
    match change:
        case "threads":
            threads = 2
        case "name":
            kernels = ReferenceKernels("rows")
        case "row_thresholds":
            kernels.row_thresholds = (3,)
        case "onednn":
            monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SOMETHING")
        case "mkl":
            monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
        case "torch":
            monkeypatch.setattr(torch, "__version__", "9.9")
        case "cpu":
            monkeypatch.setattr(kernel_choice.system, "processor", lambda: ("Z80", ""))
        case "kernels":
            monkeypatch.setattr(kernel_choice, "digest_code", lambda *folders: "other")
        case "row counts":
            monkeypatch.setattr(selfcheck, "ROW_COUNTS", (1, 2))
    check_invariance(kernels, CASES, threads)
    assert checked == CASES * 2


@pytest.mark.parametrize("part", ["row counts", "bits", "all"])
def test_a_damaged_memory_is_forgotten(memory: Path, checked: list[Case], part: str) -> None:
    good = check_invariance(sound(), CASES, 1)
    whole = json.loads(memory.read_text())
    ((_, cases),) = whole["entries"].values()
    entry = cases[str(CASES[0])]
    if part == "bits":
        entry[1] ^= 1
    else:
        entry[0] = [5]
    memory.write_text("{" if part == "all" else json.dumps(whole))
    assert check_invariance(sound(), CASES, 1) == good
    assert checked == CASES * 2
    assert check_invariance(sound(), CASES, 1) == good
    assert checked == CASES * 2, "it was written anew"


def test_the_memory_does_not_grow_for_ever(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_choice, "_SETTINGS", 3)
    for i in range(5):
        monkeypatch.setattr(kernel_choice, "digest_code", lambda *folders, i=i: str(i))
        check_invariance(sound(), CASES[1:], 1)
    assert len(json.loads(memory.read_text())["entries"]) == 3


def test_good_kernels_are_kept(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    kernels = ReferenceKernels("rows")
    chosen, verdict = choose_kernels(kernels, CASES, 2)
    assert chosen is kernels
    assert verdict.exact
    assert not caplog.records


def test_broken_kernels_give_way_to_careful_ones(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = ReferenceKernels("rows")
    worse = OtherOrder(sound(), lambda rows: rows > 8, "worse", then=good)
    broken = OtherOrder(sound(), lambda rows: rows > 1, "broken", then=worse)
    with caplog.at_level(logging.WARNING, "parlay"):
        chosen, verdict = choose_kernels(broken, CASES, 2)
    assert chosen is good
    assert verdict.exact
    assert "broken" in caplog.text
    assert "linear 96x64 bfloat16" in caplog.text
    assert "using the slower reference-rows" in caplog.text


def test_where_no_kernels_are_exact_the_fast_ones_run_and_it_is_said_loudly(
    memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worse = OtherOrder(sound(), lambda rows: rows > 8, "worse")
    broken = OtherOrder(sound(), lambda rows: rows > 1, "broken", then=worse)
    with caplog.at_level(logging.WARNING, "parlay"):
        chosen, verdict = choose_kernels(broken, CASES, 2)
    assert chosen is broken
    assert not verdict.exact
    assert "THE SAME-TOKENS GUARANTEE DOES NOT HOLD TO THE BIT HERE" in caplog.text
    assert "up to floating point only" in caplog.text


def test_careful_ways_of_the_twins() -> None:
    """Every way is slower than the one before, keeps the contract, and the last trusts nobody."""
    ways, kernels = [], ReferenceKernels()
    while kernels is not None:
        ways.append(kernels.name)
        if kernels.name != "reference":  # which a machine may break
            assert kernel_choice.summarise(selfcheck.check(kernels, CASES, 2)).exact
        kernels = kernels.fallback()
    assert ways == ["reference", "reference-float32", "reference-rows"]
