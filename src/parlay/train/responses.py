"""Responses that the target itself writes, to be learnt from.

Every response has a seed, so it is the same in every run.
"""

from pathlib import Path
from typing import Any

import numpy as np

from parlay.errors import ConfigError
from parlay.train.data import LEAST_TOKENS, Text, digest
from parlay.train.options import TrainOptions
from parlay.train.written import AT_ONCE, Tick, WrittenFile
from parlay.types.params import SamplingParams


def write_responses(
    file: Path,
    texts: list[Text],
    options: TrainOptions,
    target: str,
    vocab: int,
    tick: Tick = lambda done: None,
) -> list[Text]:
    """Return the target's answers to the prompts of texts, or its continuations where they have none.

    Args:
        file: file of the responses so far; it is made, or appended to.
        texts: texts whose prompts it takes in a random order, over and over.
        options: how many, how long, at which temperature.
        target: name of its weights.
        vocab: number of tokens; all ids are below.
        tick: called with the number of responses that there are.

    Raises:
        ConfigError: the file has been written with other options or data, or cannot be read or written.
    """
    shaping = "temperature", "response_tokens"
    written = WrittenFile(file, "responses", options, *shaping, weights=target, data=digest(texts))
    sources = _sources(texts, options)
    with written.io_errors():
        found = written.read(_pair)
        if not all(0 <= token < vocab for pair in found for part in pair for token in part):
            raise ConfigError(
                f"{file} has tokens beyond the target's vocabulary of {vocab}; delete it to have the "
                "responses generated again"
            )
        if len(found) < options.generate:
            _write(written, found, sources, options, tick)
    made = [Text.of(*pair, text.document, text.part) for pair, text in zip(found, sources, strict=False)]
    made = [text for text in made if len(text.tokens) >= LEAST_TOKENS and text.loss_mask[2:].any()]
    if not made:
        raise ConfigError(f"the responses of the target are too short to train on; see {file}, and give other data")
    return made


def _pair(entry: Any) -> tuple[list[int], list[int]]:
    """Return the prompt and the response of a line."""
    return list(map(int, entry["prompt"])), list(map(int, entry["response"]))


def _write(
    written: WrittenFile,
    found: list[tuple[list[int], list[int]]],
    sources: list[Text],
    options: TrainOptions,
    tick: Tick,
) -> None:
    answers = written.writer()
    with written.open_append() as add:
        while len(found) < options.generate:
            tick(len(found))
            numbers = range(len(found), min(len(found) + AT_ONCE, options.generate))
            prompts = [_prompt(sources[i], i, options) for i in numbers]
            params = [
                SamplingParams(
                    temperature=options.temperature[i % len(options.temperature)],
                    max_tokens=options.response_tokens,
                    seed=options.seed + i,
                )
                for i in numbers
            ]
            for prompt, answer in zip(prompts, answers(prompts, params), strict=True):
                found.append((prompt, list(answer.token_ids)))
                add({"prompt": prompt, "response": list(answer.token_ids)})
    tick(len(found))


def _sources(texts: list[Text], options: TrainOptions) -> list[Text]:
    """Return for each response the text that gives its prompt: all of them in a random order, over and over."""
    order = np.random.default_rng(options.seed).permutation(len(texts))
    return [texts[order[i % len(texts)]] for i in range(options.generate)]


def _prompt(text: Text, number: int, options: TrainOptions) -> list[int]:
    """Return what comes before a text's first answer; of a text that counts as a whole, a part of some length."""
    first = int(text.loss_mask.argmax()) if text.loss_mask.any() else len(text.tokens)
    if first == 0:
        first = int(np.random.default_rng((options.seed, number)).integers(1, max(2, len(text.tokens) // 2)))
    # There is to be room for half a response at least; the end of a prompt matters most.
    room = max(1, options.max_length - (options.response_tokens + 1) // 2)
    return [int(token) for token in text.tokens[max(0, first - room) : first]]
