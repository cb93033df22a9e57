"""Anthropic's protocol, answered with chat completions' code."""
