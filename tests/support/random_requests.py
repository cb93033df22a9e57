"""Thousands of random requests, beside what each gets alone."""

import random
from typing import Any

from asking import Ask, assert_same_so_far, run

from parlay import LLM, SamplingParams
from parlay.engine.engine import Engine
from parlay.engine.request import Request


def compare_random_requests(
    alone: LLM, llm: LLM, rng: random.Random, count: int = 10_000, *, together: int = 1
) -> None:
    """Ask for answers of any length and temperature, which are preempted and aborted at any time.

    Args:
        alone: the same model without speculation, which answers each request by itself, or a few `together`.
        llm: what is tested.
        rng: chooses.
        count: of requests.
        together: how many requests the first one is asked at once.
    """

    def meddle(engine: Engine, requests: list[Request]) -> None:
        going = [request for request in requests if request.finish_reason is None]
        if going and rng.random() < 0.02:
            engine.abort(rng.choice(going))
        running = list(engine._scheduler._running)
        if running and rng.random() < 0.1:
            engine._scheduler.preempt(rng.choice(running))

    texts = [tuple(rng.randrange(1, 200) for _ in range(rng.randint(1, 20))) for _ in range(12)]
    known: dict[Ask, Any] = {}
    for _ in range(count // 40):
        some = []
        for _ in range(40):
            prompt = (rng.choice(texts) * rng.randint(1, 3))[: rng.randint(1, 60)]
            params = SamplingParams(
                temperature=rng.choice((0.0, 0.7)), seed=rng.randrange(3), max_tokens=rng.choice((3, 16, 30))
            )
            some.append(Ask(prompt, params))
        new = [ask for ask in dict.fromkeys(some) if ask not in known]
        for asked in (new[i : i + together] for i in range(0, len(new), together)):
            known.update(zip(asked, run(alone, asked), strict=True))
        assert_same_so_far(run(llm, some, meddle), [known[ask] for ask in some])
