"""What operating systems offer in ways of their own, and what is done where one does not.

    what                    Linux                             elsewhere
    processors allowed      `sched_getaffinity`               all that there are
    staying on some         `sched_setaffinity`               the system chooses
    cores                   `/sys/devices`                    one per processor; on macOS `sysctl`
    the processor's name    `/proc/cpuinfo`                   what Python says; on macOS `sysctl`
    memory that is free     `/proc/meminfo`                   half of what there is
    addresses in use        `/proc/self/statm`                unknown, so no limit on them counts
    huge pages              `madvise`                         usual pages
    memory for processes    `memfd_create`                    a temporary file without a name

Control groups are in cgroups.py, memory nodes in parallel/numa.py; where a system has none, none are found.
"""

import mmap
import os
import platform
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

PROC, DEVICES = Path("/proc"), Path("/sys/devices")
_SLOW = 0.5  # of the fastest core's speed, below which one is an efficiency core


def allowed_processors() -> frozenset[int]:
    """Return the processors that this process may use; none where the system does not say."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def stay_on(processors: frozenset[int]) -> None:
    """Restrict this thread, and those that it will start, to some processors; none given changes nothing."""
    if processors and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, processors)


def core_count() -> int:
    """Return how many cores this process may compute on.

    That is neither the hardware threads of a core, which share its arithmetic units, nor efficiency cores next to
    performance cores: a layer ends with its slowest thread.
    """
    allowed = allowed_processors()
    if not allowed:
        performance = _sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu")
        return int(performance) if performance.isdecimal() else os.cpu_count() or 1
    return _fast_cores(DEVICES, allowed)


@cache  # called several times, and reads files of each processor
def _fast_cores(devices: Path, allowed: frozenset[int]) -> int:
    fast = _read_list(devices / "cpu_core" / "cpus") & allowed or allowed  # Intel's performance cores
    folders = {processor: devices / "system" / "cpu" / f"cpu{processor}" for processor in fast}
    speeds = {processor: _read_capacity(folder / "cpu_capacity") for processor, folder in folders.items()}
    fast = frozenset(one for one in fast if speeds[one] >= _SLOW * max(speeds.values()))
    siblings = (_read_list(folders[one] / "topology" / "thread_siblings_list") & fast | {one} for one in fast)
    return len({min(core) for core in siblings})


def _read_capacity(file: Path) -> float:
    """Return a processor's speed relative to the machine's others; 0 where Linux has not measured it."""
    try:
        return float(file.read_text())
    except (OSError, ValueError):
        return 0.0


def _read_list(file: Path) -> frozenset[int]:
    """Return the processors that a file lists; none where it is missing."""
    try:
        return parse_list(file.read_text())
    except (OSError, ValueError):
        return frozenset()


def parse_list(text: str) -> frozenset[int]:
    """Return the numbers of a list as Linux writes it, such as `0-3,8,10-11`.

    Raises:
        ValueError: it is no such list.
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def processor() -> tuple[str, str]:
    """Return the processor's name, and its features as one string of words."""
    facts: dict[str, str] = {}
    with suppress(OSError), (PROC / "cpuinfo").open() as file:
        for line in file:
            if not line.strip():  # the first processor speaks for all
                break
            key, _, value = line.partition(":")
            facts[key.strip()] = value.strip()
    if "model name" in facts:
        name = f"{facts['model name']} (family {facts.get('cpu family')}, model {facts.get('model')})"
        return name, facts.get("flags", "")
    name = _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()
    return name, facts.get("Features", "")


def _sysctl(name: str) -> str:
    """Return what macOS says of itself, such as `Apple M4` of its processor; nothing elsewhere."""
    if sys.platform != "darwin":
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(["sysctl", "-n", name], text=True, timeout=10).strip()
    return ""


def free_memory() -> int:
    """Return the bytes of memory that can be taken without swapping."""
    with suppress(OSError):
        for line in (PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def addresses_in_use() -> int | None:
    """Return the bytes of addresses that this process has mapped; None where the system does not say."""
    try:
        pages = int((PROC / "self" / "statm").read_text().split()[0])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def advise_huge_pages(memory: mmap.mmap) -> None:
    """Ask for pages of 2 MB, with which the processor spends less time on looking up where they lie."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):  # a system built without huge pages does not know the advice
            memory.madvise(advice)


def shared_memory(size: int) -> int:
    """Return the descriptor of memory that processes share; it ends with the last that has it.

    Args:
        size: bytes; real memory is taken as they are written.
    """
    if hasattr(os, "memfd_create"):
        file: int = os.memfd_create("parlay")
    else:
        file, name = tempfile.mkstemp(prefix="parlay-")
        Path(name).unlink()
    os.ftruncate(file, size)
    return file
