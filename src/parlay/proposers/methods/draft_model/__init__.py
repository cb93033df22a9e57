"""Draft models: a small language model that guesses for a large one."""
