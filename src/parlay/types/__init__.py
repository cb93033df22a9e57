"""The nouns of parlay: what a user asks for, what a step is told, what comes back."""
