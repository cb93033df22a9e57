"""parlay: a language model engine whose heart is speculative decoding.

Importing this package is cheap: torch is loaded when an `LLM` or an `AsyncLLM` is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from parlay import env as _env
from parlay.errors import (
    CapacityError,
    ConfigError,
    EngineDeadError,
    EngineFaultError,
    ModelError,
    ParlayError,
    RankError,
    RequestError,
)
from parlay.types.output import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from parlay.types.params import SamplingParams, SpeculationOverride
from parlay.types.prompt import TextPrompt, TokensPrompt
from parlay.types.structured import StructuredOutputsParams

if TYPE_CHECKING:
    from parlay.async_llm import AsyncLLM
    from parlay.llm import LLM

_env.prepare_process()

__version__ = "0.2.0"
__all__ = [
    "LLM",
    "AsyncLLM",
    "CapacityError",
    "CompletionOutput",
    "ConfigError",
    "EngineDeadError",
    "EngineFaultError",
    "Logprob",
    "ModelError",
    "ParlayError",
    "RankError",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "SpeculationOverride",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


# What loads torch, and where it lives.
_LAZY = {"LLM": "parlay.llm", "AsyncLLM": "parlay.async_llm"}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'parlay' has no attribute {name!r}")
