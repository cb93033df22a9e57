"""The environment: read in one place, forgiving about nonsense where a default is safe."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from parlay import LLM, ConfigError, env, system
from parlay.errors import CapacityError, nearest
from parlay.kernels.select import select_kernels
from parlay.proposers.select import proposers


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARLAY_THREADS", raising=False)
    default = env.threads()
    assert default >= 1
    for value, threads in [("3", 3), ("", default)]:
        monkeypatch.setenv("PARLAY_THREADS", value)
        assert env.threads() == threads
    for value in ("0", "-1", "many", "99999", "1025", "²", "9" * 5000):
        monkeypatch.setenv("PARLAY_THREADS", value)
        with pytest.raises(ConfigError, match="PARLAY_THREADS must be a number from 1 to 1024"):
            env.threads()


def test_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAY_KERNELS", "reference")
    assert select_kernels().name == "reference"
    monkeypatch.setenv("PARLAY_KERNELS", "referense")
    with pytest.raises(ConfigError, match="did you mean 'reference'"):
        select_kernels()


def test_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 << 20 < env.available_memory() < 1 << 50
    monkeypatch.setenv("PARLAY_MEMORY", "1000")
    assert env.available_memory() == 1000
    monkeypatch.setenv("PARLAY_MEMORY", str(10**17))
    assert env.available_memory() < 1 << 50, "no more than there is"
    for value in ("0", "-1", "8G", "²", "9" * 5000):
        monkeypatch.setenv("PARLAY_MEMORY", value)
        with pytest.raises(ConfigError, match="PARLAY_MEMORY must be a number of bytes above 0"):
            env.available_memory()


def test_waiting_is_passive_before_torch_is_imported() -> None:
    code = "import os; os.environ.pop('OMP_WAIT_POLICY', 0); import parlay; print(os.environ['OMP_WAIT_POLICY'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "PASSIVE\n"
    code = "import os; os.environ['OMP_WAIT_POLICY'] = 'ACTIVE'; import parlay; print(os.environ['OMP_WAIT_POLICY'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "ACTIVE\n", "what the user set stands"


def test_the_log_level(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, level in (("debug", "DEBUG"), ("ERROR", "ERROR"), ("", "WARNING")):
        monkeypatch.setenv("PARLAY_LOG", value)
        assert env.log_level() == level
    code = "import logging, parlay.log; print(logging.getLogger('parlay').level)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{logging.NOTSET}\n", "only a program sets it"


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert env.cache_dir() == tmp_path / "parlay"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert env.cache_dir() == tmp_path / "home" / ".cache" / "parlay"
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    assert env.cache_dir() is None


def test_what_alters_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in env.ARITHMETIC:
        monkeypatch.delenv(name, raising=False)
    assert env.arithmetic() == {}
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("MKL_CBWR", "")
    assert env.arithmetic() == {"ONEDNN_MAX_CPU_ISA": "AVX2"}


def test_an_unknown_log_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAY_LOG", "LOUD")
    with pytest.raises(ConfigError, match="PARLAY_LOG must be DEBUG"):
        env.log_level()


def test_the_folder_is_the_list() -> None:
    assert {"draft_model", "ngram", "none"} <= set(proposers.names())
    assert not {"base", "select", "__init__"} & set(proposers.names())
    for name in proposers.names():
        module = proposers.load(name)
        assert module.__doc__
        assert module.Options
        assert (module.Proposer.default_length > 0) == (name != "none")


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("ngrm", ["ngram", "none"], " (did you mean 'ngram'?)"),
        ("xyz", ["ngram", "none"], " (known: ngram, none)"),
        ("xyz", [], ""),
    ],
)
def test_nearest(name: str, known: list[str], expected: str) -> None:
    assert nearest(name, known) == expected


@pytest.mark.parametrize("left", [0, 100 << 20, 1 << 30])
def test_a_limit_on_addresses_counts(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    """As that of `ulimit -v`."""
    taken = system.addresses_in_use()
    assert taken is not None
    monkeypatch.setattr(env.resource, "getrlimit", lambda which: (taken + left, taken + left))
    assert env.available_memory() <= left + (1 << 20)
    assert env.available_memory() >= min(left, 1 << 26) - (1 << 25)


def test_memory_that_runs_out_while_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise MemoryError

    monkeypatch.setattr("parlay.llm.Engine", full)
    with pytest.raises(CapacityError, match="memory ran out while the model was loaded"):
        LLM("tiny-code")
