"""The tokenizer under the names that transformers gives its methods."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

from parlay.errors import ConfigError
from parlay.text.chat import ChatOptions
from parlay.text.tokenizer import TextCodec

# What transformers' `apply_chat_template` takes beside variables of the template, with values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "padding": (None, False, "do_not_pad"),
    "truncation": (None, False, "do_not_truncate"),
    "max_length": (None,),
    "return_tensors": (None,),
    "return_assistant_tokens_mask": (None, False),
    "tokenizer_kwargs": (None, {}),
    "sanitize_control_tokens": (None, False),
}


class Encoding(dict[str, Any]):
    """`input_ids` and `attention_mask`, also as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class TokenizerView:
    """A model's tokenizer and chat template, as `LLM.get_tokenizer` gives them."""

    def __init__(self, codec: TextCodec) -> None:
        """Wrap a codec."""
        self._codec = codec

    def __len__(self) -> int:
        """Return how many tokens there are."""
        return int(self._codec.tokenizer.get_vocab_size())

    def __call__(self, text: str | Sequence[str], *, add_special_tokens: bool = True) -> Encoding:
        """Return `input_ids` and `attention_mask` of one text or of several."""
        if isinstance(text, str):
            return _encoding(self.encode(text, add_special_tokens=add_special_tokens))
        ids = [self.encode(one, add_special_tokens=add_special_tokens) for one in text]
        return Encoding(input_ids=ids, attention_mask=[[1] * len(one) for one in ids])

    def tokenize(self, text: str) -> list[str | None]:
        """Return the tokens of a text as the vocabulary spells them, without special ones added."""
        return [self._token(one) for one in self.encode(text, add_special_tokens=False)]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        return self._codec.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._codec.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = False) -> list[str]:
        """Return the texts of several lists of token ids."""
        return [self.decode(one, skip_special_tokens=skip_special_tokens) for one in sequences]

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all tokens."""
        return dict(self._codec.tokenizer.get_vocab())

    @overload
    def convert_ids_to_tokens(self, ids: int, *, skip_special_tokens: bool = ...) -> str | None: ...
    @overload
    def convert_ids_to_tokens(self, ids: Sequence[int], *, skip_special_tokens: bool = ...) -> list[str | None]: ...

    def convert_ids_to_tokens(
        self, ids: int | Sequence[int], *, skip_special_tokens: bool = False
    ) -> str | list[str | None] | None:
        """Return one token or several as the vocabulary spells them; None for an id that no token has."""
        if isinstance(ids, int):
            return self._token(ids)
        special = self._codec.special_ids if skip_special_tokens else ()
        return [self._token(one) for one in ids if one not in special]

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...  # type: ignore[overload-overlap]
    @overload
    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]: ...

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int | None] | None:
        """Return the id of one token, or of several, as the vocabulary spells them.

        A token that is not in the vocabulary has the id of the unknown token, or None if the tokenizer has no such.
        """
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(one) for one in tokens]
        found: int | None = self._codec.tokenizer.token_to_id(tokens)
        return self.unk_token_id if found is None else found

    def _token(self, token: int) -> str | None:
        spelled: str | None = self._codec.tokenizer.id_to_token(token)
        return spelled

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return len(self)

    @property
    def eos_token(self) -> str | None:
        """The token that ends a text, if the tokenizer's config names one."""
        return self._codec.named("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        """Its id."""
        return self._id(self.eos_token)

    @property
    def bos_token(self) -> str | None:
        """The token that begins a text, if the tokenizer's config names one."""
        return self._codec.named("bos_token")

    @property
    def bos_token_id(self) -> int | None:
        """Its id."""
        return self._id(self.bos_token)

    @property
    def pad_token(self) -> str | None:
        """The token that fills a batch up, if the tokenizer's config names one."""
        return self._codec.named("pad_token")

    @property
    def pad_token_id(self) -> int | None:
        """Its id."""
        return self._id(self.pad_token)

    @property
    def unk_token(self) -> str | None:
        """The token that stands for what is not in the vocabulary, if the tokenizer's config names one."""
        return self._codec.named("unk_token")

    @property
    def unk_token_id(self) -> int | None:
        """Its id."""
        return self._id(self.unk_token)

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of all special tokens, in order."""
        return sorted(self._codec.special_ids)

    @property
    def all_special_tokens(self) -> list[str | None]:
        """All special tokens, in the order of their ids."""
        return self.convert_ids_to_tokens(self.all_special_ids)

    def _id(self, token: str | None) -> int | None:
        found: int | None = None if token is None else self._codec.tokenizer.token_to_id(token)
        return found

    @property
    def chat_template(self) -> str | None:
        """The chat template, in Jinja's language."""
        return self._codec.template

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        return_dict: bool = False,
        **variables: Any,
    ) -> str | list[int] | Encoding:
        """Return the conversation in the chat template: token ids, or text if `tokenize` is false.

        Args:
            conversation: messages with `role` and `content`.
            tools: descriptions of functions.
            chat_template: a template in place of the model's own, or the name of one of its own.
            add_generation_prompt: end with what begins an answer.
            continue_final_message: end within the last message.
            tokenize: give token ids.
            return_dict: give `input_ids` and `attention_mask`, as `__call__` does.
            **variables: further variables that the template reads.

        Raises:
            ConfigError: an argument of transformers' that is not supported, such as `truncation`.
            RequestError: there is no template, or it refuses the messages.
        """
        for name in _UNSUPPORTED.keys() & variables.keys():
            value = variables.pop(name)
            if not any(type(value) is type(one) and value == one for one in _UNSUPPORTED[name]):
                raise ConfigError(f"apply_chat_template does not support {name}; leave it out")
        options = ChatOptions(
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=variables,
        )
        text = self._codec.chat(conversation, options)
        if not tokenize:
            return text
        ids = self.encode(text, add_special_tokens=False)
        return _encoding(ids) if return_dict else ids


def _encoding(ids: list[int]) -> Encoding:
    return Encoding(input_ids=ids, attention_mask=[1] * len(ids))
