"""The requests of the same-tokens suite."""

import random
from typing import Any

import torch
from asking import Ask, half_repeating, with_params
from checkpoints import VOCAB
from conftest import Plain

from parlay import SamplingParams

LENGTH = 24
CHANGES: list[dict[str, Any]] = [
    {"logprobs": 0},
    {"logprobs": 3},
    {"logprobs": 3, "top_k": 5},
    {"logprobs": 2, "top_p": 0.9},
    {"logprobs": 1, "min_p": 0.05},
    {"logprobs": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.01},
    {"top_k": 1},
    {"logprobs": 300, "max_tokens": 6},
    {"logprobs": 1, "speculative": {"enabled": False}},
    {"logprobs": 1, "speculative": {"num_speculative_tokens": 1}},
    {"logprobs": 1, "speculative": {"num_speculative_tokens": 3}},
    {"logprobs": 1, "max_tokens": 1},
    {"logprobs": 1, "max_tokens": 2},
    {"logprobs": 1, "seed": (1 << 64) - 1},
    {"logprobs": 1, "seed": -7, "ignore_eos": True},
    {"temperature": 2.0, "logprobs": 1},
    {"logprobs": 1, "repetition_penalty": 1.1},
    {"logprobs": 1, "structured_outputs": {"regex": "(abc|xyz){8}"}},
]


def mixed(plain: Plain, dtype: str, temperature: float) -> list[Ask]:
    """Return requests that share a temperature and nothing else; half of the prompts repeat themselves.

    A few have stop tokens and strings that plain decoding runs into midway.
    """
    asks = _asks(temperature)
    for i, answer in enumerate(plain(dtype, asks)):
        if i % 4 == 1 and len(answer.token_ids) > 8:
            asks[i] = with_params(asks[i], stop_token_ids=(answer.token_ids[7], 3))
        if i % 4 == 2 and (piece := _clean_piece(answer.text)):
            asks[i] = with_params(asks[i], stop=("never", piece))
    return asks


def some(plain: Plain, dtype: str, temperature: float) -> list[Ask]:
    """Return a third of these requests, for conditions that take a step for every row or every request."""
    return mixed(plain, dtype, temperature)[1::3]


def _asks(temperature: float) -> list[Ask]:
    rng = random.Random(3)
    asks = []
    for i, change in enumerate(CHANGES):
        length = rng.randint(1, 45)
        period = rng.randint(1, 9) if i % 2 else length
        pattern = [rng.randrange(256) for _ in range(period)]
        prompt = tuple(pattern[j % period] for j in range(length))
        params = {"temperature": temperature, "seed": i, "max_tokens": LENGTH, **change}
        asks.append(Ask(prompt, SamplingParams(**params)))
    return asks


def _clean_piece(text: str) -> str:
    """Return two neighbouring characters from the middle of a text that survived decoding."""
    middle = range(len(text) // 3, len(text) - 1)
    return next((text[i : i + 2] for i in middle if "\ufffd" not in text[i : i + 2]), "")


def four_each(plain: Plain, dtype: str, temperature: float) -> list[Ask]:
    """Return requests for four completions each."""
    return [with_params(ask, n=4) for ask in mixed(plain, dtype, temperature)[:6]]


def wishing(plain: Plain, dtype: str, temperature: float) -> list[Ask]:
    """Return longer requests, of which some name a method that drafts for them, and some change their logits."""
    wishes = [
        None,
        None,
        {"method": "suffix"},
        {"method": "ngram"},
        {"enabled": False},
        {"num_speculative_tokens": 2},
    ]
    return [
        with_params(ask, speculative=wishes[i % len(wishes)], repetition_penalty=1.0 if i % 5 else 1.1)
        for i, ask in enumerate(half_repeating(temperature))
    ]


def predicted(plain: Plain, dtype: str, temperature: float) -> list[Ask]:
    """Return requests whose answers are predicted to the letter, with edits, or not at all."""
    asks = mixed(plain, dtype, temperature)
    answers = plain(dtype, asks)
    return [
        with_params(ask, prediction=_prediction(list(answer.token_ids), i))
        for i, (ask, answer) in enumerate(zip(asks, answers, strict=True))
    ]


def _prediction(said: list[int], number: int) -> list[int]:
    rng = random.Random(number)
    if number % 4 == 1:  # other words, one word left out, one too many
        said[5:6] = [rng.randrange(256)]
        del said[12:14]
        said[20:20] = [rng.randrange(256)]
    if number % 4 == 3:
        return [rng.randrange(256) for _ in range(60)]
    return said


# ------------------------------------------------------------------------- every parameter that changes the logits

PROMPTS = (tuple(range(40, 52)) * 2, tuple(random.Random(5).choices(range(256), k=19)))
LETTERS = tuple(range(64, 90))  # ids of single letters
SHORT = 16


def lean(output: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Prefer a token that the output so far decides."""
    logits[(sum(output) * 7 + len(output)) % VOCAB] += 20
    return logits


PARAMETERS: dict[str, dict[str, Any]] = {
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 1.2},
    "negative": {"presence_penalty": -0.5, "frequency_penalty": -0.2},
    "repetition": {"repetition_penalty": 1.4},
    "bias": {"logit_bias": {3: 4.0, 50: -8.0, 77: 3.0}},
    "allowed": {"allowed_token_ids": LETTERS},
    "bad words": {"allowed_token_ids": LETTERS[:6], "bad_words": ("a", "bc", "cba", "dd")},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": tuple(range(0, VOCAB, 3))},
    "processors": {"logits_processors": (lean,)},
    "many": {
        "repetition_penalty": 0.9,
        "frequency_penalty": 0.4,
        "logit_bias": {70: 2.0},
        "allowed_token_ids": tuple(range(60, 200)),
        "min_tokens": 5,
        "stop_token_ids": (70, 80, 90),
        "top_k": 30,
        "top_p": 0.95,
        "min_p": 0.01,
    },
}


def parametrised(plain: Plain, dtype: str, temperature: float) -> list[Ask]:
    """Return requests with every parameter that changes logits."""
    return with_parameters(temperature)


def with_parameters(temperature: float, names: Any = tuple(PARAMETERS)) -> list[Ask]:
    """Return two requests with each of some sets of parameters."""
    common = {"temperature": temperature, "max_tokens": SHORT, "logprobs": 2, "ignore_eos": True}
    return [
        Ask(prompt, SamplingParams(seed=seed, **common, **PARAMETERS[name]))
        for name in names
        for seed, prompt in enumerate(PROMPTS)
    ]
