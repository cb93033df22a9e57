"""For a long time: memory that is counted beside memory that is held, and threads that share one engine."""

import ctypes
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from server_process import resident

from parlay import LLM, SamplingParams

_REQUESTS = 20_000
_WARM = 2000  # requests after which caches of code, threads and statistics are there
_CONSTANT = 4.0  # MiB besides: what drafting measured, up to its windows' ends, and pages in part free


@pytest.mark.soak
def test_what_is_remembered_takes_the_memory_that_is_counted() -> None:
    """Without what the heap keeps for later, which `malloc_trim` gives back: some 6 MiB."""
    rng, trim = Random(3), getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
    llm = LLM("tiny-code", max_num_seqs=16, max_model_len=512, num_blocks=520)
    (past,) = (host._proposer._past for host in llm.engine._scheduler.drafting._hosts if host.name == "suffix")

    def ask(count: int) -> float:
        prompts = [[rng.randrange(4096) for _ in range(rng.choice([1, 10, 30, 100]))] for _ in range(count)]
        params = [
            SamplingParams(max_tokens=rng.choice([1, 3, 8, 20]), temperature=rng.choice([0, 1]), seed=i)
            for i in range(count)
        ]
        llm.generate(prompts, params, use_tqdm=False)
        gc.collect()
        trim(0)
        return resident(os.getpid())

    before, counted = ask(_WARM), past.bytes
    for done in range(_WARM, _REQUESTS, 1000):
        grown, remembered = ask(1000) - before, (past.bytes - counted) / (1 << 20)
        print(f"after {done + 1000} requests {grown:.1f} MiB more, of which {remembered:.1f} are counted")
        assert grown <= 1.15 * remembered + _CONSTANT


@pytest.mark.soak
def test_threads_share_an_engine() -> None:
    llm, rng = LLM("tiny-code"), Random(5)
    asks = [
        (
            [rng.randrange(4096) for _ in range(rng.randint(1, 60))],
            SamplingParams(temperature=0.8, seed=i, max_tokens=24),
        )
        for i in range(200)
    ]
    plain = LLM("tiny-code", speculative_config=None).generate([p for p, _ in asks], [own for _, own in asks])
    right = [output.outputs[0].token_ids for output in plain]

    def ask(i: int) -> bool:
        prompt, params = asks[i % len(asks)]
        if i % 7 == 0:
            next(llm.stream(prompt, params))  # and is left
        output = [*llm.stream(prompt, params)][-1] if i % 3 else llm.generate(prompt, params, use_tqdm=False)[0]
        return output.outputs[0].token_ids == right[i % len(asks)]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(2000)))
    llm.engine.check()
