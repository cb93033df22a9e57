"""Gemma 4's assistants: a few layers that read their target's keys and values."""
