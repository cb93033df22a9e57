"""Prompts that the target writes itself: a model that was trained on conversations also writes the user's turn.

Such prompts are typical for the model and need not be collected. Each has a seed, so it is the same in every run.

Source: Magpie (arXiv 2406.08464).
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from parlay.errors import ConfigError
from parlay.llm import LLM
from parlay.text.chat import ChatOptions
from parlay.text.tokenizer import TextCodec
from parlay.train.data import LEAST_TOKENS, Text
from parlay.train.options import TrainOptions
from parlay.train.written import read_kept, usable
from parlay.types.params import SamplingParams

_AT_ONCE = 64
_TEMPERATURE = 1.0  # variety counts for more than sense
_TOKENS = 128  # most tokens of a prompt; one that has no end by then is dropped
_APART = 1 << 32  # between the seeds of prompts and of responses
_PATIENCE = 512  # most tries in a row without a prompt
_SHAPING = ("dtype", "max_length", "max_model_len", "seed")
_MARK = "what-the-user-says"


def write_prompts(
    file: Path, options: TrainOptions, target: str, codec: TextCodec, tick: Callable[[int], None] = lambda done: None
) -> list[Text]:
    """Return `options.generate` conversations that end with the user's turn, which the target has written.

    Args:
        file: of the prompts so far; it is made, or appended to.
        options: how many, and of which target.
        target: names its weights.
        codec: its tokenizer and chat template.
        tick: called with the number of prompts that there are.

    Raises:
        ConfigError: the target has no chat template or writes no prompts; the file has been written with other
            options, or cannot be read or written.
    """
    shaping = {name: value for name, value in asdict(options).items() if name in _SHAPING}
    header = json.dumps({**shaping, "weights": target}, sort_keys=True)
    with usable(file, "prompts"):
        found = dict(read_kept(file, header, "prompts", lambda entry: (str(entry["prompt"]), int(entry["try"]))))
        if len(found) < options.generate:
            _write(file, header, found, options, codec, tick)
    asked = [_shown(prompt, codec) for prompt in list(found)[: options.generate]]
    return [Text.of(tokens[-options.max_length :], [], number, number) for number, tokens in enumerate(asked)]


def header_of(codec: TextCodec) -> str:
    """Return what the chat template writes before the user's text.

    Raises:
        ConfigError: there is no template, or none that shows the user's text as it is.
    """
    advice = "give prompts as data"
    if not codec.chats:
        raise ConfigError(f"the target has no chat template, so it cannot write the user's turn; {advice}")
    shown = codec.chat([{"role": "user", "content": _MARK}], ChatOptions(add_generation_prompt=False))
    header, mark, _ = shown.partition(_MARK)
    if not mark:
        raise ConfigError(f"the target's chat template does not show what the user says as it is; {advice}")
    return header


def _shown(prompt: str, codec: TextCodec) -> list[int]:
    """Return the tokens of a conversation in which the user has written this and the assistant is to answer."""
    return codec.encode(codec.chat([{"role": "user", "content": prompt}]), add_special_tokens=False)


def _write(
    file: Path,
    header: str,
    found: dict[str, int],
    options: TrainOptions,
    codec: TextCodec,
    tick: Callable[[int], None],
) -> None:
    begin = codec.encode(header_of(codec), add_special_tokens=False)
    llm = LLM(
        options.target,
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        max_num_seqs=_AT_ONCE,
        speculative_config=None,
        use_tqdm_on_load=False,
    )
    tried = given = max(found.values(), default=-1) + 1
    with file.open("a", encoding="utf-8") as out:
        if not out.tell():
            out.write(header + "\n")
        while len(found) < options.generate:
            tick(len(found))
            numbers = range(tried, tried + _AT_ONCE)
            params = [
                SamplingParams(temperature=_TEMPERATURE, max_tokens=_TOKENS, seed=_APART + options.seed + i)
                for i in numbers
            ]
            for i, answer in zip(numbers, llm.generate([begin] * _AT_ONCE, params, use_tqdm=False), strict=True):
                if answer.error is not None:
                    raise answer.error
                said = answer.outputs[0]
                prompt = said.text.strip()
                if said.finish_reason != "stop" or len(said.token_ids) < LEAST_TOKENS or prompt in found:
                    continue
                if len(found) < options.generate:
                    found[prompt], given = i, i
                    out.write(json.dumps({"prompt": prompt, "try": i}) + "\n")
            tried += _AT_ONCE
            if tried - given > _PATIENCE:
                raise ConfigError(
                    f"the target wrote no further prompt in {_PATIENCE} tries; give prompts as data, or let it "
                    f"generate {len(found)}"
                )
            out.flush()
    tick(len(found))
