"""A request's answer so far: its text, and its metrics."""

from parlay.engine.request import Request
from parlay.text.logprobs import logprob_tables
from parlay.text.tokenizer import TextCodec
from parlay.types.output import CompletionOutput, Logprob, RequestMetrics


def text_of(request: Request) -> str:
    """Return the part of a request's text that is final; it only ever grows."""
    if request.detokenizer is None:
        return ""
    if request.finish_reason is None:
        return request.detokenizer.settled
    if isinstance(request.stop_reason, str):
        return request.detokenizer.text
    # A token that ends the output is no part of the text unless asked for.
    cut = request.finish_reason == "stop" and not request.params.include_stop_str_in_output
    tokens = request.output_tokens
    return request.detokenizer.complete(tokens[:-1] if cut else tokens)


def text_since(request: Request, seen: int) -> str:
    """Return what `text_of` has after its first `seen` characters; before the end in time proportional to that."""
    if request.detokenizer is not None and request.finish_reason is None:
        return request.detokenizer.settled_since(seen)
    return text_of(request)[seen:]


def metrics_of(request: Request) -> RequestMetrics:
    """Return a request's metrics so far."""
    counts, emitted = request.counts, len(request.tokens) - len(request.prompt_tokens)
    totals = counts.draft_stats
    return RequestMetrics(
        drafts=totals.drafts,
        drafted=totals.drafted,
        accepted=totals.accepted,
        accepted_per_position=tuple(totals.accepted_per_position),
        steps=counts.steps,
        emitted=emitted,
        preemptions=counts.preemptions,
        cached_tokens=counts.cached_tokens,
        arrival=counts.arrival,
        admitted=counts.admitted,
        first_token=counts.first_token,
        finished=counts.finished,
        undrafted=tuple(counts.undrafted.items()),
        verification=counts.verification,
        per_step=() if request.finish_reason is None else tuple(counts.per_step),
    )


def completion_of(codec: TextCodec, request: Request, number: int) -> CompletionOutput:
    """Return a request's completion so far, as completion `number` of its prompt."""
    tokens = request.output_tokens
    logprobs = None if request.params.logprobs is None else tuple(logprob_tables(codec, tokens, request.logprobs))
    return CompletionOutput(
        index=number,
        text=text_of(request),
        token_ids=tuple(tokens),
        sources=tuple(request.sources),
        logprobs=logprobs,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        metrics=metrics_of(request),
        rejected=tuple(request.rejected) if request.params.return_rejected else None,
    )


def prompt_logprobs_of(codec: TextCodec, request: Request) -> tuple[dict[int, Logprob] | None, ...] | None:
    """Return the log-probabilities of a prompt, None for its first token; None until all are computed."""
    if request.params.prompt_logprobs is None or request.scoring_prompt:
        return None
    return None, *logprob_tables(codec, request.prompt_tokens[1:], request.prompt_logprobs)
