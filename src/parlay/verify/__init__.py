"""Deciding which drafted tokens stand. One law for every proposer."""
