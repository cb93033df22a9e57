"""Whether a draft model has the vocabulary of its target, and how it drafts if not."""

from typing import Literal

from parlay.errors import ModelError
from parlay.log import logger
from parlay.models.config import ModelConfig
from parlay.proposers.base import TargetInfo
from parlay.proposers.methods.draft_model.shared_tokens import SharedTokens
from parlay.proposers.methods.draft_model.translation import TRANSLATORS, Translator
from parlay.proposers.vocabulary import difference
from parlay.text.spelling import Spelling
from parlay.text.tokenizer import TextCodec

Vocabulary = Literal["auto", "same", "intersection", "text"]

# From this share of shared tokens in its text on, a draft model drafts best if restricted to these.
_MOST = 0.95


def choose(draft: ModelConfig, target: TargetInfo, requested: Vocabulary) -> tuple[Vocabulary, Translator | None]:
    """Return how a draft model is to draft, and what translates if its vocabulary is another one.

    Args:
        draft: the model.
        target: the target to draft for; further ranks, which do not know the tokenizer, get no translator.
        requested: the user's option.

    Raises:
        ModelError: the vocabularies differ, and must not, or cannot be compared, or have nothing in common.
    """
    if requested != "auto" and target.tokenizer is None:
        return requested, None
    differs = difference(draft, target.config, target.tokenizer)
    if requested == "same" or differs is None:
        if differs is not None:
            raise ModelError(f"{differs}; with vocabulary='same' a draft model must share the target's vocabulary")
        return "same", None
    if draft.recurrent:
        raise ModelError(
            f"{differs}, and its recurrent layers cannot go back to where a text is tokenized again; take a draft "
            "model with the target's vocabulary, or one without such layers"
        )
    shared = _shared(draft, target, differs)
    if shared.is_empty:
        raise ModelError(
            f"{differs}, and shares none of its tokens; take a draft model whose tokenizer spells text as the "
            "target's does, such as one of its family"
        )
    vocabulary = requested
    if requested == "auto":
        vocabulary = "intersection" if shared.weighted_share > _MOST else "text"
    logger.warning(
        "%s; the target has %.1f %% of its tokens, and it drafts with vocabulary=%r",
        *(differs, 100 * shared.share, vocabulary),
    )
    return vocabulary, TRANSLATORS[vocabulary](shared, target.config.vocab_size, draft.vocab_size)


def _shared(draft: ModelConfig, target: TargetInfo, differs: str) -> SharedTokens:
    try:
        own, other = TextCodec(draft.path), TextCodec(target.tokenizer or target.config.path)
    except ModelError as error:
        raise ModelError(
            f"{differs}, and their tokens cannot be compared without both tokenizers ({error}); take a draft model "
            "that has its tokenizer with it"
        ) from None
    return SharedTokens(Spelling(own, draft.vocab_size), Spelling(other, target.config.vocab_size))
