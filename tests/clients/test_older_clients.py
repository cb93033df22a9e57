"""Clients that need another release of OpenAI's library than the rest: their script runs in its own environment."""

import os
import subprocess
from pathlib import Path

import pytest
from served import Served

pytestmark = pytest.mark.clients
pytest_plugins = ["servers"]

SCRIPT = Path(__file__).parent / "older" / "structured.py"


def test_instructor_and_llama_index(server: Served, tools: Path) -> None:
    python = tools / "older" / "bin" / "python"
    command = [str(python), "-W", "ignore", str(SCRIPT)]
    environment = {**os.environ, "PARLAY_URL": server.url}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "LlamaIndex tools" in ran.stdout
