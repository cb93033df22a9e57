"""The tokenizer under the names that transformers gives its methods."""

from collections.abc import Mapping, Sequence
from typing import Any

from parlay.text.chat import ChatOptions
from parlay.text.tokenizer import TextCodec


class TokenizerView:
    """A model's tokenizer and chat template, as `LLM.get_tokenizer` gives them."""

    def __init__(self, codec: TextCodec) -> None:
        """Wrap a codec."""
        self._codec = codec

    def __len__(self) -> int:
        """Return how many tokens there are."""
        return int(self._codec.tokenizer.get_vocab_size())

    def __call__(self, text: str | Sequence[str], *, add_special_tokens: bool = True) -> dict[str, Any]:
        """Return `input_ids` and `attention_mask` of one text or of several."""
        if isinstance(text, str):
            ids: Any = self.encode(text, add_special_tokens=add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        ids = [self.encode(one, add_special_tokens=add_special_tokens) for one in text]
        return {"input_ids": ids, "attention_mask": [[1] * len(one) for one in ids]}

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

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        """Return tokens as the vocabulary spells them."""
        return [self._codec.tokenizer.id_to_token(one) for one in ids]

    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]:
        """Return the ids of tokens as the vocabulary spells them."""
        return [self._codec.tokenizer.token_to_id(one) for one in tokens]

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return len(self)

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, if the tokenizer's config names one."""
        return self._codec.end

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
        **variables: Any,
    ) -> str | list[int]:
        """Return the conversation in the chat template: token ids, or text if `tokenize` is false.

        Args:
            conversation: messages with `role` and `content`.
            tools: descriptions of functions.
            chat_template: a template in place of the model's own, or the name of one of its own.
            add_generation_prompt: end with what begins an answer.
            continue_final_message: end within the last message.
            tokenize: give token ids.
            **variables: further variables that the template reads.

        Raises:
            RequestError: there is no template, or it refuses the messages.
        """
        options = ChatOptions(
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=variables,
        )
        text = self._codec.chat(conversation, options)
        return self._codec.encode(text, add_special_tokens=False) if tokenize else text
