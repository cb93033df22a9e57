"""The model card of a trained head."""

import json
import shlex
from dataclasses import dataclass, fields
from typing import Any

from parlay import __version__
from parlay.train.data import Text
from parlay.train.options import TrainOptions


@dataclass(frozen=True, slots=True)
class Figures:
    """A head's quality on texts that it does not learn from.

    Attributes:
        loss: mean cross entropy against the target's distributions, in nats per node. Tokens outside a reduced
            vocabulary are left out.
        accuracy: how often the likeliest token is the target's, for each node in turn.
    """

    loss: float
    accuracy: tuple[float, ...]


def card(
    method: str,
    options: TrainOptions,
    own: Any,
    texts: tuple[list[Text], list[Text]],
    untrained: Figures,
    figures: Figures,
    steps: int,
) -> str:
    """Return a card with the command that makes this head, its training data, and its quality.

    Args:
        method: the head's method.
        options, own: options of its training.
        texts: texts of training, and held-out ones.
        untrained, figures: the head's figures before training and now.
        steps: steps of the optimiser.
    """
    learnt, held_out = texts
    tokens = sum(len(text.tokens) for text in learnt)
    trained = sum(int(text.loss_mask.sum()) for text in learnt)
    rows = "\n".join(
        f"| {i + 1} | {before:.1%} | {after:.1%} |"
        for i, (before, after) in enumerate(zip(untrained.accuracy, figures.accuracy, strict=True))
    )
    head = shlex.quote(json.dumps({"model": options.output}))
    return f"""---
base_model: {json.dumps(options.target)}
library_name: parlay
tags: [speculative-decoding, {method}]
---
# {method} draft head for {options.target}

It drafts tokens that the target then verifies: generation is faster, and its output is unchanged.

    parlay generate --model {shlex.quote(options.target)} --speculative-config {head}

## Training

    {command(method, options, own)}

With parlay {__version__}, in {steps:,} steps of {options.batch_size}, from {_source(options, len(learnt))}:
{tokens:,} tokens, {trained:,} of them trained on. {len(held_out):,} more texts were held out. The head is distilled
from the target's distributions.

## Evaluation on held-out texts

Share of draft tokens that are the target's likeliest, given the text so far; the loss is {figures.loss:.3f} nats a
token, and was {untrained.loss:.3f} before training. Tokens outside the head's vocabulary are not part of it.

| draft token | untrained | trained |
|---|---|---|
{rows}
"""


def _source(options: TrainOptions, count: int) -> str:
    """Return what the head learnt from, as the card says it."""
    if not options.generate:
        return f"{count:,} texts from `{options.data}`"
    prompts = "its own prompts" if options.data is None else f"prompts from `{options.data}`"
    temperatures = " and ".join(f"{number:g}" for number in options.temperature)
    return f"{count:,} responses that the target wrote to {prompts} at temperature {temperatures}"


def command(method: str, options: TrainOptions, own: Any) -> str:
    """Return the command line that describes a run; flags at their defaults are left out."""
    words = ["parlay", "train", method]
    for given in (options, own):
        for field in fields(given):
            value = getattr(given, field.name)
            flag = "--" + field.name.replace("_", "-")
            if value == field.default:
                continue
            if isinstance(value, bool):
                words.append(flag if value else f"--no-{flag[2:]}")
                continue
            for part in value if isinstance(value, tuple) else (value,):
                words += [flag, shlex.quote(str(part))]
    return " ".join(words)
