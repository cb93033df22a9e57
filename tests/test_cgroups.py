"""The memory and processors that control groups leave, as Docker, Kubernetes, systemd and a shell set them up."""

import sys
from pathlib import Path

import pytest

from parlay import env
from parlay.cgroups import available_memory, available_processors

V1 = "31 23 0:32 {inside} /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory"
CPU = "30 23 0:31 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"
V2 = "31 23 0:28 {inside} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
HYBRID = "33 23 0:40 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw"
MIB = 1 << 20


def machine(root: Path, mounts: list[str], own: str, groups: dict[str, str]) -> int:
    """Return what is available where groups have files with `limit used [idle]` in MiB."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("\n".join(["21 1 8:1 / / rw - ext4 /dev/sda1 rw", *mounts]) + "\n")
    (root / "proc/self/cgroup").write_text(own)
    for name, numbers in groups.items():
        folder = root / "sys/fs/cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        limit, used, idle = (text if text == "max" else str(int(text) * MIB) for text in numbers.split())
        first = "memory" in name.split("/")[0]
        (folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(limit + "\n")
        (folder / ("memory.usage_in_bytes" if first else "memory.current")).write_text(used + "\n")
        (folder / "memory.stat").write_text(f"anon 1\n{'total_' if first else ''}inactive_file {idle}\n")
    found = available_memory(root)
    return found if found == sys.maxsize else found // MIB


@pytest.mark.parametrize(
    ("mounts", "own", "groups", "left"),
    [
        pytest.param([CPU, V1.format(inside="/")], "4:memory:/x\n1:cpu:/\n", {"memory/x": "500 100 0"}, 400, id="v1"),
        pytest.param(
            [V1.format(inside="/docker/ab12")],
            "4:memory:/docker/ab12\n",
            {"memory": "2048 48 0"},
            2000,
            id="v1 in Docker: the host's path, of which a part is mounted",
        ),
        pytest.param(
            [V1.format(inside="/")],
            "4:memory:/kubepods/burstable/pod7/c1\n",
            {"memory/kubepods/burstable/pod7": "300 100 0", "memory/kubepods/burstable/pod7/c1": "900 50 0"},
            200,
            id="v1 in Kubernetes: the pod's limit",
        ),
        pytest.param(
            [V2.format(inside="/")], "0::/\n", {".": "512 12 0"}, 500, id="v2 in Docker: the mounted root's"
        ),
        pytest.param(
            [V2.format(inside="/")],
            "0::/system.slice/parlay.service\n",
            {"system.slice/parlay.service": "1000 200 0", "system.slice": "max 900 0"},
            800,
            id="systemd's MemoryMax",
        ),
        pytest.param(
            [V2.format(inside="/")],
            "0::/user.slice/user-1000.slice/run-r1.scope\n",
            {"user.slice/user-1000.slice/run-r1.scope": "max 5 0", "user.slice/user-1000.slice": "700 650 0"},
            50,
            id="a limit of all of a user's processes",
        ),
        pytest.param(
            [V1.format(inside="/"), HYBRID],
            "4:memory:/x\n0::/init.scope\n",
            {"memory/x": "100 40 0", "unified/init.scope": "max 1 0"},
            60,
            id="both versions",
        ),
        pytest.param(
            [V2.format(inside="/")], "0::/a\n", {"a": "1000 900 600"}, 700, id="pages of files that were read"
        ),
        pytest.param([V2.format(inside="/")], "0::/a\n", {"a": "100 300 0"}, 0, id="more than the limit"),
        pytest.param([V2.format(inside="/")], "0::/../../b\n", {".": "100 30 0"}, 70, id="a group outside"),
        pytest.param([V2.format(inside="/")], "0::/\n", {}, sys.maxsize, id="no limit"),
        pytest.param([], "", {}, sys.maxsize, id="no groups"),
    ],
)
def test_the_least_that_any_group_leaves(
    tmp_path: Path, mounts: list[str], own: str, groups: dict[str, str], left: int
) -> None:
    assert machine(tmp_path, mounts, own, groups) == left


@pytest.mark.parametrize(
    ("mounts", "own", "groups", "left"),
    [
        pytest.param([CPU], "1:cpu:/x\n", {"cpu/x": "200000 100000"}, 2, id="v1"),
        pytest.param([CPU], "1:cpu:/x\n", {"cpu/x": "-1 100000"}, sys.maxsize, id="v1 without a quota"),
        pytest.param(
            [CPU.replace("rw,cpu", "rw,cpu,cpuacct"), V1.format(inside="/")],
            "4:memory:/x\n1:cpu,cpuacct:/kubepods/c1\n",
            {"cpu/kubepods": "400000 100000", "cpu/kubepods/c1": "-1 100000"},
            4,
            id="v1 in Kubernetes: the pod's quota",
        ),
        pytest.param([V2.format(inside="/")], "0::/\n", {".": "150000 100000"}, 1, id="v2: one and a half"),
        pytest.param([V2.format(inside="/")], "0::/\n", {".": "20000 100000"}, 1, id="a fifth"),
        pytest.param([V2.format(inside="/")], "0::/a\n", {"a": "max 100000"}, sys.maxsize, id="v2 without a quota"),
        pytest.param(
            [V2.format(inside="/")],
            "0::/a/b\n",
            {"a": "300000 100000", "a/b": "800000 100000"},
            3,
            id="a group that contains it grants less",
        ),
        pytest.param([V2.format(inside="/")], "0::/\n", {}, sys.maxsize, id="no quotas here"),
    ],
)
def test_the_processors_whose_time_is_granted(
    tmp_path: Path, mounts: list[str], own: str, groups: dict[str, str], left: int
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("\n".join(mounts) + "\n")
    (tmp_path / "proc/self/cgroup").write_text(own)
    for name, numbers in groups.items():
        folder = tmp_path / "sys/fs/cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        if name.startswith("cpu/"):
            for what, number in zip(("quota", "period"), numbers.split(), strict=True):
                (folder / f"cpu.cfs_{what}_us").write_text(number + "\n")
        else:
            (folder / "cpu.max").write_text(numbers + "\n")
    assert available_processors(tmp_path) == left


def test_a_quota_bounds_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container sees all processors of its host, and is stopped for most of every period if it uses them all."""
    monkeypatch.delenv("PARLAY_THREADS", raising=False)
    monkeypatch.setattr(env.cgroups, "available_processors", lambda: 1)
    assert env.threads() == 1
    monkeypatch.setenv("PARLAY_THREADS", "3")
    assert env.threads() == 3, "what the user says stands"


def test_a_system_without_them(tmp_path: Path) -> None:
    assert available_memory(tmp_path) == sys.maxsize
    assert available_memory() > 0
    assert available_processors(tmp_path) == sys.maxsize
    assert available_processors() > 0
