"""Coupled verification: walk the tree along the target's own choices.

At each node the target's token is drawn with noise keyed by (seed, position, token id), exactly as plain decoding
would draw it there. If a child carries that token the walk steps into it, else it stops. So the output is what plain
decoding emits, for any tree from any proposer.

Source: Daliri, Musco, Suresh 2024 (arXiv 2408.07978), "Coupling without Communication and Drafter-Invariant
Speculative Decoding", extended from chains to trees.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from parlay.errors import RequestError
from parlay.kernels.base import Kernels
from parlay.sampling.bound_processor import NO_PROCESSORS, BoundProcessor, Processors
from parlay.sampling.sampler import SamplingMetadata, draw_at, process, token_logprobs
from parlay.types.draft import ROOT
from parlay.types.draft_tree import children, depths
from parlay.types.params import DrawParams
from parlay.types.plan import Span, SpanError, TokenLogprobs, Verdict

_NOTHING = DrawParams(temperature=0.0)


def verify(
    kernels: Kernels,
    spans: Sequence[Span],
    logits: Tensor,
    processors: Processors = NO_PROCESSORS,
    *,
    processed_logprobs: bool = False,
    drawn: Sequence[int] | None = None,
) -> list[Verdict]:
    """Decide every span of a step.

    Args:
        kernels: the operations to run with.
        spans: the plan's spans in order.
        logits: `[rows, vocab]` float32: for each span that samples, the root's row and one row per node.
        processors: logits processors by request id.
        processed_logprobs: report log-probabilities after processing instead of before.
        drawn: token of each row, where it is known.

    Returns:
        One verdict per span; empty for spans that do not sample.

    Raises:
        SpanError: one span could not be decided.
    """
    choices = _choices(kernels, spans, logits, processors, drawn)
    verdicts = []
    first_row = 0
    for span in spans:
        if span.sample:
            own = next(choices)
            if own is not None and not span.draft.tokens and span.params.scored is None:  # as the walk would
                verdicts.append(Verdict((own[0],)))
                first_row += 1
                continue
            rows = logits[first_row : first_row + 1 + len(span.draft)]
            try:
                processor = processors.get(span.request_id)
                verdicts.append(_walk(kernels, span, rows, own, processor, processed_logprobs))
            except Exception as error:
                raise SpanError(span.request_id) from error
            first_row += 1 + len(span.draft)
        else:
            verdicts.append(Verdict())
    return verdicts


def _walk(
    kernels: Kernels,
    span: Span,
    logits: Tensor,
    choices: Sequence[int] | None,
    processor: BoundProcessor | None,
    processed_logprobs: bool,
) -> Verdict:
    """Walk one span's tree.

    Args:
        kernels: the operations to run with.
        span: a span that samples.
        logits: `[1 + nodes, vocab]`, the root's row and one row per node.
        choices: the target's choice at each of these rows; None where each depends on the path that leads there.
        processor: the request's processor, on which they then depend.
        processed_logprobs: report log-probabilities after processing instead of before.
    """
    below = children(span.draft)
    top = span.params.scored
    tokens: list[int] = []
    path: list[int] = []
    logprobs: list[TokenLogprobs] = []
    error: RequestError | None = None
    node: int | None = ROOT
    while node is not None:
        raw = row = logits[1 + node]  # the root's row comes first, and ROOT is -1
        if choices is not None:
            token = choices[1 + node]
        else:
            row = raw.clone()
            try:
                token = _choose(kernels, span, processor, tokens, row)
            except RequestError as failure:
                error = failure
                break
        if top is not None:
            scores = _scores(kernels, span, row) if processed_logprobs else raw
            logprobs.append(token_logprobs(kernels, scores, token, top))
        tokens.append(token)
        node = below[node].get(token)
        if node is not None:
            path.append(node)
        if token in span.stop_ids or len(tokens) == span.remaining:
            break
    return Verdict(tuple(tokens), tuple(path), None if top is None else tuple(logprobs), error=error)


def _scores(kernels: Kernels, span: Span, row: Tensor) -> Tensor:
    """Return what a token was drawn from; a greedy choice is made among all that the processor left."""
    return row if span.params.temperature == 0 else process(kernels, row[None], [span.params])[0]


def _choose(kernels: Kernels, span: Span, processor: BoundProcessor | None, path: Sequence[int], row: Tensor) -> int:
    """Return the target's choice after `path`, from a row `[vocab]` that the request's processor changes first.

    Raises:
        RequestError: the user's processor fails.
    """
    assert processor is not None
    processor.process(path, row)
    return draw_at(kernels, row[None], SamplingMetadata.of([span.params], [span.seed], [span.end + len(path)]))[0]


def _choices(
    kernels: Kernels, spans: Sequence[Span], logits: Tensor, processors: Processors, drawn: Sequence[int] | None
) -> Iterator[Sequence[int] | None]:
    """Yield for each span that samples the target's choice at every row, or None if it has a processor.

    All are drawn in one call that threads share. Nodes that the walk does not reach are drawn in vain, but a draw
    costs little beside the node's logits. Processors may be slow, and are the user's: rows that have one are drawn
    when the walk gets there.
    """
    spans = [span for span in spans if span.sample]
    plain = [span for span in spans if span.request_id not in processors]
    if drawn is None:
        if len(plain) < len(spans):
            logits = logits[[span.request_id not in processors for span in spans for _ in range(1 + len(span.draft))]]
        drawn = draw_at(kernels, logits, sampling_metadata(plain))
    first = 0
    for span in spans:
        if span.request_id not in processors:
            yield drawn[first : first + 1 + len(span.draft)]
            first += 1 + len(span.draft)
        else:
            yield None


def sampling_metadata(spans: Sequence[Span], *, whole: bool = False) -> SamplingMetadata:
    """Return the sampling parameters of the target's choices: of the root's row and one row per node of each span.

    Args:
        spans: the step's spans.
        whole: whether all rows of the spans are included; those that choose nothing have greedy parameters.
    """
    params: list[DrawParams] = []
    seeds: list[int] = []
    positions: list[int] = []
    for span in spans:
        before = len(span.tokens) - 1 if whole else 0
        own = before + 1 + len(span.draft)
        params += [_NOTHING] * before + [span.params] * (own - before)
        seeds += [span.seed] * own
        positions += [span.end] * before + [span.end + depth for depth in (0, *depths(span.draft))]
    return SamplingMetadata.of(params, seeds, positions)
