"""The data types of parlay: what a user asks for, the input of a step, its results."""
