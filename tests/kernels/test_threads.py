"""The native kernels' own threads: forks, concurrent callers, changes of their number."""

import re
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from parlay.kernels.base import Kernels

from .conftest import ISAS
from .helpers import multiply, random, same_bits


def test_callers_in_several_threads(native: Kernels) -> None:
    """While one caller has the workers, others work alone; all get the same bits."""
    native.set_threads(2)
    x, weight = random(64, 256), random(512, 256, seed=1)
    expected = multiply(native, x, weight)
    with ThreadPoolExecutor(4) as executor:
        for result in executor.map(lambda _: multiply(native, x, weight), range(40)):
            assert same_bits(result, expected)


def test_any_number_of_threads(native: Kernels) -> None:
    x, weight = random(64, 256), random(512, 256, seed=1)
    expected = multiply(native, x, weight)
    for threads in (2, 5, 1, 3, 0, 7):
        native.set_threads(threads)
        for _ in range(5):
            assert same_bits(multiply(native, x, weight), expected)


@pytest.mark.skipif(not ISAS, reason="no native kernels")
def test_a_forked_child_makes_its_own_threads() -> None:
    """The child of a fork has none of its parent's threads and must not wait for them, nor join them."""
    program = """
        import os, signal, sys, warnings
        import torch
        from parlay.kernels.cpu import NativeKernels

        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        kernels = NativeKernels()
        kernels.set_threads(3)
        weight = kernels.pack_linear(torch.ones(4096, 256))
        out = torch.empty(64, 4096)
        kernels.linear(torch.ones(64, 256), weight, out)
        child = os.fork()
        out.zero_()
        if child == 0:
            signal.alarm(30)
            kernels.set_threads(2)
        for _ in range(10):
            kernels.linear(torch.ones(64, 256), weight, out)
        good = bool((out == 256).all())
        if child == 0:
            os._exit(0 if good else 1)
        _, status = os.waitpid(child, 0)
        sys.exit(0 if good and status == 0 else 1)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)


@pytest.mark.skipif(not ISAS, reason="no native kernels")
def test_threads_that_cannot_be_started_are_done_without() -> None:
    """Their stacks do not fit into what the process may map."""
    program = """
        import resource
        import torch
        from parlay.kernels.cpu import NativeKernels

        torch.set_num_threads(1)
        kernels = NativeKernels()
        weight, out = kernels.pack_linear(torch.ones(4096, 256)), torch.empty(64, 4096)
        pages = int(open("/proc/self/statm").read().split()[0])
        most = pages * resource.getpagesize() + (128 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        kernels.set_threads(200)
        kernels.linear(torch.ones(64, 256), weight, out)
        assert (out == 256).all()
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60, capture_output=True, text=True
    )
    assert re.search(r"parlay: only \d+ of 200 threads could be started \(.*\); raise the limits", ran.stderr)


def test_idle_workers_wake_up(native: Kernels) -> None:
    native.set_threads(2)
    x, weight = random(200, 512), random(2048, 512, seed=1)
    expected = multiply(native, x, weight)
    for _ in range(3):
        time.sleep(0.05)  # long past their spinning
        assert same_bits(multiply(native, x, weight), expected)


def test_denormals_that_the_caller_flushes(native: Kernels) -> None:
    """A library built for fast math may have told one thread to flush them, and not the workers."""
    x, weight = random(16, 512, spread=1e-20), random(512, 512, seed=1, spread=1e-20)
    expected = multiply(native, x, weight)
    assert (expected != 0).all()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        for threads in (1, 2):
            native.set_threads(threads)
            for _ in range(5):
                assert same_bits(multiply(native, x, weight), expected)
    finally:
        torch.set_flush_denormal(False)
