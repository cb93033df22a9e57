"""A request's usage in OpenAI's format, and its acceptance in vLLM's."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from parlay.types.output import RequestMetrics, RequestOutput


def speculative_decoding(metrics: RequestMetrics, *, detailed: bool = False) -> dict[str, Any]:
    """Return a completion's acceptance, as aiperf and others read it from `metrics.speculative_decoding`.

    The path that a step accepts begins at the root, so depth d is accepted in exactly those steps that accept d nodes
    or more; that holds for trees too.

    Args:
        metrics: metrics of a completion that has finished.
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
        outputs: outputs of all of its prompts.
        speculates: whether the engine does, unless asked not to.
        detailed: whether to add the figures of each step.
    """
    found = None
    if len(outputs) == 1 and len(outputs[0].outputs) == 1:  # of several, one figure would mean nothing
        metrics = outputs[0].metrics
        if speculates or metrics.drafts:  # a prediction is drafted from whatever the engine loaded
            found = speculative_decoding(metrics, detailed=detailed)
    return {"speculative_decoding": found}


def usage(outputs: list[RequestOutput], *, without_output: bool = False, reasoning_tokens: int = 0) -> dict[str, Any]:
    """Return a request's usage, in OpenAI's format.

    Args:
        outputs: the newest of each prompt.
        without_output: nothing was asked for beyond the prompt.
        reasoning_tokens: reasoning tokens in the output.
    """
    ones = [one for output in outputs for one in output.outputs]
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = 0 if without_output else sum(one.metrics.emitted for one in ones)
    accepted = sum(one.metrics.accepted for one in ones)
    undrafted: Counter[str] = Counter()
    for one in ones:
        undrafted.update(dict(one.metrics.undrafted))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(output.metrics.cached_tokens for output in outputs)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(one.metrics.drafted for one in ones) - accepted,
            "reasoning_tokens": reasoning_tokens,
            "audio_tokens": 0,
        },
        "speculation": {
            "steps": sum(one.metrics.steps for one in ones),
            "drafts": sum(one.metrics.drafts for one in ones),
            "draft_tokens": sum(one.metrics.drafted for one in ones),
            "without_draft": dict(undrafted.most_common()),
        },
    }
