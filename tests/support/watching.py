"""What the suites of draft heads share: requests, a watch over the drafts made for them, how a twin draws a guess."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from asking import Ask
from torch import Tensor

from parlay import LLM, SamplingParams
from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.kernels.reference_noise import gumbel_noise
from parlay.kernels.reference_sampling import process_row
from parlay.proposers.draft_head import DraftHead, Start
from parlay.types.draft import Draft
from parlay.types.plan import Plan, Span

Known = tuple[int, ...]
Meddle = Callable[[Engine, list[Request]], None]


def asks(temperature: float = 0.7, **changes: Any) -> list[Ask]:
    """Prompts of several lengths; two of them filter what may be drawn."""
    lengths = (1, 2, 16, 17, 33, 40)
    given = {"temperature": temperature, "max_tokens": 13, "logprobs": 0, "ignore_eos": True, **changes}
    filters: dict[int, dict[str, Any]] = {1: {"top_p": 0.9}, 4: {"top_k": 30, "min_p": 0.01}}
    return [
        Ask(
            tuple((7 * i * j + j) % 256 for j in range(length)),
            SamplingParams(**{"seed": i, **filters.get(i, {}), **given}),
        )
        for i, length in enumerate(lengths)
    ]


def head_of(llm: LLM) -> Any:
    proposer = llm.engine._worker._proposer
    assert isinstance(proposer, DraftHead)
    return proposer


def start(
    row: int,
    length: int,
    token: int = 0,
    position: int = 2,
    blocks: Sequence[int] = (),
    params: SamplingParams | None = None,
) -> Start:
    """Return where a request, the `row`-th of several, drafts from; greedily, unless `params` say otherwise."""
    params = params or SamplingParams(temperature=0)
    span = Span(row, (token,), position - 1, tuple(blocks), 0, params.draw)
    return Start(row, span, row, (token,), position, length)


def expand(head: Any, starts: Sequence[Start], states: Tensor) -> Iterator[tuple[Start, Draft]]:
    """Draft from starts whose rows refer to `states` `[n, d]`, as a head does in a step."""
    expander = head._expander
    groups = expander.groups(starts)
    expander.place(groups[0])
    yield from expander.expand(groups, states, groups[0].rows)


@dataclass(frozen=True)
class Noted:
    """A draft, and whose noise it was drawn with."""

    draft: Draft
    params: SamplingParams
    seed: int

    def choose(self, logits: Tensor, position: int, ids: Tensor | None = None) -> int:
        """Return which of a row of logits a head draws for a position.

        Args:
            logits: `[D]`.
            position: of the token to guess.
            ids: `[D]`, the target's; None where they are the same.
        """
        tokens = torch.arange(len(logits)) if ids is None else ids
        params = self.params
        scores = process_row(
            logits.float().numpy(), params.temperature, params.min_p, params.top_k, params.top_p
        ).astype(np.float64)
        if params.temperature:
            scores += gumbel_noise(self.seed, position, int(tokens.max()) + 1)[tokens.numpy()]
        return int(scores.argmax())

    def likely(self, logits: Tensor, place: int) -> float:
        """Return how likely the head then says that it is."""
        return float((logits.double() / (self.params.temperature or 1)).softmax(-1)[place])


class Watch:
    """Notes every draft that is about to be verified, by the known tokens that it follows; meddles too, if asked."""

    def __init__(self, meddle: Meddle | None = None) -> None:
        self.drafts: dict[Known, Noted] = {}
        self.plans: list[Plan] = []
        self._meddle = meddle

    def over(self, llm: LLM) -> "Watch":
        """Note what each step of an engine runs, too."""
        plan = llm.engine._scheduler.plan

        def noted(now: float = 0.0) -> Plan:
            self.plans.append(plan(now))
            return self.plans[-1]

        llm.engine._scheduler.plan = noted  # type: ignore[method-assign]
        return self

    def __call__(self, engine: Engine, requests: list[Request]) -> None:
        if self._meddle is not None:
            self._meddle(engine, requests)
        for request in requests:
            if request.finish_reason is None and len(request.drafting.pending):
                self.drafts[tuple(request.tokens)] = Noted(request.drafting.pending, request.params, request.seed)

    @property
    def rerun(self) -> list[int]:
        """How many tokens each span of each step ran once more."""
        return [len(span.catch_up.rerun) for plan in self.plans for span in plan.spans]
