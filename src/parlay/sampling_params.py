"""Sampling parameters, from where vLLM's documents import them."""

from parlay.types.params import SamplingParams
from parlay.types.structured import StructuredOutputsParams

__all__ = ["SamplingParams", "StructuredOutputsParams"]
