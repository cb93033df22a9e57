"""EleutherAI's lm-eval through `local-completions`: it scores and generates what the offline engine does."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from served import Served

from parlay import LLM, SamplingParams
from parlay.checkpoints.find import ASSETS

pytestmark = pytest.mark.clients
pytest_plugins = ["servers"]

TASKS = Path(__file__).parent / "tasks"
Samples = dict[str, list[dict[str, Any]]]


def evaluate(server: Served, folder: Path, *, speculative: bool, as_ids: bool) -> Samples:
    """Run lm-eval's command line; return its samples by task."""
    address = f"base_url={server.url}/v1/completions"
    tokenizer = f"tokenizer={ASSETS / 'tiny-code'},tokenizer_backend=huggingface,tokenized_requests={as_ids}"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"]
    command += ["--model_args", f"model=tiny-code,{address},{tokenizer},max_length=1024,num_concurrent=1"]
    command += ["--tasks", "parlay_choice", "parlay_finish", "--include_path", str(TASKS), "--batch_size", "4"]
    command += ["--log_samples", "--output_path", str(folder)]
    if not speculative:
        command += ["--gen_kwargs", '{"speculative": {"enabled": false}}']
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    ran = subprocess.run(
        command, cwd=TASKS, env=environment, capture_output=True, text=True, check=False, timeout=150
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: Samples = {}
    for file in folder.rglob("samples_*.jsonl"):
        task = "choice" if "parlay_choice" in file.name else "finish"
        found[task] = [json.loads(line) for line in file.read_text().splitlines()]
        found[task].sort(key=lambda sample: sample["doc_id"])
    return found


def score(llm: LLM, context: str, continuation: str) -> tuple[float, bool]:
    """Return the offline engine's log-probability of a continuation, and whether greedy decoding would write it."""
    ids = llm.engine.encode(context + continuation)
    start = len(llm.engine.encode(context))
    (output,) = llm.generate(context + continuation, SamplingParams(max_tokens=1, prompt_logprobs=1))
    assert output.prompt_logprobs is not None
    tables = list(zip(ids, output.prompt_logprobs, strict=True))[start:]
    known = [(table, table[token]) for token, table in tables if table is not None]
    return sum(own.logprob for _, own in known), all(own.rank == 1 for _, own in known)


def scores_of(sample: Mapping[str, Any]) -> list[tuple[float, bool]]:
    # One answer a request, one request a choice.
    return [(float(answer[0][0]), str(answer[0][1]) == "True") for answer in sample["resps"]]


@pytest.mark.parametrize("as_ids", [True, False], ids=["ids", "text"])
def test_lm_eval(server: Served, offline: LLM, tmp_path: Path, as_ids: bool) -> None:
    """Requests of token ids, speculating; requests of text, plain."""
    samples = evaluate(server, tmp_path, speculative=as_ids, as_ids=as_ids)
    assert len(samples["choice"]) == len((TASKS / "choice.jsonl").read_text().splitlines())
    for sample in samples["choice"]:
        doc = sample["doc"]
        assert scores_of(sample) == [score(offline, doc["context"], choice) for choice in doc["choices"]]
    params = SamplingParams(temperature=0, max_tokens=48, stop=["\n\n", "def ", "<|endoftext|>"])
    assert len(samples["finish"]) == len((TASKS / "finish.jsonl").read_text().splitlines())
    for sample in samples["finish"]:
        (output,) = offline.generate(sample["doc"]["context"], params)
        assert sample["resps"][0][0] == output.outputs[0].text
