"""One request's acceptance, in vLLM's format."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from parlay.types.output import RequestMetrics, RequestOutput


def speculative_decoding(metrics: RequestMetrics, *, detailed: bool = False) -> dict[str, Any]:
    """Return a completion's acceptance, as aiperf and others read it from `metrics.speculative_decoding`.

    The path that a step accepts begins at the root, so depth d is accepted in exactly those steps that accept d nodes
    or more; that holds for trees too.

    Args:
        metrics: of a completion that has finished.
        detailed: add how many nodes each step verified and accepted.
    """
    at_least = (metrics.drafts, *metrics.accepted_per_position, 0)
    steps = {
        "per_step_accepted": [accepted for _, accepted in metrics.per_step],
        "per_step_drafted": [drafted for drafted, _ in metrics.per_step],
    }
    return {
        "mean_acceptance_length": metrics.tokens_per_draft,
        "draft_acceptance_rate": metrics.accepted / metrics.drafted if metrics.drafted else 0.0,
        "acceptance_histogram": [steps - further for steps, further in pairwise(at_least)],
        "num_spec_steps": metrics.drafts,
        "num_accepted_draft_tokens": metrics.accepted,
        "num_draft_tokens": metrics.drafted,
        "verification": metrics.verification,
        "lossless": metrics.lossless,
        "num_spec_tokens": None,  # there is no fixed one: lengths are chosen step by step
        **(steps if detailed else {}),
    }


def request_metrics(outputs: Sequence[RequestOutput], *, speculates: bool, detailed: bool = False) -> dict[str, Any]:
    """Return a response's `metrics`.

    Args:
        outputs: of all its prompts.
        speculates: whether the engine does, unless asked not to.
        detailed: say it of each step too.
    """
    found = None
    if len(outputs) == 1 and len(outputs[0].outputs) == 1:  # of several, one figure would mean nothing
        metrics = outputs[0].metrics
        if speculates or metrics.drafts:  # a prediction is guessed from whatever the engine loaded
            found = speculative_decoding(metrics, detailed=detailed)
    return {"speculative_decoding": found}
