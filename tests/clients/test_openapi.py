"""schemathesis sends what the server's own OpenAPI document allows, and what it forbids, for a while."""

import os
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from asking import random_seed
from served import NGRAM, Served

from parlay import LLM, SamplingParams

KEY = "a-key-for-fuzzing"
# Left out: positive_data_acceptance, since JSON Schema cannot say what of a body depends on the model or on another
# field, and ensure_resource_availability and use_after_free, which need links between operations.
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,missing_required_header,unsupported_method,"
    "allow_header_conformance,ignored_auth"
)


def fuzz(seconds: int, seed: int, folder: Path) -> None:
    with Served("--speculative-config", NGRAM, keys=KEY) as served:
        print(f"schemathesis for {seconds} s, PARLAY_TEST_SEED={seed}")
        tool = Path(sys.executable).with_name("schemathesis")
        command = [str(tool), "--config-file", str(folder / "none.toml"), "run", f"{served.url}/openapi.json"]
        command += ["--header", f"Authorization: Bearer {KEY}", "--checks", CHECKS, "--max-time", str(seconds)]
        command += ["--seed", str(seed), "--request-timeout", "30", "--no-shrink", "--continue-on-failure"]
        command += ["--generation-database", "none", "--no-color", "--warnings", "off"]
        (folder / "none.toml").write_text("")
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=seconds + 90)
        assert ran.returncode == 0, ran.stdout + ran.stderr + served.tail()
        log = "".join(served.log)
        assert "failed inside the server" not in log
        assert "Traceback" not in log
        # Some requests were more than refused.
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"):
            assert any(f'"path":"{path}","status":200' in line for line in served.log), path
        assert any('"stream":true' in line and '"status":200' in line for line in served.log)
        with openai.OpenAI(base_url=served.url + "/v1", api_key=KEY, max_retries=0) as client:
            made = client.completions.create(model="tiny-code", prompt="def f(", max_tokens=20, temperature=0)
    (output,) = LLM("tiny-code", speculative_config=None).generate(
        "def f(", SamplingParams(max_tokens=20, temperature=0)
    )
    assert made.choices[0].text == output.outputs[0].text


@pytest.mark.clients
def test_the_document(tmp_path: Path) -> None:
    fuzz(int(os.environ.get("PARLAY_TEST_SECONDS") or 60), int(os.environ.get("PARLAY_TEST_SEED") or 1), tmp_path)


@pytest.mark.soak
def test_the_document_for_longer(tmp_path: Path) -> None:
    fuzz(300, random_seed(), tmp_path)
