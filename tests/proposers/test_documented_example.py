"""The proposer of docs/adding-a-proposer.md, put where it says: it serves, and conformance accepts it."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import parlay.proposers.methods
from parlay import LLM, SamplingParams
from parlay.proposers.select import proposers

DOCUMENT = Path(__file__).parents[2] / "docs" / "adding-a-proposer.md"


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Any:
    code = re.search(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert code is not None
    module = types.ModuleType("parlay.proposers.methods.echo")
    monkeypatch.setitem(sys.modules, "parlay.proposers.methods.echo", module)
    exec(compile(code[1], "echo.py", "exec"), module.__dict__)
    monkeypatch.setattr(parlay.proposers.methods, "echo", module, raising=False)
    names = [*proposers.names(), "echo"]
    monkeypatch.setattr(proposers, "names", lambda: names)
    return module


def test_it_serves(echo: Any) -> None:
    llm = LLM("tiny-code", speculative_config={"method": "echo", "repeats": 3, "lengths": "fixed"})
    prompt, params = "-" * 40, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    (found,) = llm.generate(prompt, params)
    (expected,) = LLM("tiny-code", speculative_config=None).generate(prompt, params)
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    assert found.outputs[0].metrics.accepted > 0
    assert "echo" in found.outputs[0].sources
