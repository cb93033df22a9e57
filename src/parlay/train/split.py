"""Which texts are learnt from and which are only measured on."""

from collections.abc import Sequence

import numpy as np

from parlay.errors import ConfigError
from parlay.train.data import Text
from parlay.train.options import TrainOptions


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
        raise ConfigError("a single text cannot be both learnt from and held out; give more data")
    room = options.held_out * sum(len(text.tokens) for text in texts)
    held: set[int] = set()
    for document in np.random.default_rng(options.seed).permutation(sorted(tokens)):
        parts = tokens[int(document)]
        if held and sum(parts.values()) > room:
            break
        for part in sorted(parts, reverse=True):
            if held and parts[part] > room:
                break
            held.add(part)
            room -= parts[part]
    return [text for text in texts if text.part not in held], [text for text in texts if text.part in held]


def sample(texts: Sequence[Text], count: int) -> list[Text]:
    """Return at most `count` texts, evenly spread."""
    return list(texts[:: max(1, -(-len(texts) // count))])
