"""One asynchronous engine, and what it asks of the link to whoever computes."""
