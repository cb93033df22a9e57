"""What a system may lack: the same tokens without it, on several ranks and behind a server too."""

import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from parlay import LLM, SamplingParams, env, system

ROOT = Path(__file__).parents[1]
LACKING = ROOT / "tests" / "support" / "lacking"
FACILITIES = ("proc", "affinity", "memfd", "huge pages")
# What runs on every system: processes of all kinds, templates, memory.
PORTABLE = (
    *("engine/test_tensor_parallel.py", "engine/test_random_requests.py", "kernels/test_huge.py", "cli"),
    *("kernels/test_threads.py", "runner/test_footprint.py", "server/test_http_endpoints.py", "test_llm.py"),
    *(
        "processes/test_replicas.py",
        "processes/test_ranks_served.py",
        "text/test_template_process.py",
        "test_async_llm.py",
    ),
)


def without(*what: str) -> dict[str, str]:
    """Return the environment of a Python that lacks something."""
    return {**os.environ, "PYTHONPATH": str(LACKING), "PARLAY_TEST_WITHOUT": ",".join(what)}


def test_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    name, features = system.processor()
    assert name
    assert name == name.strip()
    if "x86" in platform.machine():
        assert "sse2" in features.split()
    monkeypatch.setattr(system, "PROC", Path("/nowhere"))
    assert system.processor() == (platform.processor() or platform.machine(), "")


def test_of_arm_the_features_alone_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Linux names parts by number there."""
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\nCPU part\t: 0xd0c\n\nprocessor\t: 1\n")
    monkeypatch.setattr(system, "PROC", tmp_path)
    assert system.processor() == (platform.processor() or platform.machine(), "fp asimd")


def test_macos_names_its_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By a command, which stands in for it here."""
    monkeypatch.setattr(system, "PROC", tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert system.processor()[0] == (platform.processor() or platform.machine()), "without the command"
    (tmp_path / "sysctl").write_text('#!/bin/sh\necho "Apple M4 ($*)"\n')
    (tmp_path / "sysctl").chmod(0o755)
    assert system.processor() == ("Apple M4 (-n machdep.cpu.brand_string)", "")


def test_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = system.allowed_processors()
    assert 1 <= system.core_count() <= (len(allowed) or sys.maxsize)
    system.stay_on(allowed)
    assert system.allowed_processors() == allowed
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    assert system.allowed_processors() == frozenset()
    system.stay_on(frozenset({0}))
    monkeypatch.setattr(sys, "platform", "another")
    assert system.core_count() == os.cpu_count()


# As Linux describes them: which processors share a core, Intel's fast cores, and how fast ARM's processors are.
MACHINES = {
    "nothing is known": ({}, range(8), 8),
    "two threads a core": ({f"core:{i}": f"{i % 4},{i % 4 + 4}" for i in range(8)}, range(8), 4),
    "neighbours share a core": ({f"core:{i}": f"{i // 2 * 2}-{i // 2 * 2 + 1}" for i in range(8)}, range(8), 4),
    "of one core both": ({f"core:{i}": f"{i % 4},{i % 4 + 4}" for i in range(8)}, (0, 4), 1),
    "of each core the second": ({f"core:{i}": f"{i % 4},{i % 4 + 4}" for i in range(8)}, (4, 5, 6, 7), 4),
    "Intel's two kinds": (
        {"fast": "0-3", **{f"core:{i}": f"{i // 2 * 2}-{i // 2 * 2 + 1}" for i in range(4)}},
        range(8),
        2,
    ),
    "slow ones alone are allowed": ({"fast": "0-3"}, (6, 7), 2),
    "ARM's three kinds": ({f"speed:{i}": s for i, s in enumerate(["280"] * 2 + ["780"] * 5 + ["1024"])}, range(8), 6),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_thread_for_each_fast_core(machine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    facts, allowed, cores = MACHINES[machine]
    for fact, text in facts.items():
        kind, _, number = fact.partition(":")
        file = {
            "fast": tmp_path / "cpu_core" / "cpus",
            "speed": tmp_path / "system" / "cpu" / f"cpu{number}" / "cpu_capacity",
        }.get(kind, tmp_path / "system" / "cpu" / f"cpu{number}" / "topology" / "thread_siblings_list")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    monkeypatch.setattr(system, "DEVICES", tmp_path)
    monkeypatch.setattr(system, "allowed_processors", lambda: frozenset(allowed))
    assert system.core_count() == cores


def test_cores_of_a_mac(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(system, "allowed_processors", frozenset)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert system.core_count() == os.cpu_count(), "without the command"
    (tmp_path / "sysctl").write_text('#!/bin/sh\ntest "$2" = hw.perflevel0.physicalcpu && echo 4 || echo 6\n')
    (tmp_path / "sysctl").chmod(0o755)
    assert system.core_count() == 4
    (tmp_path / "sysctl").write_text('#!/bin/sh\ntest "$2" = hw.physicalcpu && echo 6\n')  # an Intel one
    assert system.core_count() == 6


def test_memory_that_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < system.free_memory() <= whole
    monkeypatch.setattr(system, "PROC", tmp_path)
    assert system.free_memory() == whole // 2
    assert system.addresses_in_use() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  5 kB\n")
    assert system.free_memory() == 5 * 1024
    assert env.available_memory() <= 5 * 1024


@pytest.mark.parametrize("named", [True, False])
def test_memory_for_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: bool) -> None:
    """Two mappings see each other's bytes, and nothing is left when all have let it go."""
    if not named:
        monkeypatch.delattr(os, "memfd_create", raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = system.shared_memory(1 << 20)
    with mmap.mmap(file, 1 << 20) as one, mmap.mmap(file, 1 << 20) as other:
        one[-1:] = b"x"
        assert other[-1:] == b"x"
    os.close(file)
    assert not list(tmp_path.iterdir())


def test_nothing_of_it_at_all() -> None:
    """Recordings, a head and two ranks, as on a system that has none of these; the tokens are this one's."""
    code = """
from parlay import LLM, SamplingParams
params = SamplingParams(max_tokens=24, temperature=0.8, seed=5)
llm = LLM("tiny-code", tensor_parallel_size=2, max_model_len=128)
print(llm.generate("def area(", params, use_tqdm=False)[0].outputs[0].token_ids)
llm.engine.close()
"""
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=5)
    [expected] = LLM("tiny-code", max_model_len=128).generate("def area(", params, use_tqdm=False)
    ran = subprocess.run([sys.executable, "-c", code], env=without(*FACILITIES), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == str(expected.outputs[0].token_ids)
    assert len(expected.outputs[0].token_ids) == 24


@pytest.mark.soak
def test_the_source_names_nothing_that_macos_lacks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--platform", "darwin", "--cache-dir", tmp_path]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.soak
@pytest.mark.parametrize("what", [*FACILITIES, ",".join(FACILITIES)])
def test_the_portable_part_of_the_suite(what: str) -> None:
    chosen = [ROOT / "tests" / path for path in PORTABLE]
    marked = ["-m", "not soak and not clients"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", *marked, *chosen]
    ran = subprocess.run(command, cwd=ROOT, env=without(what), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-5_000:]
