"""Asking engines for completions, and comparing what they answer."""

import dataclasses
import os
import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from parlay import LLM, CompletionOutput, RequestOutput, SamplingParams
from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.kernels.reference import ReferenceKernels

CODE = ["def fibonacci(n):", "class Stack:\n    def __init__(self", "import os\nimport sys\n\n\ndef main("]


def random_seed() -> int:
    """Return the seed of random requests: the same in every run of the suite, another in every `make soak`."""
    return int(os.environ.get("PARLAY_TEST_SEED") or 1)


def log_probs(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the log-probabilities of a row by the slow twin, `[vocab]`."""
    out = torch.empty((1, len(scores)))
    ReferenceKernels().log_softmax(torch.from_numpy(scores)[None], out)
    return out[0].numpy()


class Ask(NamedTuple):
    """A prompt and what is asked of it."""

    prompt: tuple[int, ...]
    params: SamplingParams


Meddle = Callable[[Engine, list[Request]], None]


def with_params(ask: Ask, **changes: Any) -> Ask:
    """Return `ask` with other parameters."""
    return Ask(ask.prompt, dataclasses.replace(ask.params, **changes))


def half_repeating(temperature: float) -> list[Ask]:
    """Return sixteen requests, half of which repeat themselves."""
    made = []
    for i in range(16):
        period, length = (3 + i % 5, 20) if i % 2 else (40, 7 + 2 * i)
        prompt = tuple((j % period * 31 + 7 * i) % 256 for j in range(length))
        made.append(Ask(prompt, SamplingParams(temperature=temperature, seed=i, max_tokens=40, logprobs=1)))
    return made


def essence(completion: CompletionOutput) -> tuple[Any, ...]:
    """Return what must not depend on how a completion was computed, log-probabilities bit by bit."""
    logprobs = completion.logprobs and tuple(
        tuple((t, p.logprob.hex(), p.rank, p.decoded_token) for t, p in position.items())
        for position in completion.logprobs
    )
    return completion.token_ids, completion.text, logprobs, completion.finish_reason, completion.stop_reason


def run(llm: LLM, asks: Sequence[Ask], meddle: Meddle | None = None) -> list[CompletionOutput]:
    """Complete all of `asks` at once, calling `meddle` before every step; gives all completions in order."""
    engine = llm.engine
    groups = [engine.add(ask.prompt, ask.params) for ask in asks]
    requests = [request for group in groups for request in group]
    while engine.busy:
        if meddle is not None:
            meddle(engine, requests)
        engine.step()
        engine.check()
    return [engine.completion(request, j) for group in groups for j, request in enumerate(group)]


def preempt_every_third_step() -> Meddle:
    """Return what preempts the last of the running requests in every third step."""
    steps = count()

    def preempt(engine: Engine, requests: list[Request]) -> None:
        running = [r for r in requests if r.table.blocks]
        if next(steps) % 3 == 2 and running:
            engine.preempt(running[-1])

    return preempt


def meddle_at_random(rng: random.Random, preempted: float, aborted: float = 0.0) -> Meddle:
    """Return what preempts a running request in such a share of all steps, and aborts one in another share."""

    def meddle(engine: Engine, requests: list[Request]) -> None:
        running = [r for r in requests if r.table.blocks and r.finish_reason is None]
        if running and rng.random() < preempted:
            engine.preempt(rng.choice(running))
        if running and aborted and rng.random() < aborted:
            engine.abort(rng.choice(running))

    return meddle


def completed_code(llm: LLM, length: int) -> list[Any]:
    """Return the essence of what the embedded model writes after `CODE`, greedily and not."""
    params = [SamplingParams(temperature=t, max_tokens=length, logprobs=2, seed=3) for t in (0.0, 0.9)]
    return [essence(out.outputs[0]) for own in params for out in llm.generate(CODE, own, use_tqdm=False)]


def ask_for(engine: Engine, request: Request, wish: Any) -> None:
    """Give a running request another wish of speculation, which no user can."""
    request.params = dataclasses.replace(request.params, speculative=wish)
    engine._scheduler.drafting.add(request)


def wish_in_turn(*wishes: Any, every: int = 3) -> Meddle:
    """Return what gives each running request the next wish of speculation after so many steps."""
    steps = count()

    def switch(engine: Engine, requests: list[Request]) -> None:
        step = next(steps)
        for i, request in enumerate(requests):
            ask_for(engine, request, wishes[(step + i) // every % len(wishes)])

    return switch


def assert_same(found: Sequence[CompletionOutput], expected: Sequence[CompletionOutput]) -> None:
    """Compare completions one by one, so that a failure shows the first that differs."""
    assert len(found) == len(expected)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert essence(a) == essence(b), f"completion {i} differs"


def accepted(completions: Sequence[CompletionOutput] | Sequence[RequestOutput]) -> int:
    """Return how many drafted tokens were confirmed in all."""
    return sum(c.metrics.accepted for c in completions)


def assert_same_so_far(found: Sequence[CompletionOutput], expected: Sequence[CompletionOutput]) -> None:
    """Compare completions one by one; those that were aborted are beginnings."""
    for a, b in zip(found, expected, strict=True):
        if a.finish_reason == "abort":
            assert a.token_ids == b.token_ids[: len(a.token_ids)]
        else:
            assert_same([a], [b])


def assert_whole(engine: Engine) -> None:
    """Recount the pool; of an idle engine, no block may be held and nothing of a request kept."""
    engine.check()
    if engine.busy:
        return
    pool, scheduler = engine._pool, engine._scheduler
    assert pool.available == pool.num_blocks, "an idle engine holds blocks"
    for host in scheduler.drafting._hosts:
        assert not host._shown, "drafting remembers requests that ended"
        assert not getattr(host._proposer, "_texts", None), "the proposer remembers requests that ended"
