"""Drafting around the proposers: which are asked for how many nodes, which nodes are verified, what is learnt."""
