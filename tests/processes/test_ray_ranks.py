"""Ranks on a Ray cluster of this machine alone, in a process of their own, since Ray is of a process."""

import json
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from conftest import Pair

from parlay import LLM, SamplingParams

pytestmark = pytest.mark.processes

PARAMS = {"temperature": 0.8, "seed": 3, "max_tokens": 12, "ignore_eos": True}
# One cluster for all tests: it and its actors take long to start.
SCRIPT = f"""
import json, sys
import ray
import parlay.engine.ray_ranks
from parlay import LLM, ParlayError, SamplingParams

def make(size):
    return LLM(sys.argv[1], tensor_parallel_size=size, distributed_executor_backend="ray", max_model_len=64)

def generate(llm):
    return llm.generate([[1, 2, 3]], SamplingParams(**{PARAMS!r}))[0].outputs[0].token_ids

def complaint(work):
    try:
        return work()
    except ParlayError as error:
        return type(error).__name__, str(error)

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", _temp_dir=sys.argv[2])
llm = make(2)
said = {{"tokens": generate(llm), "numerics": llm.engine.numerics_id}}
(actor,) = llm.engine.ranks._actors
ray.kill(actor)
said["killed"] = complaint(lambda: generate(llm))
parlay.engine.ray_ranks._ROOM = 1.0
said["no room"] = complaint(lambda: make(3))
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(models: dict[str, Pair]) -> dict[str, Any]:
    """What came of ranks that answered, of one that was killed, and of more than there are processors for."""
    with TemporaryDirectory(prefix="r", dir="/tmp") as folder:  # short enough for the names of Ray's sockets
        command = [sys.executable, "-c", SCRIPT, str(models["float32"].target), folder]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=480, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_same_tokens(models: dict[str, Pair], said: dict[str, Any]) -> None:
    llm = LLM(str(models["float32"].target), max_model_len=64)
    (output,) = llm.generate([[1, 2, 3]], SamplingParams(**PARAMS), use_tqdm=False)
    assert (said["tokens"], said["numerics"]) == (list(output.outputs[0].token_ids), llm.engine.numerics_id)


@pytest.mark.parametrize(
    ("case", "kind", "words"),
    [
        ("killed", "RankError", "start the engine again"),
        ("no room", "ConfigError", "no room for 3 ranks: each needs a processor"),
    ],
)
def test_what_is_said(said: dict[str, Any], case: str, kind: str, words: str) -> None:
    assert said[case][0] == kind
    assert words in said[case][1]
