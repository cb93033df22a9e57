"""The environment: read in one place, forgiving about nonsense where a default is safe."""

import logging
import subprocess
import sys

import pytest

from parlay import ConfigError, env
from parlay.errors import nearest
from parlay.kernels.select import select_kernels
from parlay.proposers.select import proposers


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARLAY_THREADS", raising=False)
    default = env.threads()
    assert default >= 1
    for value, threads in [("3", 3), ("", default)]:
        monkeypatch.setenv("PARLAY_THREADS", value)
        assert env.threads() == threads
    for value in ("0", "-1", "many"):
        monkeypatch.setenv("PARLAY_THREADS", value)
        with pytest.raises(ConfigError, match="PARLAY_THREADS must be a number of at least 1"):
            env.threads()


def test_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAY_KERNELS", "reference")
    assert select_kernels().name == "reference"
    monkeypatch.setenv("PARLAY_KERNELS", "referense")
    with pytest.raises(ConfigError, match="did you mean 'reference'"):
        select_kernels()


def test_available_memory() -> None:
    assert 1 << 20 < env.available_memory() < 1 << 50


def test_waiting_is_passive_before_torch_is_imported() -> None:
    code = "import os; os.environ.pop('OMP_WAIT_POLICY', 0); import parlay; print(os.environ['OMP_WAIT_POLICY'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "PASSIVE\n"
    code = "import os; os.environ['OMP_WAIT_POLICY'] = 'ACTIVE'; import parlay; print(os.environ['OMP_WAIT_POLICY'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "ACTIVE\n", "what the user set stands"


def test_the_log_level() -> None:
    level_of = "import logging; print(logging.getLogger('parlay').level)"
    library, program = f"import parlay.log; {level_of}", f"from parlay.log import configure; configure(); {level_of}"
    for code, value, level in [
        (library, "debug", logging.NOTSET),
        (program, "debug", logging.DEBUG),
        (program, "ERROR", logging.ERROR),
    ]:
        ran = subprocess.run(
            [sys.executable, "-c", f"import os; os.environ['PARLAY_LOG'] = {value!r}; {code}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout == f"{level}\n"


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
