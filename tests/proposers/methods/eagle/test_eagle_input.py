"""Bad heads of EAGLE's kinds: one clear error each, before the target's weights are read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_llama
from conftest import MakeLLM
from eagles import eagle_config, random_eagle, random_eagle3, write
from test_eagle import speculators
from torch import Tensor

from parlay import ConfigError, ModelError
from parlay.engine import load as module
from parlay.models.select import describe_model
from parlay.proposers.base import TargetInfo
from parlay.proposers.methods.eagle import proposer as eagle
from parlay.proposers.methods.eagle3 import proposer as eagle3

Made = tuple[dict[str, Any], dict[str, Tensor]]


def _eagle(*drop: str, add: dict[str, Tensor] | None = None, **changes: Any) -> Made:
    config = {key: value for key, value in eagle_config(**changes).items() if key not in drop}
    shape = {**eagle_config(), **{k: v for k, v in changes.items() if k in ("hidden_size", "vocab_size")}}
    tensors = random_eagle(shape, embedding="vocab_size" in changes) | (add or {})
    return config, {name: t for name, t in tensors.items() if name not in drop}


def _eagle3(*drop: str, add: dict[str, Tensor] | None = None, states: int = 192, **changes: Any) -> Made:
    config = {key: value for key, value in eagle_config(**changes).items() if key not in drop}
    tensors = random_eagle3(eagle_config(), states=states, ids=range(200)) | (add or {})
    return {"draft_vocab_size": 200, **config}, {name: t for name, t in tensors.items() if name not in drop}


def _speculators(**changes: Any) -> Made:
    return speculators(**changes), random_eagle3(eagle_config(), layer="layers.0.")


NAN = torch.full((64,), torch.nan)
BAD: dict[str, tuple[Callable[[], Made], str]] = {
    "eagle: width": (
        lambda: _eagle(hidden_size=32),
        "width 32 but the target .* has 64; the head was made for another",
    ),
    "eagle: vocabulary": (lambda: _eagle(vocab_size=99), "vocabulary of 99 but the target .* has 257"),
    "eagle: missing": (
        lambda: _eagle("layers.0.mlp.up_proj.weight"),
        "lacks the tensor 'layers.0.mlp.up_proj.weight'",
    ),
    "eagle: extra": (
        lambda: _eagle(add={"embed_layernorm.weight": NAN}),
        "does not explain: 'embed_layernorm.weight'",
    ),
    "eagle: shape": (lambda: _eagle(intermediate_size=81), r"has shape \[80, 64\], but the config says \[81, 64\]"),
    "eagle: key": (lambda: _eagle("num_attention_heads"), "lacks the key 'num_attention_heads'"),
    "eagle: speculators": (
        lambda: ({**speculators(speculators_model_type="eagle"), "speculators_config": {}}, _eagle()[1]),
        "head in the format of speculators, of which only EAGLE-3 is supported",
    ),
    "eagle: activation": (lambda: _eagle(hidden_act="gelu"), "hidden_act='gelu' is not supported"),
    "eagle: heads": (lambda: _eagle(head_dim=12), "head_dim 12 is not supported"),
    "eagle3: width": (lambda: _eagle3(target_hidden_size=128), "width 128 but the target"),
    "eagle3: width of states": (lambda: _eagle3(states=96), "width 32 but the target"),
    "eagle3: other states": (lambda: _eagle3(states=100), r"'fc.weight' has shape \[64, 100\]"),
    "eagle3: vocabulary": (lambda: _eagle3(vocab_size=99), "vocabulary of 99 but the target .* has 257"),
    "eagle3: layers": (
        lambda: _eagle3(eagle_aux_hidden_state_layer_ids=[1, 2, 9]),
        "after 9 layers, but that has only 3; the head was made for another target",
    ),
    "eagle3: layers inside": (
        lambda: _eagle3(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}),
        "after 4 layers, but that has only 3",
    ),
    "eagle3: no layers": (lambda: _eagle3(eagle_aux_hidden_state_layer_ids="2"), "must list whole numbers"),
    "eagle3: only the last state": (
        lambda: _eagle3(eagle_config={"use_aux_hidden_state": False}),
        "use_aux_hidden_state=False is not supported",
    ),
    "eagle3: no object": (lambda: _eagle3(eagle_config=[1]), "eagle_config must be an object"),
    "eagle3: missing": (
        lambda: _eagle3("midlayer.hidden_norm.weight"),
        "lacks the tensor 'midlayer.hidden_norm.weight'",
    ),
    "eagle3: extra": (lambda: _eagle3(add={"mask_hidden": NAN}), "does not explain: 'mask_hidden'"),
    "eagle3: no offsets": (lambda: _eagle3("d2t"), "lacks the tensor 'd2t'"),
    "eagle3: output": (
        lambda: _eagle3(draft_vocab_size=128),
        r"'d2t' has shape \[200\]|'lm_head.weight' has shape \[200",
    ),
    "eagle3: key": (lambda: _eagle3("hidden_size"), "lacks the key 'hidden_size'"),
    "eagle3: norm": (lambda: _eagle3(norm_before_fc=True), "lacks the tensor 'input_norm.weight'"),
    "eagle3: flag": (lambda: _eagle3(norm_output="yes"), "norm_output must be true or false"),
    "speculators: layers": (lambda: _speculators(transformer_layer_config=[1]), "must be an object"),
    "speculators: norms": (lambda: _speculators(fc_norm=True), "lacks the tensor 'fc_norm.0.weight'"),
}


@pytest.mark.parametrize("name", BAD)
def test_heads_that_do_not_fit(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    make, match = BAD[name]
    path = write(tmp_path / "head", *make())
    monkeypatch.setattr(module, "load_model", lambda *given: pytest.fail("the target was read"))
    method = "eagle" if name.startswith("eagle:") else "eagle3"
    with pytest.raises(ModelError, match=match):
        make_llm(speculative_config={"method": method, "model": str(path)})


LATE: dict[str, tuple[Callable[[], Made], str]] = {
    "eagle: no number": (
        lambda: _eagle(add={"fc.bias": NAN}),
        "'fc.bias' holds values that are infinite or not numbers",
    ),
    "eagle3: no number": (lambda: _eagle3(add={"norm.weight": NAN}), "'norm.weight' holds values"),
    "eagle3: offsets": (
        lambda: _eagle3(add={"d2t": torch.full((200,), 99)}),
        "d2t maps to token ids beyond the target's 257",
    ),
    "eagle3: offsets below": (lambda: _eagle3(add={"d2t": torch.full((200,), -1)}), "d2t maps to token ids beyond"),
}


@pytest.mark.parametrize("name", LATE)
def test_damaged_weights(make_llm: MakeLLM, tmp_path: Path, name: str) -> None:
    make, match = LATE[name]
    with pytest.raises(ModelError, match=match):
        make_llm(speculative_config={"model": str(write(tmp_path / "head", *make()))})


def test_the_wrong_method(make_llm: MakeLLM, tmp_path: Path) -> None:
    one, three = write(tmp_path / "one", *_eagle()), write(tmp_path / "three", *_eagle3())
    with pytest.raises(ConfigError, match="'eagle', not 'eagle3'"):
        make_llm(speculative_config={"method": "eagle3", "model": str(one)})
    with pytest.raises(ConfigError, match="'eagle3', not 'eagle'"):
        make_llm(speculative_config={"method": "eagle", "model": str(three)})


def test_an_empty_list_of_layers_means_the_usual_ones(tmp_path: Path) -> None:
    """As in what ModelOpt exports."""
    target = describe_model(str(write_llama(tmp_path / "target", num_hidden_layers=8)))
    for i, given in enumerate(({}, {"eagle_aux_hidden_state_layer_ids": [], "use_aux_hidden_state": True})):
        head = write(tmp_path / str(i), *_eagle3(eagle_config=given))
        assert eagle3.Proposer(eagle3.Options(str(head)), TargetInfo(target, torch.float32, 128)).taps == (2, 4, 5)


def test_a_target_with_too_few_layers(tmp_path: Path) -> None:
    target = write_llama(tmp_path / "target", num_hidden_layers=2)
    head = write(tmp_path / "head", *_eagle3())
    with pytest.raises(ModelError, match="a target of 2 layers is too small"):
        eagle3.Proposer(eagle3.Options(str(head)), TargetInfo(describe_model(str(target)), torch.float32, 128))


def test_targets_that_lend_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Such as those that a class of another library computes."""
    for file in ("feature_head", "block_config"):
        monkeypatch.setattr(f"parlay.proposers.{file}.exposes_hidden_states", lambda config: False)
    info = TargetInfo(describe_model(str(write_llama(tmp_path / "target"))), torch.float32, 128)
    with pytest.raises(ModelError, match="reads states between the layers of its target"):
        eagle3.Proposer(eagle3.Options(str(write(tmp_path / "three", *_eagle3()))), info)
    with pytest.raises(
        ModelError, match=r"has no embed_tokens.weight, and the architecture of the target .* cannot share its own"
    ):
        eagle.Proposer(eagle.Options(str(write(tmp_path / "one", *_eagle()))), info)
    own = write(tmp_path / "own", eagle_config(), random_eagle(eagle_config(), embedding=True))
    assert eagle.Proposer(eagle.Options(str(own)), info).taps == ()
