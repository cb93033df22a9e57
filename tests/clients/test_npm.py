"""Clients from npm: OpenAI's, whose answers are compared with the offline engine's, and the AI SDK."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from served import KEYS, Served

from parlay import LLM, SamplingParams

pytestmark = pytest.mark.clients
pytest_plugins = ["servers"]

PROMPT = "def fibonacci(n):\n    if n < 2:\n        return n\n    return"
MESSAGES: Any = [{"role": "user", "content": "A class for a stack, please."}]
COMPLETIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 48},
    "several": {"temperature": 0.8, "n": 3, "seed": 1, "max_tokens": 20, "stop": ["\n\n"]},
    "ours": {"temperature": 0.9, "seed": 2, "max_tokens": 30, "top_k": 20, "min_p": 0.02, "logit_bias": {"95": 4}},
}
# As client.mjs describes it.
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CHATS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 40, "stop": [" "]},
    "several": {"temperature": 0.7, "n": 2, "seed": 3, "max_tokens": 30},
}


def test_npm(server: Served, keyed: Served, offline: LLM, tools: Path) -> None:
    ids = offline.engine.encode(PROMPT)
    (scored,) = offline.generate(PROMPT, SamplingParams(max_tokens=1, prompt_logprobs=1))
    assert scored.prompt_logprobs is not None
    completions = {name: offline.generate(PROMPT, SamplingParams(**asked)) for name, asked in COMPLETIONS.items()}
    chats = {name: offline.chat(MESSAGES, SamplingParams(**asked)) for name, asked in CHATS.items()}
    (told,) = offline.chat(MESSAGES, SamplingParams(**CHATS["greedy"]), tools=[WEATHER])
    expected = {
        "told": told.outputs[0].text,
        "prompt": PROMPT,
        "ids": ids,
        "messages": MESSAGES,
        "prompt_logprobs": [t and t[i].logprob for i, t in zip(ids, scored.prompt_logprobs, strict=True)],
        "completions": {
            name: {"asked": asked, "texts": [one.text for one in completions[name][0].outputs]}
            for name, asked in COMPLETIONS.items()
        },
        "chats": {
            name: {"asked": asked, "texts": [one.text for one in chats[name][0].outputs]}
            for name, asked in CHATS.items()
        },
    }
    environment = {
        **os.environ,
        "CLIENTS": str(tools),
        "PARLAY_URL": server.url,
        "PARLAY_KEYED_URL": keyed.url,
        "PARLAY_KEY": KEYS["alice"],
        "PARLAY_EXPECTED": json.dumps(expected),
    }
    run("client.mjs", environment)


def test_ai_sdk(server: Served, tools: Path) -> None:
    run("ai_sdk.mjs", {**os.environ, "CLIENTS": str(tools), "PARLAY_URL": server.url})


def run(script: str, environment: dict[str, str]) -> None:
    command = ["node", "--test", str(Path(__file__).parent / "npm" / script)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)
    assert ran.returncode == 0, ran.stdout + ran.stderr
