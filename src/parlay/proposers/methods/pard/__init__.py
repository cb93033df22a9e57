"""PARD: a small language model that drafts all tokens in one pass, from masks behind the text."""
