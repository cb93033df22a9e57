"""Everything about guesses but the guessing: who is asked for how many, what is kept of them, what became of them."""
