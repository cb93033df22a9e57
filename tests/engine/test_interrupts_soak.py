"""Hundreds of interrupts at random moments: the next answer is right, or the engine says that it ends."""

import ctypes
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest
from asking import assert_whole, essence, random_seed
from server_process import resident

from parlay import LLM, RankError, SamplingParams

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("forked_ranks")]

INTERRUPTS = 500
SECONDS = float(os.environ.get("PARLAY_SOAK_SECONDS") or 600) / 4  # for each arrangement: starting ranks takes time
LONGEST = 0.2  # seconds after which a call is interrupted
GROWTH = 96  # MiB that answers remembered for drafts, and a fragmented heap, may take
DRAFT = {"method": "draft_model", "model": "tiny-code-draft"}
ARRANGEMENTS: dict[str, dict[str, Any]] = {
    "auto": {},
    "ngram": {"speculative_config": {"method": "ngram", "lengths": "fixed"}},
    "draft": {"speculative_config": DRAFT},
    "tensor": {"tensor_parallel_size": 2},
    "pipeline": {"pipeline_parallel_size": 2},
    "shared": {
        "tensor_parallel_size": 2,
        "speculative_config": {**DRAFT, "draft_tensor_parallel_size": 2, "lengths": "fixed"},
    },
}
LONG = SamplingParams(temperature=0.9, max_tokens=1900, ignore_eos=True)
SHORT = SamplingParams(temperature=0.8, seed=7, max_tokens=16, logprobs=1, ignore_eos=True)
FORMED = SamplingParams(temperature=0.8, seed=8, max_tokens=12, structured_outputs={"regex": "[a-z ]{40}"})


class Stop(BaseException):
    """What another thread sets."""


def by_signal() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def by_thread() -> None:
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(Stop))


def interrupt(work: Callable[[], Any], how: Callable[[], None], seconds: float) -> None:
    """Do work that takes longer than so many seconds, after which it is interrupted."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    timer = threading.Timer(seconds, how)
    with suppress(KeyboardInterrupt, Stop):
        timer.start()
        work()
        pytest.fail("the call was not interrupted")
    timer.join()
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("how", [by_signal, by_thread])
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_any_moment(name: str, how: Callable[[], None]) -> None:
    rng, ends, until = Random(random_seed()), Counter[str](), time.monotonic() + SECONDS

    def start() -> LLM:
        return LLM("tiny-code", max_model_len=2048, max_num_seqs=8, num_blocks=700, **ARRANGEMENTS[name])

    def answers(llm: LLM) -> list[Any]:
        outputs = llm.generate(["def f(x):\n    return", [5, 6, 7]], [SHORT, FORMED], use_tqdm=False)
        return [essence(output.outputs[0]) for output in outputs]

    llm = start()
    expected, memory = answers(llm), list[float]()
    while sum(ends.values()) < INTERRUPTS and time.monotonic() < until:
        prompts = [[rng.randrange(256) for _ in range(rng.randrange(1, 60))] for _ in range(rng.randrange(1, 6))]
        try:
            interrupt(partial(llm.generate, prompts, LONG, use_tqdm=False), how, LONGEST * rng.random())
            found = answers(llm)
        except RankError as error:
            ends["ended by RankError" if "start the engine again" in str(error) else str(error)] += 1
            llm.engine.close()
            llm = start()
            found = answers(llm)
        else:
            ends["right" if found == expected else "wrong"] += 1
        assert found == expected, ends
        assert not llm.engine.busy
        assert llm.engine.snapshot().blocks_used == 0
        assert_whole(llm.engine)
        memory.append(resident(os.getpid()))
    growth = memory[-1] - memory[len(memory) // 5]
    print(f"\n{name}, {how.__name__}: {dict(ends)}, memory {memory[0]:.0f} to {memory[-1]:.0f} MiB")
    assert growth < GROWTH
    assert ends.keys() <= {"right", "ended by RankError"}
    if how is by_signal:
        assert ends.keys() == {"right"}, "a step is finished before Ctrl-C is raised"
    llm.engine.close()
