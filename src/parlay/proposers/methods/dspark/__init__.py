"""DSpark: a block in one pass, each of whose tokens is then chosen with regard to the one before it."""
