"""What operating systems offer in ways of their own, and what is done where one does not.

    what                    Linux                             elsewhere
    processors allowed      `sched_getaffinity`               all that there are
    staying on some         `sched_setaffinity`               the system chooses
    the processor's name    `/proc/cpuinfo`                   what Python says; on macOS `sysctl`
    memory that is free     `/proc/meminfo`                   half of what there is
    addresses in use        `/proc/self/statm`                unknown, so no limit on them counts
    huge pages              `madvise`                         usual pages
    memory for processes    `memfd_create`                    a temporary file without a name

Control groups are in control_groups.py, memory nodes in parallel/numa.py; where a system has none, none are found.
"""

import mmap
import os
import platform
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def allowed_processors() -> frozenset[int]:
    """Return the processors that this process may use; none where the system does not say."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def stay_on(processors: frozenset[int]) -> None:
    """Have this thread, and those that it will start, run on some processors; without any, wherever they like."""
    if processors and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, processors)


def processor_count() -> int:
    """Return how many processors this process may use."""
    return len(allowed_processors()) or os.cpu_count() or 1


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
    return _brand() or platform.processor() or platform.machine(), facts.get("Features", "")


def _brand() -> str:
    """Return what macOS calls the processor, such as `Apple M4`; nothing elsewhere."""
    if sys.platform != "darwin":
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(["sysctl", "-n", "machdep.cpu.brand_string"], text=True, timeout=10).strip()
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
