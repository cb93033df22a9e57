"""Texts that suit proposers which guess from tokens alone; one line for each such proposer."""

# A prompt for the embedded model, after which some of the proposer's guesses are right.
TEXTS = {
    "ngram": "a, b, c, d, a, b, c, d, a, b, c, d, a, b,",
    "suffix": "a, b, c, d, a, b, c, d, a, b, c, d, a, b,",
}

# Those that are also right at times on texts of random models, which repeat themselves a little.
RIGHT_ON_RANDOM_TEXTS = frozenset({"ngram", "suffix"})
