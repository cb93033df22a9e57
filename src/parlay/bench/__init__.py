"""Measurement: every figure in the documents comes from a command here."""
