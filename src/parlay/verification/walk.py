"""What the rules that verify nodes by probability share: the target's distributions, and emitting tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from parlay.errors import RequestError
from parlay.kernels.base import Kernels
from parlay.sampling.bound_processor import BoundProcessor
from parlay.sampling.distribution import Distribution
from parlay.sampling.sampler import draw, filter_tensors, seed_tensor, temperature_tensor, token_logprobs
from parlay.types.draft import ROOT
from parlay.types.plan import Span, TokenLogprobs, Verdict


class Walk:
    """A walk down one span's draft: the target's distributions at its root and nodes, and what is emitted.

    Attributes:
        tokens: tokens emitted so far.
        node: the last accepted node, or `ROOT`.
        by_path: whether a distribution depends on the request's processor, which may only see emitted tokens.
    """

    def __init__(
        self,
        kernels: Kernels,
        span: Span,
        logits: Tensor,
        processor: BoundProcessor | None,
        drawn: Sequence[Distribution],
        *,
        processed_logprobs: bool,
    ) -> None:
        """Start at the root; compute all distributions at once, unless they depend on the path.

        Args:
            kernels: the operations to run with.
            span: a span that samples.
            logits: `[1 + nodes, V]`, the root's row and one row per node.
            processor: the request's processor, if it has one.
            drawn: the distributions that `Draft.q` refers to.
            processed_logprobs: report log-probabilities after processing instead of before.
        """
        self.tokens: list[int] = []
        self.node, self.by_path = ROOT, processor is not None
        self._kernels, self._span, self._logits = kernels, span, logits
        self._processor, self._drawn, self._processed = processor, drawn, processed_logprobs
        self._path: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._error: RequestError | None = None
        self._distributions = torch.empty_like(logits)
        if processor is None:
            self._process(logits, self._distributions)

    def drawn(self, node: int) -> Distribution | None:
        """Return the distribution that a node was drawn from; None if it was not drawn."""
        q = self._span.draft.q
        number = None if q is None else q[node]
        return None if number is None else self._drawn[number]

    def after(self, node: int) -> Tensor:
        """Return the log-probabilities `[V]` of the token after a node, where they do not depend on the path."""
        return self._distributions[1 + node]  # the root's row comes first, and ROOT is -1

    def next_distribution(self) -> Tensor | None:
        """Return the next token's log-probabilities; None if the processor, called once per token, failed."""
        if self._processor is not None:
            row = self._logits[1 + self.node].clone()
            try:
                self._processor.process(tuple(self.tokens), row)
            except RequestError as failure:
                self._error = failure
                return None
            self._process(row[None], self._distributions[1 + self.node][None])
        return self.after(self.node)

    def accept(self, child: int) -> bool:
        """Emit a child of the node, and go there; return whether the request ends with it."""
        ended = self._emit(self._span.draft.tokens[child])
        self._path.append(child)
        self.node = child
        return ended

    def draw(self, distribution: Tensor, key: int) -> None:
        """Emit a token drawn from log-probabilities `[V]` with the noise of `key`; see `sampling.distribution`."""
        noise = torch.ones(1), seed_tensor([self._span.seed]), torch.tensor([key])
        self._emit(int(draw(self._kernels, distribution[None], *noise)[0]))

    @property
    def verdict(self) -> Verdict:
        """The verdict of all tokens emitted."""
        logprobs = None if self._span.params.scored is None else tuple(self._logprobs)
        return Verdict(tuple(self.tokens), tuple(self._path), logprobs, error=self._error)

    def _process(self, logits: Tensor, out: Tensor) -> None:
        params = [self._span.params] * len(logits)
        self._kernels.log_probs(logits.contiguous(), temperature_tensor(params), out, filter_tensors(params))

    def _emit(self, token: int) -> bool:
        top = self._span.params.scored
        if top is not None:
            scores = self.after(self.node) if self._processed else self._logits[1 + self.node]
            self._logprobs.append(token_logprobs(self._kernels, scores, token, top))
        self.tokens.append(token)
        return token in self._span.stop_ids or len(self.tokens) == self._span.remaining
