"""Responses that the target itself writes, to be learnt from.

Every response has a seed, so it is the same in every run.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.errors import ConfigError
from parlay.llm import LLM
from parlay.train.data import LEAST_TOKENS, Text, digest
from parlay.train.options import TrainOptions
from parlay.train.written import read_kept, usable
from parlay.types.params import SamplingParams

_AT_ONCE = 64
_SHAPING = ("dtype", "temperature", "response_tokens", "max_length", "max_model_len", "seed")


def write_responses(
    file: Path,
    texts: list[Text],
    options: TrainOptions,
    target: str,
    vocab: int,
    tick: Callable[[int], None] = lambda done: None,
) -> list[Text]:
    """Return the target's answers to the prompts of texts, or its continuations where they have none.

    Args:
        file: of the responses so far; it is made, or appended to.
        texts: whose prompts it takes in a random order, over and over.
        options: how many, how long, at which temperature.
        target: names its weights.
        vocab: ids are below.
        tick: called with the number of responses that there are.

    Raises:
        ConfigError: the file has been written with other options or data, or cannot be read or written.
    """
    shaping = {name: value for name, value in asdict(options).items() if name in _SHAPING}
    header = json.dumps({**shaping, "weights": target, "data": digest(texts)}, sort_keys=True)
    with usable(file, "responses"):
        found = read_kept(file, header, "responses", _pair)
        if not all(0 <= token < vocab for pair in found for part in pair for token in part):
            raise ConfigError(
                f"{file} has tokens beyond the target's vocabulary of {vocab}; delete it, and the target writes its "
                "responses again"
            )
        if len(found) < options.generate:
            _write(file, header, found, texts, options, tick)
    order = _order(texts, options)
    asked = [texts[order[i % len(texts)]] for i in range(options.generate)]
    made = [Text.of(*pair, text.document, text.part) for pair, text in zip(found, asked, strict=False)]
    made = [text for text in made if len(text.tokens) >= LEAST_TOKENS and text.counted[2:].any()]
    if not made:
        raise ConfigError(
            f"the target ends its answers at once, which teaches nothing; see {file}, and give other data"
        )
    return made


def _pair(entry: Any) -> tuple[list[int], list[int]]:
    """Return the prompt and the response of a line."""
    return list(map(int, entry["prompt"])), list(map(int, entry["response"]))


def _write(
    file: Path,
    header: str,
    found: list[tuple[list[int], list[int]]],
    texts: list[Text],
    options: TrainOptions,
    tick: Callable[[int], None],
) -> None:
    order = _order(texts, options)
    llm = LLM(
        options.target,
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        speculative_config=None,
        use_tqdm_on_load=False,
    )
    with file.open("a", encoding="utf-8") as out:
        if not out.tell():
            out.write(header + "\n")
        while len(found) < options.generate:
            tick(len(found))
            numbers = range(len(found), min(len(found) + _AT_ONCE, options.generate))
            prompts = [_prompt(texts[order[i % len(texts)]], i, options) for i in numbers]
            params = [
                SamplingParams(
                    temperature=options.temperature[i % len(options.temperature)],
                    max_tokens=options.response_tokens,
                    seed=options.seed + i,
                )
                for i in numbers
            ]
            answers = llm.generate(prompts, params, use_tqdm=False)
            for prompt, answer in zip(prompts, answers, strict=True):
                if answer.error is not None:
                    raise answer.error
                pair = prompt, list(answer.outputs[0].token_ids)
                found.append(pair)
                out.write(json.dumps({"prompt": pair[0], "response": pair[1]}) + "\n")
            out.flush()
    tick(len(found))


def _order(texts: list[Text], options: TrainOptions) -> NDArray[np.int64]:
    """Return the order in which texts give prompts: the i-th response's is of the i-th of these, over and over."""
    return np.random.default_rng(options.seed).permutation(len(texts))


def _prompt(text: Text, number: int, options: TrainOptions) -> list[int]:
    """Return what comes before a text's first answer; of a text that counts as a whole, a part of some length."""
    first = int(text.counted.argmax()) if text.counted.any() else len(text.tokens)
    if first == 0:
        first = int(np.random.default_rng((options.seed, number)).integers(1, max(2, len(text.tokens) // 2)))
    # There is to be room for half a response at least; the end of a prompt matters most.
    room = max(1, options.max_length - (options.response_tokens + 1) // 2)
    return [int(token) for token in text.tokens[max(0, first - room) : first]]
