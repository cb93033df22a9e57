"""Draft models: a small language model that drafts for a large one."""
