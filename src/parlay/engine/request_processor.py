"""The processor of a request, made of its parameters."""

from collections.abc import Iterable

from parlay.errors import RequestError
from parlay.sampling.grammar import Constraint
from parlay.sampling.processors import prepare
from parlay.text.tokenizer import TextCodec
from parlay.types.params import SamplingParams
from parlay.types.processor import RowProcessor


def check_ids(name: str, tokens: Iterable[int], vocab_size: int) -> None:
    """Check the token ids of a parameter.

    Raises:
        RequestError: one is beyond the vocabulary.
    """
    token = max(tokens, default=0)
    if token >= vocab_size:
        raise RequestError(f"{name} holds {token}, beyond the vocabulary of {vocab_size}", param=name)


def processor_of(
    codec: TextCodec,
    prompt: tuple[int, ...],
    params: SamplingParams,
    eos: frozenset[int],
    vocab_size: int,
    constraint: Constraint | None,
) -> RowProcessor | None:
    """Return the processor of one completion of a prompt; None where nothing changes its logits.

    Raises:
        RequestError: a parameter names tokens that there are not.
    """
    bad_words = [spelling for word in params.bad_words for spelling in codec.spellings(word)]
    check_ids("bad_words", (token for word in bad_words for token in word), vocab_size)
    return prepare(
        params,
        prompt=prompt,
        ends=eos | frozenset(params.stop_token_ids),
        bad_words=bad_words,
        vocab_size=vocab_size,
        further=[constraint] if constraint else [],
    )
