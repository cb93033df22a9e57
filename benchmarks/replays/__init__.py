"""Recorded answers, decoded again without the model: what the two scripts `record` and `replay` share."""
