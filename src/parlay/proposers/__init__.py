"""Proposers, which draft tokens. One proposer a file; the folder is the registry."""
