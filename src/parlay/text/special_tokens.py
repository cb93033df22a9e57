"""Tokens that are found in texts as they are, and those that are put around a text."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from parlay.log import logger

# Kinds of tokens in GGUF files and SentencePiece's models.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_ATTRIBUTES = ("lstrip", "rstrip", "single_word", "normalized")


def token_text(value: Any) -> str:
    """Return the text of a special token, which `tokenizer_config.json` gives as a string or with attributes.

    It is empty for anything else, and for what is no valid Unicode.
    """
    text = value.get("content") if isinstance(value, dict) else value
    valid = isinstance(text, str) and text.encode("utf-8", "ignore").decode() == text
    return text if isinstance(text, str) and valid else ""


def add_by_kind(
    tokenizer: Tokenizer, tokens: Sequence[str], kinds: Sequence[float], swallowing: Collection[str] = ()
) -> None:
    """Add what is no piece to a tokenizer, to be found in texts: control tokens, and those that a model's authors
    defined.

    Args:
        tokenizer: a tokenizer whose vocabulary has them.
        tokens: tokens in the order of their ids.
        kinds: kinds of the tokens.
        swallowing: tokens that swallow the spaces behind them.
    """
    for wanted, special in (((CONTROL, UNKNOWN), True), ((USER_DEFINED,), False)):
        found = [
            AddedToken(token, normalized=False, special=special, rstrip=token in swallowing)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in wanted
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(found)


def with_legacy_files(config: dict[str, Any], roles: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """Return a `tokenizer_config.json` with what older files beside it have, which count if it lists no tokens.

    Source: transformers' `from_pretrained`.

    Args:
        config: the config.
        roles: `special_tokens_map.json`.
        added: `added_tokens.json`, ids by texts.
    """
    if "added_tokens_decoder" in config:
        return config
    about = config | roles
    special = {token_text(one) for one in _named(about)}
    listed = {
        str(index): {"content": text, "special": text in special, "normalized": text not in special}
        for text, index in added.items()
    }
    return {**about, "added_tokens_decoder": listed} if listed else about


def add_named(tokenizer: Tokenizer, about: dict[str, Any], file: Path) -> None:
    """Add the tokens that a `tokenizer_config.json` names and a tokenizer does not know as such.

    Args:
        tokenizer: a tokenizer.
        about: the config.
        file: the config's file.
    """
    known = {"", *(token.content for token in tokenizer.get_added_tokens_decoder().values())}
    listed = about.get("added_tokens_decoder")
    numbered = {key: one for key, one in listed.items() if key.isdecimal()} if isinstance(listed, dict) else {}
    for index, one in sorted(numbered.items(), key=lambda item: int(item[0])):
        text = token_text(one)
        if text in known:
            continue
        attributes, special = _attributes(one), bool(one.get("special")) if isinstance(one, dict) else True
        place = tokenizer.token_to_id(text)
        if (tokenizer.get_vocab_size() if place is None else place) != int(index):
            logger.warning("%s gives %r the id %s, which is another token's or leaves a gap; it is ignored",
                           file, text, index)  # fmt: skip
            continue
        token = AddedToken(text, special=special, **attributes)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
        known.add(text)
    for one in _named(about):
        text = token_text(one)
        if text not in known and tokenizer.token_to_id(text) is not None:
            attributes = {"normalized": False} | _attributes(one)
            tokenizer.add_special_tokens([AddedToken(text, special=True, **attributes)])
            known.add(text)


def _attributes(one: Any) -> dict[str, bool]:
    return {key: bool(one[key]) for key in _ATTRIBUTES if key in one} if isinstance(one, dict) else {}


def _named(about: dict[str, Any]) -> Iterator[Any]:
    yield from (value for key, value in about.items() if key.endswith("_token"))
    for key in ("additional_special_tokens", "extra_special_tokens"):
        found = about.get(key)
        yield from found if isinstance(found, list) else found.values() if isinstance(found, dict) else ()


def add_bos_eos(tokenizer: Tokenizer, bos: str | None, eos: str | None) -> None:
    """Set the tokens that a tokenizer puts before and behind a text; None puts none."""
    around = [token for token in (bos, eos) if token]
    if not around:
        return
    template = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    pair = [*template, *([f"{bos}:1"] if bos else []), "$B:1", *([f"{eos}:1"] if eos else [])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, pair=pair, special_tokens=[(token, tokenizer.token_to_id(token)) for token in set(around)]
    )
