"""A model's `config.json`, or what stands for it in a GGUF file, completed by the files beside it."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from parlay.checkpoints.files import class_names, read_json
from parlay.checkpoints.gguf.config import read_gguf_config
from parlay.checkpoints.headers import is_for_mlx, stored_dtype
from parlay.checkpoints.quantised.config import read_quantisation
from parlay.errors import ModelError, shown

TOWER = "text model of a multimodal one"
FOR_MLX = "written for MLX"  # as its weights say
_MULTIMODAL = "ForConditionalGeneration"
_OF_BOTH = (
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "pad_token_id",
    "quantization",
    "quantization_config",
    "tie_word_embeddings",
    "torch_dtype",
)


class _TextModel(NamedTuple):
    """What a text model is beneath a name of its own, and what its config means where it lacks a key."""

    architecture: str
    defaults: Mapping[str, Any] = MappingProxyType({})


# Their positions have one coordinate where there are no images.
_TEXT_MODELS = {
    "glm4v_text": _TextModel("Glm4ForCausalLM", {"attention_bias": True}),
    "glm4v_moe_text": _TextModel("Glm4MoeForCausalLM", {"attention_bias": True}),
    "qwen2_5_omni_text": _TextModel("Qwen2ForCausalLM"),
    "qwen2_vl_text": _TextModel("Qwen2ForCausalLM"),
    "qwen2_5_vl_text": _TextModel("Qwen2ForCausalLM"),
    "qwen3_omni_moe_text": _TextModel("Qwen3MoeForCausalLM", {"norm_topk_prob": True}),
    "qwen3_vl_text": _TextModel("Qwen3ForCausalLM"),
    "qwen3_vl_moe_text": _TextModel("Qwen3MoeForCausalLM", {"norm_topk_prob": True}),
    "qwen3_5_text": _TextModel("Qwen3_5ForCausalLM"),
    "qwen3_5_moe_text": _TextModel("Qwen3_5MoeForCausalLM"),
    "step3p7": _TextModel("Step3p5ForCausalLM"),
}


def read_raw(path: Path) -> dict[str, Any]:
    """Return the content of a model's `config.json`, or what stands for it in a GGUF file.

    Raises:
        ModelError: it is missing or unreadable, or the weights are quantised in a way that is not supported.
    """
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelError(_no_model(path))
    raw = read_gguf_config(path) if path.is_file() else text_model(read_json(path / "config.json"))
    generation = path / "generation_config.json"
    if generation.is_file():
        ends = read_json(generation).get("eos_token_id")
        try:
            raw = {**raw, "eos_token_id": ends} if read_ids(ends) else raw
        except TypeError as error:
            raise ModelError(f"{generation}: {error}") from None
    read_quantisation(path, raw)
    if not (raw.get("dtype") or raw.get("torch_dtype")) and (found := stored_dtype(path)):
        raw = {**raw, "dtype": found}  # as transformers does where a config does not say
    return {**raw, FOR_MLX: True} if is_for_mlx(path) else raw


def text_model(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the text model in a multimodal model's `config.json`; any other is returned as it is.

    It is marked by the key `TOWER`. Keys that may stand in either config, such as `eos_token_id`, are taken from the
    outer one where the inner one has none. Files of Qwen2-VL and 2.5-VL have the text model's keys in the outer one;
    Qwen's Omni models are a `thinker`, whose text model it is, and others that speak.
    """
    thinker = raw.get("thinker_config")
    if isinstance(thinker, dict):
        shared = {key: raw[key] for key in _OF_BOTH if raw.get(key) is not None}
        return text_model({**shared, **thinker, "architectures": [f"Thinker{_MULTIMODAL}"]})
    kind = str(raw.get("model_type") or "")
    flat = "vision_config" in raw and f"{kind}_text" in _TEXT_MODELS
    inner = raw.get("text_config", raw if flat else None)
    if not isinstance(inner, dict) or not architecture_of(raw).endswith(_MULTIMODAL):
        return raw
    kind = f"{kind}_text" if inner is raw else str(inner.get("model_type") or kind)
    outer = {key: raw[key] for key in _OF_BOTH if raw.get(key) is not None and inner.get(key) is None}
    own = architecture_of(inner)  # the inner config's own word, such as Kimi K2.5's for DeepSeek-V3's class
    named = own if inner is not raw and own.endswith("ForCausalLM") else architecture_of({"model_type": kind})
    known = _TEXT_MODELS.get(kind) or _TextModel(named)
    return {**known.defaults, **inner, **outer, "architectures": [known.architecture], TOWER: True}


def _no_model(path: Path) -> str:
    """Return why a directory without a `config.json` is no model."""
    if (path / "adapter_config.json").is_file():
        return f"{path} is an adapter (LoRA), which is not supported; merge it into its base model and save that"
    return f"{path / 'config.json'} does not exist; a model directory needs one"


def architecture_of(raw: Mapping[str, Any]) -> str:
    """Return the name of the class that a config is for; where it names none, of its model type's."""
    names = class_names(raw)
    if names and isinstance(raw.get("architectures"), list | str) and raw["architectures"]:
        return names[0]
    kind = "".join(part.capitalize() for part in names[0].removesuffix("_text").split("_")) if names else ""
    return f"{kind}ForCausalLM" if kind else "an unnamed architecture"


def read_ids(value: Any) -> tuple[int, ...]:
    """Return token ids that a config gives as one, several or none.

    Raises:
        TypeError: they are something else.
    """
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise TypeError(f"eos_token_id must be a token id or several, not {shown(value)}")
    return tuple(ids)
