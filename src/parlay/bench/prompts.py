"""Prompts from files of JSON lines, in the forms of MT-bench, HumanEval and chats.

A line with `turns` is MT-bench's: the first turn goes through the chat template. One with `messages` is a
conversation and does so too. One with `prompt` is a text to continue, as in HumanEval. Other keys are left alone.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from parlay.bench.workloads import Prefix
from parlay.errors import ConfigError, RequestError, shown
from parlay.text.tokenizer import TextCodec

R = TypeVar("R")

_ENDINGS = (".gz", ".jsonl")
_FORMS = "'turns', 'messages' or 'prompt'"


def name_of(path: Path) -> str:
    """Return the name of a file's prompts: the file's without its endings."""
    name = path.name
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name


def read_prompts(path: Path, codec: TextCodec, longest: int, count: int | None = None) -> list[Prefix]:
    """Return the prompts of a file in a model's tokens, numbered by their order.

    Args:
        path: a file of JSON lines, `.jsonl` or `.jsonl.gz`.
        codec: the model's tokenizer and chat template.
        longest: tokens that a prompt may have.
        count: most prompts to read; None for all.

    Raises:
        ConfigError: the file cannot be read, or a line is in none of the forms or too long; it names the line.
    """
    entries = islice(_entries(path, partial(_tokens, codec=codec, longest=longest)), count)
    return [Prefix(number, tokens) for number, tokens in enumerate(entries)]


def read_texts(path: Path) -> list[str]:
    """Return the prompt of each line of a file as text: its `prompt`, its first turn, or its last message.

    Raises:
        ConfigError: the file cannot be read, or a line is in none of the forms; it names the line.
    """
    return list(_entries(path, _question))


def _entries(path: Path, read: Callable[[Mapping[str, Any]], R]) -> Iterator[R]:
    """Yield what `read` makes of each line; errors name the line."""
    empty = True
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            try:
                found = read(_object(line))
            except (ConfigError, RequestError) as error:
                raise ConfigError(f"{path}, line {number}: {error}") from None
            yield found
            empty = False
    if empty:
        raise ConfigError(f"{path} holds no prompts; give a file with a JSON object a line")


def _question(entry: Mapping[str, Any]) -> str:
    turns, messages, found = entry.get("turns"), entry.get("messages"), entry.get("prompt")
    if isinstance(turns, list) and turns:
        found = turns[0]
    elif isinstance(messages, list) and messages and isinstance(messages[-1], Mapping):
        found = messages[-1].get("content")
    if not isinstance(found, str):
        raise ConfigError(f"an entry has {_FORMS} with a text; this one has {shown(list(entry))}")
    return found


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8; give JSON lines, .jsonl or .jsonl.gz") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ConfigError(f"{path} cannot be unpacked: it is damaged, or not what its name says") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _object(line: str) -> Mapping[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"invalid JSON: {error}") from None
    if not isinstance(entry, Mapping):
        raise ConfigError(f"an entry must be an object with {_FORMS}, not {shown(entry)}")
    return entry


def _tokens(entry: Mapping[str, Any], codec: TextCodec, longest: int) -> tuple[int, ...]:
    if "turns" in entry:
        turns = entry["turns"]
        if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
            raise ConfigError(f"'turns' must be a list of texts, not {shown(turns)}")
        tokens = _chat([{"role": "user", "content": turns[0]}], codec)
    elif "messages" in entry:
        tokens = _chat(entry["messages"], codec)
    elif isinstance(entry.get("prompt"), str):
        tokens = codec.encode(entry["prompt"])
    else:
        raise ConfigError(f"an entry has {_FORMS}, the last a text; this one has {shown(list(entry))}")
    if not 0 < len(tokens) <= longest:
        raise ConfigError(
            f"the prompt has {len(tokens)} tokens, but with the completion there is room for 1 to {longest}; "
            "leave the line out, or lower --max-tokens"
        )
    return tuple(tokens)


def _chat(messages: Any, codec: TextCodec) -> list[int]:
    if not codec.has_chat_template:
        raise ConfigError("the model has no chat template for this; give lines with 'prompt'")
    return codec.encode(codec.chat(messages), add_special_tokens=False)
