"""The family of docs/adding-a-family.md, put where it says: its logits are those that its docstring promises."""

import json
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from families import reference, write_family
from pieces import logits_in_pieces, make_runner, random_tokens

import parlay.models.families
from parlay import ModelError
from parlay.models.select import describe_model, families

DOCUMENT = Path(__file__).parents[2] / "docs" / "adding-a-family.md"
CAP = 2.0


def test_documented_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert code is not None
    module = types.ModuleType("parlay.models.families.smoothlm")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code[1], "smoothlm.py", "exec"), module.__dict__)
    monkeypatch.setattr(parlay.models.families, "smoothlm", module, raising=False)
    names = [*families.names(), "smoothlm"]
    monkeypatch.setattr(families, "names", lambda: names)
    path, tokens = write_family(tmp_path / "model", "qwen3"), random_tokens(40)
    without_cap = reference(path, tokens)
    config = json.loads((path / "config.json").read_text())
    config |= {"architectures": ["SmoothLMForCausalLM"], "final_logit_softcapping": CAP}
    (path / "config.json").write_text(json.dumps(config))
    found = logits_in_pieces(make_runner(path), tokens, [7, 20])
    torch.testing.assert_close(found, CAP * torch.tanh(without_cap / CAP), atol=1e-4, rtol=0)
    (path / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    with pytest.raises(ModelError, match="hidden_act='gelu' is not supported"):
        describe_model(str(path))
