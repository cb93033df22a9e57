"""Prompts that the target writes itself: a model that was trained on conversations also writes the user's turn.

Such prompts are typical for the model and need not be collected. Each has a seed, so it is the same in every run.

Source: Magpie (arXiv 2406.08464).
"""

from pathlib import Path

from parlay.errors import ConfigError
from parlay.text.chat import ChatOptions
from parlay.text.tokenizer import TextCodec
from parlay.train.data import LEAST_TOKENS, Text
from parlay.train.options import TrainOptions
from parlay.train.written import AT_ONCE, Tick, WrittenFile
from parlay.types.params import SamplingParams

_TEMPERATURE = 1.0  # variety counts for more than sense
_TOKENS = 128  # most tokens of a prompt; one that has no end by then is dropped
_APART = 1 << 32  # between the seeds of prompts and of responses
_PATIENCE = 512  # most tries in a row without a prompt
_MARK = "what-the-user-says"


def write_prompts(
    file: Path, options: TrainOptions, target: str, codec: TextCodec, tick: Tick = lambda done: None
) -> list[Text]:
    """Return `options.generate` conversations that end with the user's turn, which the target has written.

    Args:
        file: file of the prompts so far; it is made, or appended to.
        options: how many, and of which target.
        target: name of its weights.
        codec: its tokenizer and chat template.
        tick: called with the number of prompts that there are.

    Raises:
        ConfigError: the target has no chat template or writes no prompts; the file has been written with other
            options, or cannot be read or written.
    """
    written = WrittenFile(file, "prompts", options, weights=target)
    with written.io_errors():
        found = dict(written.read(lambda entry: (str(entry["prompt"]), int(entry["try"]))))
        if len(found) < options.generate:
            _write(written, found, options, codec, tick)
    shown = [_render_prompt(prompt, codec) for prompt in list(found)[: options.generate]]
    return [Text.of(tokens[-options.max_length :], [], number, number) for number, tokens in enumerate(shown)]


def header_of(codec: TextCodec) -> str:
    """Return what the chat template writes before the user's text.

    Raises:
        ConfigError: there is no template, or none that shows the user's text as it is.
    """
    advice = "give prompts as data"
    if not codec.has_chat_template:
        raise ConfigError(f"the target has no chat template, so it cannot write the user's turn; {advice}")
    shown = codec.chat([{"role": "user", "content": _MARK}], ChatOptions(add_generation_prompt=False))
    header, mark, _ = shown.partition(_MARK)
    if not mark:
        raise ConfigError(f"the target's chat template does not show what the user says as it is; {advice}")
    return header


def _render_prompt(prompt: str, codec: TextCodec) -> list[int]:
    """Return the tokens of a conversation in which the user has written this and the assistant is to answer."""
    return codec.encode(codec.chat([{"role": "user", "content": prompt}]), add_special_tokens=False)


def _write(written: WrittenFile, found: dict[str, int], options: TrainOptions, codec: TextCodec, tick: Tick) -> None:
    begin = codec.encode(header_of(codec), add_special_tokens=False)
    answers = written.writer()
    drawn = latest = max(found.values(), default=-1) + 1
    with written.open_append() as add:
        while len(found) < options.generate:
            tick(len(found))
            numbers = range(drawn, drawn + AT_ONCE)
            params = [
                SamplingParams(temperature=_TEMPERATURE, max_tokens=_TOKENS, seed=_APART + options.seed + i)
                for i in numbers
            ]
            for i, answer in zip(numbers, answers([begin] * AT_ONCE, params), strict=True):
                prompt = answer.text.strip()
                if answer.finish_reason != "stop" or len(answer.token_ids) < LEAST_TOKENS or prompt in found:
                    continue
                if len(found) < options.generate:
                    found[prompt], latest = i, i
                    add({"prompt": prompt, "try": i})
            drawn += AT_ONCE
            if drawn - latest > _PATIENCE:
                raise ConfigError(
                    f"the target wrote no new prompt in {_PATIENCE} tries; give prompts as data, or let it "
                    f"generate {len(found)}"
                )
    tick(len(found))
