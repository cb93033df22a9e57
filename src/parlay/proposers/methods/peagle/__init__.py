"""P-EAGLE: an EAGLE-3 head that drafts all tokens in one pass."""
