"""Whatever guesses. One proposer a file; the folder is the registry."""
