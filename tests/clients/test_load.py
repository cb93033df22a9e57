"""Load by guidellm, which measures any OpenAI-compatible server, in its own environment."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from served import Served

pytestmark = pytest.mark.clients
pytest_plugins = ["servers"]


def test_guidellm(server: Served, tools: Path, tmp_path: Path) -> None:
    """Every request is answered with as many tokens as it is to have, and as a stream."""
    tokenizer = Path(__file__).parents[2] / "src" / "parlay" / "assets" / "tiny-code"
    output = tmp_path / "load.json"
    command = [str(tools / "load" / "bin" / "guidellm"), "run", "--disable-console-interactive"]
    command += ["--backend", f"kind=openai_http,target={server.url},request_format=/v1/completions"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}"]
    command += ["--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16"]
    command += ["--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=12"]
    command += ["--output", f"kind=json,path={output}"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (benchmark,) = json.loads(output.read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    assert metrics["request_totals"] == {"successful": 12, "errored": 0, "incomplete": 0, "total": 12}
    assert all(
        one["prompt_tokens"] == 32 and one["output_tokens"] == 16 for one in benchmark["requests"]["successful"]
    )
    assert 0 < metrics["time_to_first_token_ms"]["successful"]["median"] < 60_000
