"""What the rules that verify nodes by probability share: the target's distributions, and emitting tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from parlay.errors import RequestError
from parlay.kernels.base import Kernels
from parlay.sampling.bound_processor import BoundProcessor
from parlay.sampling.distribution import Distribution
from parlay.sampling.sampler import draw, filter_tensors, seed_tensor, temperature_tensor, token_logprobs
from parlay.types.plan import Span, TokenLogprobs, Verdict


class TargetRows:
    """The target's distributions at the root and the nodes of one span's draft."""

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
        """Compute those of all rows at once, unless they depend on the path.

        Args:
            kernels: the operations to run with.
            span: one that samples.
            logits: `[1 + nodes, V]`, the root's row and one row a node.
            processor: the request's processor, if it has one.
            drawn: the distributions that `Draft.q` refers to.
            processed_logprobs: report log-probabilities after processing instead of before.
        """
        self._kernels, self._span, self._logits = kernels, span, logits
        self._processed = processed_logprobs
        self._live, self._drawn = processor, drawn
        self._distributions: Tensor | None = None
        if processor is None:
            self._distributions = self._make(logits)

    @property
    def by_path(self) -> bool:
        """Whether a node's distribution depends on the request's processor, which may only see emitted tokens."""
        return self._live is not None

    def drawn(self, node: int) -> Distribution | None:
        """Return the distribution that a node was drawn from; None if it was not drawn."""
        q = self._span.draft.q
        number = None if q is None else q[node]
        return None if number is None else self._drawn[number]

    def distribution(self, node: int, path: tuple[int, ...] = ()) -> Tensor:
        """Return the log-probabilities `[V]` from which the token after a node is drawn.

        Args:
            node: `ROOT` for the root.
            path: the tokens that lead to it, for the request's processor, which is to be called once a token.

        Raises:
            RequestError: the user's processor fails.
        """
        if self._distributions is not None:
            return self._distributions[1 + node]
        row = self._logits[1 + node].clone()
        assert self._live is not None
        self._live.process(path, row)
        return self._make(row[None])[0]

    def choose(self, distribution: Tensor, key: int) -> int:
        """Draw a token from log-probabilities `[V]`, with the noise of `key` (see `parlay.sampling.distribution`)."""
        noise = torch.ones(1), seed_tensor([self._span.seed]), torch.tensor([key])
        return int(draw(self._kernels, distribution[None], *noise)[0])

    def scores(self, node: int, distribution: Tensor, token: int, top: int) -> TokenLogprobs:
        """Return how likely a token was."""
        return token_logprobs(self._kernels, distribution if self._processed else self._logits[1 + node], token, top)

    def _make(self, logits: Tensor) -> Tensor:
        params, out = [self._span.params] * len(logits), torch.empty_like(logits)
        self._kernels.law(logits.contiguous(), temperature_tensor(params), out, filter_tensors(params))
        return out


class Emission:
    """What a rule emits for one span, token by token.

    Attributes:
        tokens: so far.
    """

    def __init__(self, span: Span, rows: TargetRows) -> None:
        self.tokens: list[int] = []
        self._span, self._rows = span, rows
        self._path: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._error: RequestError | None = None
        self._distribution: tuple[int, Tensor] | None = None

    def distribution(self, node: int) -> Tensor | None:
        """Return the target's distribution after a node on the path; None if the request's processor failed there."""
        try:
            distribution = self._rows.distribution(node, tuple(self.tokens))
        except RequestError as failure:
            self._error = failure
            return None
        self._distribution = node, distribution
        return distribution

    def accept(self, token: int, child: int, node: int) -> bool:
        """Emit a child of a node; return whether the request ends with it."""
        self._path.append(child)
        return self._emit(token, node)

    def draw(self, distribution: Tensor, key: int, node: int) -> None:
        """Emit a token that comes after a node, drawn from log-probabilities `[V]`."""
        self._emit(self._rows.choose(distribution, key), node)

    @property
    def verdict(self) -> Verdict:
        """The verdict of all tokens emitted."""
        top = self._span.params.scored
        logprobs = None if top is None else tuple(self._logprobs)
        return Verdict(tuple(self.tokens), tuple(self._path), logprobs, error=self._error)

    def _emit(self, token: int, node: int) -> bool:
        span, top = self._span, self._span.params.scored
        if top is not None:
            known = (
                self._distribution[1] if self._distribution is not None and self._distribution[0] == node else None
            )
            distribution = self._rows.distribution(node) if known is None else known
            self._logprobs.append(self._rows.scores(node, distribution, token, top))
        self.tokens.append(token)
        return token in span.stop_ids or len(self.tokens) == span.remaining
