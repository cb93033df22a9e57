"""What a checkpoint is for is found out; a method that it is not for is refused, saying what it is."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Pair
from heads import mlp_config, random_medusa, random_mlp, write_head, write_medusa
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from parlay import LLM, ConfigError, ModelError
from parlay.checkpoints import detect as module
from parlay.checkpoints.detect import detect
from parlay.checkpoints.find import ASSETS
from parlay.config import SpeculativeConfig
from parlay.proposers.select import embedded_configs, embedded_options, proposers, resolve_method

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def layer(prefix: str, inputs: int, width: int = 8) -> dict[str, Tensor]:
    columns = {"q": inputs, "k": inputs, "v": inputs, "o": width}
    return {f"{prefix}self_attn.{x}_proj.weight": torch.zeros(width, n) for x, n in columns.items()}


def eagle(**more: Tensor) -> dict[str, Tensor]:
    return {
        "embed_tokens.weight": torch.zeros(9, 8),
        "fc.weight": torch.zeros(8, 16),
        "layers.0.post_attention_layernorm.weight": torch.zeros(8),
        **layer("layers.0.", 8),
        **more,
    }


def eagle3(prefix: str = "midlayer.", **more: Tensor) -> dict[str, Tensor]:
    return {"fc.weight": torch.zeros(8, 24), "norm.weight": torch.zeros(8), **layer(prefix, 16), **more}


SPECULATORS = {"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"]}
LSTM = {"forget_proj.0.weight": torch.zeros(8, 8), "forget_emb.0.weight": torch.zeros(9, 8)}
VLLMS = {"blocks.0.layers.0.weight": torch.zeros(8, 8), "lm_heads.0.weight": torch.zeros(9, 8)}

# config, tensors, file
KINDS: dict[str, list[tuple[dict[str, Any], dict[str, Tensor], str]]] = {
    "eagle": [
        (LLAMA, eagle(), ""),
        (LLAMA, eagle(), "pytorch_model.bin"),
        (LLAMA, eagle(**{"fc.bias": torch.zeros(8)}), ""),
        ({**LLAMA, "architectures": ["EagleLlamaForCausalLM"]}, eagle(), ""),
        ({"speculators_model_type": "eagle"}, {}, ""),
    ],
    "eagle3": [
        (LLAMA, eagle3(), "pytorch_model.bin"),
        (LLAMA, eagle3("layers.0."), ""),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, eagle3(d2t=torch.zeros(4).long()), ""),
        ({**LLAMA, "pard_token": 5, "draft_vocab_size": 4}, eagle3(d2t=torch.zeros(4).long()), ""),
        ({}, {"d2t": torch.zeros(4).long()}, ""),
        (SPECULATORS, {}, ""),
        ({"speculators_config": {"algorithm": "eagle3"}}, eagle(), ""),
    ],
    "medusa": [
        ({"medusa_num_heads": 2}, random_medusa(hidden=8, vocab=9), "medusa_lm_head.pt"),
        ({}, random_medusa(hidden=8, outputs=False), "medusa_lm_head.safetensors"),
        ({"medusa_num_heads": 2}, {}, ""),
        ({"model_type": "medusa"}, {}, ""),
        ({"architectures": ["MedusaModel"]}, {}, ""),
        ({}, VLLMS, ""),
    ],
    "mlp_speculator": [
        (mlp_config(), {}, ""),
        ({"model_type": "mlp_speculator"}, {}, ""),
        ({}, random_mlp(mlp_config(vocab_size=9)), ""),
        ({}, random_mlp(mlp_config(vocab_size=9)), "pytorch_model.bin"),
    ],
    "arctic": [
        ({"architectures": ["ArcticMLPSpeculatorPreTrainedModel"]}, {}, ""),
        ({"architectures": ["ArcticLSTMSpeculatorPreTrainedModel"]}, {}, ""),
        ({"architectures": ["MLPVariantSpeculatorPreTrainedModel"], "model_type": "mlp_speculator"}, {}, ""),
        ({}, LSTM, "pytorch_model.bin"),
    ],
    "dflash": [
        ({"architectures": ["DFlashDraftModel"]}, eagle3("layers.0."), ""),
        ({"architectures": ["MuseGlimmerAssistantModel"]}, {}, ""),
        ({"speculators_model_type": "dflash", "architectures": ["DFlashSpeculator"]}, {}, ""),
    ],
    "dflash2": [
        ({"architectures": ["DFlash2DraftModel"]}, {}, ""),
        ({"speculators_model_type": "dflash2"}, {}, ""),
    ],
    "dspark": [
        ({"architectures": ["Qwen3DSparkModel"]}, {}, ""),
        ({"speculators_model_type": "dspark"}, {}, ""),
    ],
    "peagle": [
        ({"speculators_model_type": "peagle"}, {}, ""),
        ({"architectures": ["PeagleLlamaForCausalLM"], "pard_token": 5}, eagle3(), ""),
    ],
    "pard": [
        ({**LLAMA, "pard_token": 5}, {}, ""),
        ({"architectures": ["Qwen2ForCausalLM"], "ptd_token_id": 5, "spd_type": "pard"}, {}, ""),
    ],
    "draft_model": [
        (LLAMA, {}, ""),
        ({"architectures": ["GPT2LMHeadModel"]}, {}, ""),
        ({"architectures": ["ArcticForCausalLM"], "model_type": "arctic"}, {}, ""),
        (LLAMA, {f"model.{name}": tensor for name, tensor in eagle().items()}, ""),
    ],
}
CASES = [(kind, i) for kind, cases in KINDS.items() for i in range(len(cases))]
ALSO = {"peagle": "eagle3", "pard": "draft_model"}  # by which vLLM names them
SERVED = {
    "dflash",
    "pard",
    "peagle",
    "dflash2",
    "dspark",
    "draft_model",
    "eagle",
    "eagle3",
    "medusa",
    "mlp_speculator",
}


@pytest.mark.parametrize(("kind", "number"), CASES)
def test_kinds(weightless: str, tmp_path: Path, kind: str, number: int) -> None:
    path = write_head(tmp_path / "head", *KINDS[kind][number])
    assert detect(path) == kind
    if kind in SERVED:
        assert resolve_method(SpeculativeConfig.parse({"model": str(path)})).method == kind
    else:
        for method in ({}, {"method": "draft_model"}, {"method": "auto"}):
            with pytest.raises(ModelError, match=rf"head' is a draft head for the method '{kind}', which is not"):
                LLM(weightless, speculative_config={"model": str(path), **method})


@pytest.mark.parametrize("method", sorted(SERVED))
@pytest.mark.parametrize("kind", sorted(SERVED))
def test_a_wrong_method(weightless: str, tmp_path: Path, kind: str, method: str) -> None:
    path = write_head(tmp_path / "head", *KINDS[kind][0])
    config = SpeculativeConfig.parse({"method": method, "model": str(path)})
    if method == kind:
        assert resolve_method(config) is config
        return
    if method == ALSO.get(kind):
        assert resolve_method(config).method == kind
        return
    with pytest.raises(ConfigError, match=rf"is a checkpoint for the method '{kind}', not '{method}'; correct"):
        LLM(weightless, speculative_config={"method": method, "model": str(path)})


def test_nothing_tells(tmp_path: Path) -> None:
    """Who is named explicitly says what is missing; else it must be a language model."""
    path = write_head(tmp_path / "head", {}, {"x": torch.zeros(1)})
    assert detect(path) is None
    assert resolve_method(SpeculativeConfig.parse({"model": str(path)})).method == "draft_model"
    assert resolve_method(SpeculativeConfig.parse({"model": str(path), "method": "medusa"})).method == "medusa"


def test_files_that_cannot_be_read_tell_nothing(tmp_path: Path) -> None:
    path = write_medusa(tmp_path / "head", random_medusa())
    (path / "config.json").unlink()
    assert detect(path) == "medusa"
    (path / "medusa_lm_head.pt").write_bytes(b"nothing")
    assert detect(path) is None
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        LLM("tiny-code", speculative_config={"method": "medusa", "model": str(path)})


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_damage_is_not_taken_for_another_method(weightless: str, tmp_path: Path, file: str) -> None:
    """A head may name the class of an ordinary language model."""
    path = write_head(tmp_path / "head", LLAMA, eagle(), file)
    (path / file).write_bytes((path / file).read_bytes()[:100])
    for method in ({}, {"method": "eagle"}):
        with pytest.raises(ModelError, match=f"{file} cannot be read|lacks the key"):
            LLM(weightless, speculative_config={"model": str(path), **method})


@pytest.mark.parametrize("method", [*sorted(SERVED), "auto"])
def test_what_is_wrong_with_options_is_said_first(method: str, models: dict[str, Pair]) -> None:
    if method != "auto":  # which guesses from tokens alone
        with pytest.raises(ConfigError, match="'model' is required"):
            LLM(str(models["float32"].target), speculative_config={"method": method})
    for options in ({"model": 3}, {"model": "x", "revision": 3}):
        with pytest.raises(ConfigError, match="option"):
            LLM("tiny-code", speculative_config={"method": method, **options})
    for name in ("medusa", "mlp_speculator", "draft_model"):
        with pytest.raises(ConfigError, match="did you mean 'revision'"):
            LLM("tiny-code", speculative_config={"method": name, "model": "nowhere", "revison": "v1"})
    with pytest.raises(ModelError, match="there is no model 'nowhere'"):
        LLM("tiny-code", speculative_config={"method": method, "model": "nowhere"})


def test_embedded_models_and_files(tmp_path: Path) -> None:
    assert detect(ASSETS / "tiny-code-draft") == "draft_model"
    file = tmp_path / "model.gguf"
    file.touch()
    assert detect(file) == "draft_model"


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa", "mlp-speculator"])
def test_a_head_given_as_the_target_is_named(tmp_path: Path, method: str) -> None:
    """With or without a tokenizer beside it."""
    found = method.replace("-", "_")
    with pytest.raises(ModelError, match=f"is a draft head for the method '{found}', no model by itself"):
        LLM(f"tiny-code-{method}")
    beside = shutil.copytree(ASSETS / f"tiny-code-{method}", tmp_path / "head")
    shutil.copy(ASSETS / "tiny-code" / "tokenizer.json", beside)
    with pytest.raises(ModelError, match=f"is a draft head for the method '{found}', no model by itself"):
        LLM(str(beside))


def test_a_damaged_head_is_named_by_its_config(tmp_path: Path) -> None:
    head = shutil.copytree(ASSETS / "tiny-code-eagle3", tmp_path / "head")
    weights = head / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        LLM("tiny-code", speculative_config={"model": str(head)})


@pytest.mark.parametrize("method", [None, "medusa", "draft_model"])
def test_a_file_of_a_checkpoint_is_not_the_checkpoint(method: str | None) -> None:
    file = ASSETS / "tiny-code-medusa" / "medusa_lm_head.safetensors"
    assert file.is_file()
    asked = {"model": str(file)} | ({"method": method} if method else {})
    with pytest.raises(ModelError, match="give the directory of the checkpoint"):
        resolve_method(SpeculativeConfig.parse(asked))


def test_methods_without_a_checkpoint_are_left_alone() -> None:
    for method in ("none", "ngram", "suffix"):
        config = SpeculativeConfig(method=method)
        assert resolve_method(config) is config


def test_what_has_no_weights_for_the_embedded_target_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {name for name in proposers.names() if embedded_options(name) is not None}
    assert set(embedded_configs()) == expected >= {"none", "ngram", "draft_model"}
    monkeypatch.setattr(proposers.load("ngram"), "EMBEDDED", None, raising=False)
    assert set(embedded_configs()) == expected - {"ngram"}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.sampled_from(["eagle3", "MedusaModel"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(
    ["architectures", "model_type", "speculators_model_type", "speculators_config", "medusa_num_heads", "algorithm"]
)
names = st.sampled_from(
    [name for cases in KINDS.values() for _, tensors, _ in cases for name in tensors] + ["", "x", "0.0.linear.weight"]
)
shapes = st.lists(st.integers(0, 16), max_size=3).map(tuple)


@given(st.dictionaries(keys | st.text(max_size=6), values, max_size=4), st.dictionaries(names, shapes, max_size=6))
def test_any_config_and_any_tensors(raw: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> None:
    assert isinstance(module.announced(raw), str | None)
    assert isinstance(module._matching(raw, tensors), str | None)


@given(st.dictionaries(keys, values, max_size=4))
def test_any_config_in_a_file(tmp_path_factory: pytest.TempPathFactory, raw: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("any")
    try:
        (path / "config.json").write_text(json.dumps(raw))
        assert isinstance(detect(path), str | None)
    finally:
        shutil.rmtree(path)
