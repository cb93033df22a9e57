"""Deciding which nodes are accepted. One rule for every proposer."""
