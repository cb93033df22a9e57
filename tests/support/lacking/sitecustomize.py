"""Takes from Python what not every system has, in a process and those that it starts; see tests/test_system.py.

Python imports a module of this name when it starts. PARLAY_TEST_WITHOUT names what goes, separated by commas.
"""

import mmap
import os
from pathlib import Path


def take_away(what: str) -> None:
    if what == "proc":
        from parlay import system

        system.PROC = Path("/nowhere")
    elif what == "affinity":
        del os.sched_getaffinity, os.sched_setaffinity
    elif what == "memfd":
        del os.memfd_create
    elif what == "huge pages":
        del mmap.MADV_HUGEPAGE
    else:
        raise ValueError(what)


for one in filter(None, os.environ.get("PARLAY_TEST_WITHOUT", "").split(",")):
    take_away(one)
