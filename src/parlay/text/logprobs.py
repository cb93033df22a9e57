"""What is reported of tokens: log-probabilities by id, with each token's text."""

from collections.abc import Iterator, Sequence

from parlay.text.tokenizer import TextCodec
from parlay.types.output import Logprob
from parlay.types.plan import TokenLogprobs


def logprob_tables(
    codec: TextCodec, tokens: Sequence[int], entries: Sequence[TokenLogprobs]
) -> Iterator[dict[int, Logprob]]:
    """Yield for each token what is reported of it: its own log-probability and those of the most likely ones."""
    for token, entry in zip(tokens, entries, strict=True):
        table = {t: Logprob(p, rank, codec.token_text(t)) for rank, (t, p) in enumerate(entry.top, start=1)}
        table.setdefault(token, Logprob(entry.logprob, entry.rank, codec.token_text(token)))
        yield table
