"""On a GPU: ten thousand random requests, preempted and aborted at any time, get plain decoding's tokens."""

import os
from random import Random
from typing import Any

import pytest
import torch
from random_requests import compare_random_requests

from parlay import LLM

from .test_gpu_engine import METHODS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

EXACT = sorted(name for name in METHODS if name != "rejection")  # which keeps the distribution, not the tokens
REQUESTS = int(os.environ.get("PARLAY_GPU_REQUESTS", 10_000))  # of all methods together


@pytest.mark.parametrize("method", EXACT)
def test_random_requests(method: str) -> None:
    options: dict[str, Any] = {"device": "cuda", "max_model_len": 256, "num_blocks": 96}
    alone = LLM("tiny-code", **options, speculative_config=None)
    llm = LLM("tiny-code", **options, speculative_config=METHODS[method])
    # Asked one by one, on a GPU that many processes share, they would take minutes.
    compare_random_requests(alone, llm, Random(method), -(-REQUESTS // len(EXACT)), together=40)
    alone.engine.close()
    llm.engine.close()
