"""Ranks on a Ray cluster of this machine alone; each test has a process, since Ray is of a process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import Pair

BEGIN = """
import json, os, signal, sys
import ray
from parlay import LLM, ParlayError, SamplingParams

def make(processors, size):
    ray.init(num_cpus=processors, include_dashboard=False, logging_level="ERROR", _temp_dir=sys.argv[2])
    return LLM(sys.argv[1], tensor_parallel_size=size, distributed_executor_backend="ray", max_model_len=64)

params = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
"""
TOKENS = """
llm = make(3, 3)
print(json.dumps([llm.generate([[1, 2, 3]], params)[0].outputs[0].token_ids, llm.engine.numerics_id]))
llm.engine.close()
"""
KILLED = """
llm = make(2, 2)
(actor,) = llm.engine.ranks._actors
ray.kill(actor)
try:
    llm.generate([[1, 2, 3]], params)
except ParlayError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
NO_ROOM = """
import parlay.engine.ray_ranks
parlay.engine.ray_ranks._ROOM = 1.0
try:
    make(2, 3)
except ParlayError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def said(script: str, target: Path, folder: Path) -> list[object]:
    """Return what a script prints at last."""
    command = [sys.executable, "-c", BEGIN + script, str(target), str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    found: list[object] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for the names of Ray's sockets."""
    with TemporaryDirectory(prefix="r", dir="/tmp") as path:
        yield Path(path)


def test_same_tokens(models: dict[str, Pair], folder: Path) -> None:
    from parlay import LLM, SamplingParams

    target = models["float32"].target
    llm = LLM(str(target), max_model_len=64)
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
    (output,) = llm.generate([[1, 2, 3]], params, use_tqdm=False)
    assert said(TOKENS, target, folder) == [list(output.outputs[0].token_ids), llm.engine.numerics_id]


def test_an_actor_that_is_killed_ends_the_engine(models: dict[str, Pair], folder: Path) -> None:
    kind, message = said(KILLED, models["float32"].target, folder)
    assert kind == "RankError"
    assert "start the engine again" in str(message)


def test_a_cluster_without_room(models: dict[str, Pair], folder: Path) -> None:
    kind, message = said(NO_ROOM, models["float32"].target, folder)
    assert kind == "ConfigError"
    assert "no room for 3 ranks: each needs a processor" in str(message)
