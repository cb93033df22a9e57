"""MTP: a target's own layer that predicts further tokens."""
