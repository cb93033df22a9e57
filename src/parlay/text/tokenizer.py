"""Text to tokens and back."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any, TypeVar

from parlay.checkpoints.chat_templates import DEFAULT, choose
from parlay.errors import ContextLengthError, RequestError, about, brief
from parlay.rust_panics import Contained
from parlay.text.chat import ChatOptions, pieces, render, shows_tools
from parlay.text.special_tokens import token_text
from parlay.text.template_process import TemplateProcess
from parlay.text.token_bytes import DECODING, raw_bytes, text_within
from parlay.text.tokenizer_files import read_texts

_LONG = 1024  # characters or tokens
_ENCODING = Contained("its library panics")
_MANY = 200  # messages, parts, calls and tools
_ASSETS = Path(__file__).parents[1] / "assets"

T = TypeVar("T")


class TextCodec:
    """A model's tokenizer and chat template.

    Attributes:
        path: where they were read from.
    """

    def __init__(self, path: Path) -> None:
        """Read `tokenizer.json` and, if present, `tokenizer_config.json` and chat templates in a directory.

        All of that may be in one GGUF file instead.

        Raises:
            ModelError: there is no `tokenizer.json`, a file cannot be read, or its tokenizer is not supported.
        """
        self.path = path
        self._texts: dict[int, str] = {}  # of single tokens
        self._bytes: dict[int, bytes] = {}
        self.tokenizer, self._config = read_texts(path)
        self._templates: dict[str, str] = self._config.get("chat_templates", {})
        # For the model's templates, for the same with many pieces, and for requests' templates.
        self._runners = {lane: TemplateProcess() for lane in ("own", "many", "given")}
        # A thread that waits for each, so that calls that wait block no other thread.
        self._threads = {lane: ThreadPoolExecutor(1, "parlay-template") for lane in self._runners}

    @classmethod
    def ready(cls, path: Path) -> "TextCodec":
        """Return a codec whose chat template has run once, so that no request waits for its process to start."""
        codec = cls(path)
        with suppress(RequestError):  # requests get it
            codec.shows_tools()
        return codec

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`, by default with the special tokens that the tokenizer itself adds.

        Raises:
            RequestError: the text is not valid Unicode, or the tokenizer has no tokens for it.
        """
        try:
            with _ENCODING:
                if len(text) < _LONG:
                    return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
                # The same tokens, but of the library's calls only those on batches release the interpreter.
                (found,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
                return list(found.ids)
        except (TypeError, UnicodeError):
            raise RequestError("the prompt is not valid Unicode text; decode it with the right encoding") from None
        except Exception as error:  # the library raises bare ones, for example where there is no unknown token
            raise RequestError(f"the tokenizer cannot encode this text: {brief(str(error))}") from None

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `tokens`.

        Raises:
            RequestError: the tokenizer's library fails.
        """
        with DECODING:
            if len(tokens) < _LONG:
                return str(self.tokenizer.decode(list(tokens), skip_special_tokens=skip_special_tokens))
            return str(self.tokenizer.decode_batch([list(tokens)], skip_special_tokens=skip_special_tokens)[0])

    @cached_property
    def most_characters(self) -> int:
        """No token stands for more characters than this, even if a normaliser joins some."""
        return 4 * max(map(len, self.tokenizer.get_vocab()))

    @cached_property
    def end(self) -> int | None:
        """The token that ends a text, if the tokenizer's config names one."""
        name = self.named("eos_token")
        found: int | None = None if name is None else self.tokenizer.token_to_id(name)
        return found

    def named(self, key: str) -> str | None:
        """Return a token that the tokenizer's config names, such as `bos_token`; None without one."""
        given = self._config.get(key)
        return (token_text(given) or None) if given else None

    def spellings(self, word: str) -> list[list[int]]:
        """Return the tokens of `word` at the beginning of a text and, where they differ, after a space and within.

        The second only if the space is part of the first token, as in vLLM. White space before a word does not count.

        Raises:
            RequestError: there are none.
        """
        word = word.lstrip() or word
        first = self.encode(word, add_special_tokens=False)
        spaced = self.encode(" " + word, add_special_tokens=False)
        line = self.encode("\n", add_special_tokens=False)
        after = self.encode("\n" + word, add_special_tokens=False)
        found = [first, spaced] if len(spaced) == len(first) and spaced[:1] != first[:1] else [first]
        if after[: len(line)] == line and after[len(line) :] not in found:
            found.append(after[len(line) :])
        if not any(found):
            raise RequestError(f"bad_words has {word!r}, for which the tokenizer has no tokens", param="bad_words")
        return [tokens for tokens in found if tokens]

    def token_text(self, token: int) -> str:
        """Return one token's text as it is within a text, special or not; part of a character is U+FFFD."""
        text = self._texts.get(token)
        if text is None:
            with DECODING:
                text = self._texts[token] = text_within(self.tokenizer, token)
        return text

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token's text; those of successive tokens make up characters."""
        found = self._bytes.get(token)
        if found is None:
            raw = raw_bytes(self.tokenizer, token)
            found = self._bytes[token] = self.token_text(token).encode() if raw is None else raw
        return found

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The tokens that texts may leave out."""
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(token for token, about in added.items() if about.special)

    @property
    def has_chat_template(self) -> bool:
        """Whether there is a chat template."""
        return bool(self._templates)

    @property
    def prefers_chat(self) -> bool:
        """Whether prompts need the chat template; the embedded models complete code although they have one."""
        return self.has_chat_template and _ASSETS not in self.path.parents

    @property
    def template(self) -> str | None:
        """The default chat template, in Jinja's language."""
        return self._templates.get(DEFAULT)

    @property
    def template_names(self) -> frozenset[str]:
        """The names of the model's own chat templates, any of which `ChatOptions.chat_template` may be."""
        return frozenset(self._templates)

    def template_for(self, given: str | None, *, tools: bool) -> str | None:
        """Return the chat template of a conversation; None if there is none.

        Args:
            given: a template, or the name of one of the model's own.
            tools: whether there are descriptions of functions.

        Raises:
            RequestError: the model has several, and none for this.
        """
        return choose(self._templates, given, tools=tools)

    def use_template(self, template: str) -> None:
        """Use a chat template in place of all of the model's own."""
        self._templates = {DEFAULT: template}

    def shows_tools(self, template: str | None = None) -> bool:
        """Whether a chat template, by default the model's own for tools, passes tools to the model."""
        own = self.template_for(template, tools=True)
        return own is not None and shows_tools(own, self._special, self._runners[self.lane(template)])

    @cached_property
    def _special(self) -> dict[str, str]:
        return {k: token_text(v) for k, v in self._config.items() if k.endswith("_token") and v}

    def chat(self, messages: Sequence[Mapping[str, Any]], options: ChatOptions | None = None) -> str:
        """Return the prompt that the model's chat template makes of `messages`.

        Raises:
            RequestError: there is no chat template, or the template refuses the messages.
        """
        options = options or ChatOptions()
        template = self.template_for(options.chat_template, tools=bool(options.tools))
        if template is None:
            raise RequestError(
                "this model has no chat template; give one as chat_template (a command: --chat-template FILE), or "
                "complete a prompt of your own",
                param="chat_template",
            )
        runner = self._runners[self.lane(options.chat_template, pieces(messages, options.tools))]
        return render(template, messages, self._special, options, runner)

    async def run_template(self, template: str | None, work: Callable[[], T], count: int = 0) -> T:
        """Return the result of `work`, which runs a chat template, without blocking the event loop.

        Args:
            template: the request's template, see `ChatOptions`.
            work: runs in a thread; calls of one lane run one after another.
            count: the `pieces` that the template is given.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads[self.lane(template, count)], work)

    def lane(self, given: str | None, count: int = 0) -> str:
        """Return where a template is run: what takes long, or does not end, delays only others of its kind.

        Args:
            given: a request's template, or the name of one of the model's own; None for the model's own.
            count: the `pieces` that it is given.
        """
        own = given is None or given in self._templates or given in self._templates.values()
        if not own:
            return "given"
        return "own" if count <= _MANY else "many"

    def close(self) -> None:
        """End the processes that run chat templates, for good."""
        for one in self._runners.values():
            one.close()


@about("prediction")
def encode_prediction(
    codec: TextCodec, given: str | Sequence[int], vocab_size: int, max_model_len: int
) -> tuple[int, ...]:
    """Return a predicted output's token ids.

    Raises:
        RequestError: they are more than a sequence may have, or some are outside the vocabulary.
    """
    tokens = tuple(codec.encode(given, add_special_tokens=False) if isinstance(given, str) else given)
    if len(tokens) > max_model_len:
        raise RequestError(
            f"prediction has {len(tokens)} tokens, more than fit into max_model_len={max_model_len}; shorten it"
        )
    for token in tokens:
        if token >= vocab_size:
            raise RequestError(f"prediction holds {token}, beyond the vocabulary of {vocab_size}")
    return tokens


@about("prompt")
def check_prompt(ids: Iterable[int], vocab_size: int, max_model_len: int) -> tuple[int, ...]:
    """Return a prompt's token ids.

    Raises:
        RequestError: there are none, some outside the vocabulary, or so many that no room is left for output.
    """
    if isinstance(ids, bytes):
        raise RequestError("a prompt is text or token ids, not bytes; decode it first")
    try:
        tokens = tuple(map(index, ids))
    except TypeError:
        raise RequestError(
            "a prompt is text, a sequence of integer token ids, or a mapping with just one of them as "
            "'prompt' or 'prompt_token_ids'"
        ) from None
    if not tokens:
        raise RequestError("the prompt is empty; it needs at least one token")
    if len(tokens) >= max_model_len:
        raise ContextLengthError(
            # Clients know this sentence, and shorten the conversation.
            f"This model's maximum context length is {max_model_len} tokens, but the prompt has {len(tokens)} "
            "tokens, which leaves no room for output; shorten it"
        )
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise RequestError(f"prompt token {token} is not an id between 0 and {vocab_size - 1}")
    return tokens
