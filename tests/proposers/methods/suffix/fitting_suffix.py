"""What suits suffix decoding."""

TEXT = "a, b, c, d, a, b, c, d, a, b, c, d, a, b,"
GUESSES_ON_RANDOM_TEXTS = True  # random models repeat themselves a little
