"""Which rule decides what is accepted of a draft: coupled unless the user asks for another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from parlay.config.speculative import SpeculativeConfig
from parlay.kernels.base import Kernels
from parlay.sampling.bound_processor import NO_PROCESSORS, Processors
from parlay.sampling.distribution import NO_DISTRIBUTIONS, Distributions
from parlay.types.plan import Span, SpanError, Verdict
from parlay.verification import coupled
from parlay.verification.classical import block, rejection
from parlay.verification.typical import ALPHA, THRESHOLD, typical
from parlay.verification.walk import Walk

Rule = Callable[[Kernels, Span, Walk], Verdict]


@dataclass(frozen=True, slots=True)
class Verifier:
    """Decides every span of a step, by a rule where it applies and else by the coupled walk.

    Attributes:
        rule: rule for sampled requests with a draft; None for the coupled walk alone, which needs no distributions.
        any_draft: whether the rule applies to drafts that were not drawn too.
    """

    rule: Rule | None = None
    any_draft: bool = False

    def __call__(
        self,
        kernels: Kernels,
        spans: Sequence[Span],
        logits: Tensor,
        processors: Processors = NO_PROCESSORS,
        distributions: Distributions = NO_DISTRIBUTIONS,
        *,
        processed_logprobs: bool = False,
        drawn: Sequence[int] | None = None,
    ) -> list[Verdict]:
        """Return one verdict per span.

        Args:
            kernels: the operations to run with.
            spans: the plan's spans in order.
            logits: `[rows, vocab]` float32, see `coupled.verify`.
            processors: logits processors by request id.
            distributions: the distributions that nodes were drawn from, by request.
            processed_logprobs: report log-probabilities after processing instead of before.
            drawn: token of each row, where it is known; only without a rule.

        Raises:
            SpanError: one span could not be decided.
        """
        if self.rule is None:
            return coupled.verify(
                kernels, spans, logits, processors, processed_logprobs=processed_logprobs, drawn=drawn
            )
        verdicts: list[Verdict | None] = []
        rest: list[Span] = []
        others: list[Tensor] = []
        first = 0
        for span in spans:
            own = logits[first : first + 1 + len(span.draft)] if span.sample else logits[:0]
            first += len(own)
            judged = span.draft.tokens if self.any_draft else span.draft.q
            if judged and span.sample and span.params.temperature > 0:
                try:
                    processor, given = processors.get(span.request_id), distributions.get(span.request_id, ())
                    walk = Walk(kernels, span, own, processor, given, processed_logprobs=processed_logprobs)
                    verdicts.append(self.rule(kernels, span, walk))
                except Exception as error:
                    raise SpanError(span.request_id) from error
            else:
                verdicts.append(None)
                rest.append(span)
                others.append(own)
        if not rest:
            return [one for one in verdicts if one is not None]
        kept = logits if len(rest) == len(spans) else torch.cat(others)
        walked = iter(coupled.verify(kernels, rest, kept, processors, processed_logprobs=processed_logprobs))
        return [next(walked) if one is None else one for one in verdicts]


COUPLED_VERIFIER = Verifier()


def make_verifier(config: SpeculativeConfig) -> Verifier:
    """Return the verifier that a config names."""
    threshold = THRESHOLD if config.posterior_threshold is None else config.posterior_threshold
    alpha = ALPHA if config.posterior_alpha is None else config.posterior_alpha
    rules: dict[str, Rule] = {
        "rejection": rejection,
        "block": block,
        "typical": partial(typical, threshold=threshold, alpha=alpha),
    }
    return Verifier(rules.get(config.verification), any_draft=config.verification == "typical")
