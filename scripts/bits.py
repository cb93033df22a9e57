"""Print a checksum of a model's tokens and log-probabilities, to compare commits and instruction sets.

PARLAY_ISA=avx512 python scripts/bits.py smollm2 model.gguf
"""

import argparse
import hashlib
from collections.abc import Sequence

from parlay import LLM, SamplingParams

_TEXT = (
    "def mean(values):\n    return sum(values) / len(values)\n\n\ndef spread(values):\n    middle = mean(values)\n"
)
_LENGTHS = 5, 90, 800  # tokens: a few rows, a chunk, and several blocks of keys
_ANSWER = 12  # tokens


def checksum(model: str, *, dequantize: bool = False) -> str:
    """Return the checksum of three answers at temperature 0.8, with the log-probabilities of prompts and tokens."""
    llm = LLM(model, speculative_config=None, dequantize=dequantize)
    tokens = llm.get_tokenizer().encode(_TEXT * 20)
    params = SamplingParams(
        temperature=0.8, seed=3, max_tokens=_ANSWER, ignore_eos=True, logprobs=3, prompt_logprobs=1
    )
    found = hashlib.sha256()
    for length in _LENGTHS:
        (answer,) = llm.generate([tokens[: min(length, llm.engine.max_model_len - _ANSWER)]], params)
        made = answer.outputs[0]
        for ranked in (*(answer.prompt_logprobs or ()), *(made.logprobs or ())):
            exact = sorted((token, one.logprob.hex()) for token, one in (ranked or {}).items())
            found.update(repr(exact).encode())
        found.update(repr(list(made.token_ids)).encode())
    return found.hexdigest()[:16]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="names, directories or GGUF files")
    parser.add_argument("--dequantize", action="store_true", help="unpack quantised weights to the model's dtype")
    given = parser.parse_args(arguments)
    for model in given.models:
        print(checksum(model, dequantize=given.dequantize), model, flush=True)


if __name__ == "__main__":
    main()
