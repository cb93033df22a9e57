"""Penalties, masks, bias and a function of one's own change what is said; speculation changes none of it."""

import torch

from parlay import LLM, SamplingParams


def shout(output: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Prefer token 10 at every fourth place; called once for each emitted token."""
    if len(output) % 4 == 3:
        logits[10] += 20
    return logits


def main() -> None:
    prompt = "def add(a, b):\n    return a + b\n\n\ndef "
    wishes = {
        "nothing": {},
        "fewer repetitions": {"repetition_penalty": 1.2, "frequency_penalty": 0.5},
        "no return": {"bad_words": ["return"]},
        "a bias": {"logit_bias": {10: 9.0}},
        "a stop string": {"min_tokens": 2, "stop": ":", "include_stop_str_in_output": True},
        "my own": {"logits_processors": [shout]},
    }
    params = [SamplingParams(temperature=0.7, seed=1, max_tokens=24, **wish) for wish in wishes.values()]
    plain = LLM("tiny-code", max_model_len=256, speculative_config=None)
    speculating = LLM("tiny-code", max_model_len=256, speculative_config={"method": "ngram"})
    expected = plain.generate([prompt] * len(params), params)
    found = speculating.generate([prompt] * len(params), params)
    for name, one, other in zip(wishes, expected, found, strict=True):
        same = one.outputs[0].token_ids == other.outputs[0].token_ids
        print(f"{name}: {one.outputs[0].text!r}, {'the same' if same else 'NOT the same'} with speculation")


if __name__ == "__main__":
    main()
