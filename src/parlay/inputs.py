"""Prompts, from where vLLM's documents import them."""

from parlay.types.prompt import TextPrompt, TokensPrompt

__all__ = ["TextPrompt", "TokensPrompt"]
