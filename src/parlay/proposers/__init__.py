"""Proposers, which guess tokens. One proposer a file; the folder is the registry."""
