"""Frozen configuration. Unknown keys are errors; nothing writes to a config after start."""

from parlay.config.engine import SERVING, EngineConfig
from parlay.config.server import ServerConfig
from parlay.config.speculative import SpeculativeConfig
from parlay.config.strict import build
from parlay.config.vllm_0_6 import modernise

__all__ = ["SERVING", "EngineConfig", "ServerConfig", "SpeculativeConfig", "build", "modernise"]
