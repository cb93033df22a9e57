"""Texts to learn from: files of text or JSONL, as tokens, with those marked that count."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parlay.errors import ConfigError, RequestError, shown
from parlay.log import logger
from parlay.text.chat import ChatOptions
from parlay.text.tokenizer import TextCodec
from parlay.train.options import TrainOptions

LEAST_TOKENS = 4  # of a text; shorter ones teach nothing
_LINES = (".jsonl", ".ndjson")
_FORMS = "'prompt' and 'completion', 'messages', 'conversations', or 'text'"
_ROLES = {"human": "user", "gpt": "assistant", "system": "system"}  # of ShareGPT's conversations


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """Tokens, of which those count as labels that the target is to write itself.

    Attributes:
        tokens: `[length]`.
        loss_mask: `[length]`.
        document: number of the file, line or conversation that it comes from.
        part: number, among all documents' parts, of the one of at most `max_length` tokens that it is or answers.
    """

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    document: int = 0
    part: int = 0

    @classmethod
    def of(cls, prompt: list[int], response: list[int], document: int = 0, part: int = 0) -> "Text":
        """Return a text of which only the response counts."""
        counted = np.arange(len(prompt) + len(response)) >= len(prompt)
        return cls(np.array([*prompt, *response], dtype=np.int32), counted, document, part)


def read_texts(path: Path, codec: TextCodec, vocab: int, max_length: int, prompts: bool = False) -> list[Text]:
    """Return the texts of a file, or of all files below a directory, cut to at most `max_length` tokens.

    Args:
        path: path of the data.
        codec: the target's tokenizer and chat template.
        vocab: number of tokens; all ids are below.
        max_length: longer texts become several; of a prompt alone the end is taken.
        prompts: whether prompts alone will do: texts of which no token counts.

    Raises:
        ConfigError: there is nothing to read, or something is not what its name says; the message says where.
    """
    documents = (text for file, alone in _files(path) for text in _read(file, codec, alone, prompts))
    texts: list[Text] = []
    for number, text in enumerate(documents):
        numbered = replace(text, document=number)
        if prompts and len(text.tokens) and not text.loss_mask.any():
            texts.append(replace(numbered, tokens=text.tokens[-max_length:], loss_mask=text.loss_mask[-max_length:]))
        texts += [
            piece
            for piece in _cut(numbered, max_length)
            if len(piece.tokens) >= LEAST_TOKENS and piece.loss_mask[2:].any()
        ]
    if not texts:
        raise ConfigError(f"{path} holds no text of at least {LEAST_TOKENS} tokens; give other data")
    if max(int(text.tokens.max()) for text in texts) >= vocab:
        raise ConfigError(
            f"{path} has tokens beyond the target's vocabulary of {vocab}; it was made with another tokenizer"
        )
    return [replace(text, part=number) for number, text in enumerate(texts)]


def split(texts: Sequence[Text], options: TrainOptions) -> tuple[list[Text], list[Text]]:
    """Return texts to learn from and texts to measure on, the latter at most a share `held_out` of all tokens.

    Whole documents are held out, in a random order, as long as they fit into the share. If the first does not, its
    end is, without splitting the texts of one of its parts.

    Raises:
        ConfigError: all texts come from a single part.
    """
    tokens: dict[int, dict[int, int]] = {}  # of every document's parts
    for text in texts:
        parts = tokens.setdefault(text.document, {})
        parts[text.part] = parts.get(text.part, 0) + len(text.tokens)
    if sum(map(len, tokens.values())) < 2:
        raise ConfigError("a single text cannot be split into training and held-out data; give more")
    room = options.held_out * sum(len(text.tokens) for text in texts)
    apart: set[int] = set()
    for document in np.random.default_rng(options.seed).permutation(sorted(tokens)):
        parts = tokens[int(document)]
        if apart and sum(parts.values()) > room:
            break
        for part in sorted(parts, reverse=True):
            if apart and parts[part] > room:
                break
            apart.add(part)
            room -= parts[part]
    return [text for text in texts if text.part not in apart], [text for text in texts if text.part in apart]


def sample(texts: Sequence[Text], count: int) -> list[Text]:
    """Return at most `count` texts, evenly spread."""
    return list(texts[:: max(1, -(-len(texts) // count))])


def commonest(texts: Sequence[Text], vocab: int, count: int) -> Tensor:
    """Return the tokens that occur most often among those that count, ascending; among equals the lower ids."""
    found = np.zeros(vocab, dtype=np.int64)
    for text in texts:
        found += np.bincount(text.tokens[text.loss_mask], minlength=vocab)
    return torch.from_numpy(np.sort(np.argsort(-found, kind="stable")[:count]))


def digest(texts: list[Text]) -> str:
    """Return a digest of texts, which depends on their tokens, marks and order."""
    found = sha256()
    for text in texts:
        found.update(len(text.tokens).to_bytes(8, "little"))
        found.update(text.tokens.tobytes())
        found.update(text.loss_mask.tobytes())
    return found.hexdigest()[:16]


def _files(path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield files in a fixed order, and whether each was named by itself."""
    if path.is_file():
        yield path, True
    elif path.is_dir():
        for file in sorted(path.rglob("*")):
            hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            if file.is_file() and not hidden:
                yield file, False
    else:
        raise ConfigError(f"{shown(str(path))} does not exist; give a file of text or JSONL, or a directory of them")


def _read(file: Path, codec: TextCodec, alone: bool, prompts: bool) -> Iterator[Text]:
    if alone and file.suffix == ".json":  # in a directory it may well be one text among many
        raise ConfigError(f"{file} is a JSON file; convert it to JSON lines in a file that ends in .jsonl")
    try:
        content = file.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        if alone or file.suffix.lower() in _LINES:
            raise ConfigError(f"{file} is not text in UTF-8; convert it") from None
        logger.warning("%s is not text in UTF-8 and is skipped", file)
        return
    if file.suffix.lower() not in _LINES:
        yield _encode_text(content, codec)
        return
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield _entry(line, codec, prompts)
        except (RequestError, ConfigError, ValueError, RecursionError) as error:
            raise ConfigError(f"{file}, line {number}: {error}") from None


def _entry(line: str, codec: TextCodec, prompts: bool) -> Text:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"invalid JSON: {error}") from None
    if not isinstance(entry, Mapping):
        raise ConfigError(f"an entry must be an object with {_FORMS}, not {shown(entry)}")
    if "messages" in entry:
        return _conversation(entry["messages"], codec, prompts)
    if "conversations" in entry:
        return _conversation(_messages(entry["conversations"]), codec, prompts)
    for keys, make in ((("prompt", "completion"), _pair), (("text",), _encode_text)):
        values = [entry.get(key) for key in keys]
        if all(isinstance(value, str) for value in values):
            read: Callable[..., Text] = make
            return read(*values, codec)
    if isinstance(entry.get("prompt"), str) and entry.get("completion") is None:
        if prompts:
            return Text.of(_encode_prompt(entry["prompt"], codec), [])
        raise ConfigError(
            "a prompt alone has nothing to train on; give its 'completion', or have the target `generate`"
        )
    raise ConfigError(f"an entry has {_FORMS}, each a text; this one has {shown(list(entry))}")


def _encode_text(text: str, codec: TextCodec) -> Text:
    return Text.of([], codec.encode(text))


def _encode_prompt(prompt: str, codec: TextCodec) -> list[int]:
    """Return a prompt's tokens without the end that some tokenizers add to every text."""
    tokens, plain = codec.encode(prompt), codec.encode(prompt, add_special_tokens=False)
    return tokens[:-1] if tokens[-1 - len(plain) :] == [*plain, codec.end] else tokens


def _pair(prompt: str, completion: str, codec: TextCodec) -> Text:
    """Return a prompt and its completion, to its end."""
    after = codec.encode(completion, add_special_tokens=False)
    if codec.end is not None and after[-1:] != [codec.end]:
        after.append(codec.end)
    return Text.of(_encode_prompt(prompt, codec), after)


def _messages(turns: Any) -> list[dict[str, str]]:
    """Return ShareGPT's turns as messages."""
    if not isinstance(turns, list):
        raise ConfigError(f"a conversation must be a list of turns, not {shown(turns)}")
    for turn in turns:
        speaks = turn.get("from") if isinstance(turn, dict) else None
        if not (isinstance(speaks, str) and speaks in _ROLES and isinstance(turn.get("value"), str)):
            raise ConfigError(
                f"a turn must have 'value', a text, and 'from', one of {list(_ROLES)}, not {shown(turn)}"
            )
    return [{"role": _ROLES[turn["from"]], "content": turn["value"]} for turn in turns]


def _conversation(messages: Any, codec: TextCodec, prompts: bool) -> Text:
    """Return a conversation as the chat template shows it; what the assistant says counts."""
    if not codec.has_chat_template:
        raise ConfigError(
            "the target has no chat template for messages; put one next to its tokenizer as "
            "chat_template.jinja, or give 'prompt' and 'completion'"
        )
    after = ChatOptions(add_generation_prompt=False)
    whole = codec.chat(messages, after)
    answers: list[tuple[int, int]] = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant" or i == 0:
            continue
        begins, until = codec.chat(messages[:i]), codec.chat(messages[: i + 1], after)
        if not (whole.startswith(begins) and whole.startswith(until)):
            # A template that shows the past differently: only the last answer is where it was when it was written.
            if i < len(messages) - 1:
                continue
            raise RequestError("the chat template does not show the last answer as it was written")
        answers.append((len(begins), len(until)))
    if not answers and prompts and messages[-1]["role"] != "assistant":
        return Text.of(codec.encode(codec.chat(messages), add_special_tokens=False), [])
    if not answers:
        raise RequestError("the conversation has no message of the role 'assistant' to train on")
    encoding = codec.tokenizer.encode(whole, add_special_tokens=False)
    starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
    counted = np.zeros(len(starts), dtype=np.bool_)
    for begin, end in answers:
        counted |= (starts >= begin) & (starts < end)
    return Text(np.array(encoding.ids, dtype=np.int32), counted)


def _cut(text: Text, length: int) -> Iterator[Text]:
    for first in range(0, len(text.tokens), length):
        piece = slice(first, first + length)
        yield replace(text, tokens=text.tokens[piece], loss_mask=text.loss_mask[piece])
