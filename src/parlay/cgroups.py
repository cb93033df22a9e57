"""What the control groups of this process leave it: version 1 and 2, and every group that they are in.

Sources: the kernel's `cgroup-v1/memory.rst`, `scheduler/sched-bwc.rst`, `cgroup-v2.rst` and `filesystems/proc.rst`
(mountinfo).
"""

import sys
from collections.abc import Iterator
from pathlib import Path

# By version: the files with the limit and with what is used, and the line of `memory.stat` with what of that are
# pages of files that are not in use, which are given up first.
_FILES = {
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    "cgroup2": ("memory.max", "memory.current", "inactive_file"),
}


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that may still be taken under every limit; `sys.maxsize` without any.

    Args:
        root: folder below which `proc/self` and the mounted groups are.
    """
    left = [_left(group, *_FILES[version]) for version, group in _groups("memory", root)]
    return min(left, default=sys.maxsize)


def available_processors(root: Path = Path("/")) -> int:
    """Return the whole processors whose time every quota grants, at least 1; `sys.maxsize` without any quota.

    Of one and a half it is one: a thread that is stopped for part of every period has all others wait for it.

    Args:
        root: folder below which `proc/self` and the mounted groups are.
    """
    quotas = [_quota(group, version) for version, group in _groups("cpu", root)]
    return max(1, min(quotas, default=sys.maxsize))


def _groups(controller: str, root: Path) -> Iterator[tuple[str, Path]]:
    """Yield version and folder of each group that this process is in, and of those that contain it."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
        own = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in own)}
    for line in mounts:
        fields, _, kind = line.partition(" - ")
        version, *_, options = kind.split()
        if version not in _FILES or (version == "cgroup" and controller not in options.split(",")):
            continue
        wanted = "" if version == "cgroup2" else controller
        path = next((path for names, path in paths.items() if wanted in names.split(",")), "/")
        inside, mounted = (part.encode().decode("unicode_escape") for part in fields.split()[3:5])
        top = root / mounted.lstrip("/")
        # In a container the path may be the host's, of which only a part is mounted here.
        relative = path.removeprefix(inside) if inside != "/" else path
        group = top / relative.strip("/")
        group = group if group.is_dir() and ".." not in group.parts else top
        yield from ((version, one) for one in (group, *group.parents) if one.is_relative_to(top))


def _left(group: Path, limit: str, used: str, idle: str) -> int:
    try:
        most = int((group / limit).read_text())
        taken = int((group / used).read_text())
    except (OSError, ValueError):  # none is set: "max", or the root's group
        return sys.maxsize
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        taken -= int(stat.get(idle, 0))
    except (OSError, ValueError):
        pass
    return max(0, most - taken)


def _quota(group: Path, version: str) -> int:
    try:
        if version == "cgroup2":
            granted, period = map(int, (group / "cpu.max").read_text().split())
        else:
            granted, period = (int((group / f"cpu.cfs_{what}_us").read_text()) for what in ("quota", "period"))
    except (OSError, ValueError):  # none is set: "max", or the root's group
        return sys.maxsize
    return granted // period if granted > 0 and period > 0 else sys.maxsize
