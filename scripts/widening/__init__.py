"""Small models made big with the same function, and their draft heads."""
