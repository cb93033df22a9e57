"""What a `config.json` says of quantised layers; imports no torch, for the server's front reads configs too."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parlay.errors import ModelError, shown


@dataclass(frozen=True, slots=True)
class Scheme:
    """How some layers' numbers are stored.

    Attributes:
        bits: bits per number.
        packed: several numbers are in a word.
        group: inputs that share a scale, 0 for all of them.
        zeros: there are zero points.
        exponents: scales are powers of two.
    """

    bits: int
    packed: bool = False
    group: int = 0
    zeros: bool = False
    exponents: bool = False


@dataclass(frozen=True, slots=True)
class QuantisationConfig:
    """What a config says of its quantised layers.

    Attributes:
        path: path of the model, for errors.
        method: "awq", "gptq", "scaled" for weights with scales beside them, "codebook" for bitsandbytes' four bits,
            "mxfp4" for gpt-oss's experts, "mlx" for MLX.
        schemes: one or more, of which each layer's tensors must fit one. Groups and zero points of AWQ and GPTQ are
            known from tensors alone.
        shift: what is to be added to zero points.
        blocks: outputs and inputs of a block with a scale of its own, where the config says so.
        apart: the schemes of layers that the config names, where others have the first of `schemes`.
    """

    path: Path
    method: str
    schemes: tuple[Scheme, ...]
    shift: int = 0
    blocks: tuple[int, int] | None = None
    apart: Mapping[str, Scheme] = field(default_factory=dict)


def quantization_of(raw: Mapping[str, Any]) -> Any:
    """Return what a `config.json` says of quantised weights, under the keys of MLX and early llm-compressor too."""
    early, own = raw.get("compression_config"), raw.get("quantization")
    if _is_mlx(own):
        return own
    if not raw.get("quantization_config") and isinstance(early, dict) and "quant_method" in early:
        return early
    return raw.get("quantization_config")


def _is_mlx(config: object) -> bool:
    return isinstance(config, dict) and "quant_method" not in config and {"bits", "group_size"} <= config.keys()


def method_of(raw: Mapping[str, Any]) -> str | None:
    """Return who quantised the weights, if a `config.json` says so."""
    config = quantization_of(raw)
    if _is_mlx(config):
        return "mlx"
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    return None if method is None else str(method)


def read_quantisation(path: Path, raw: Mapping[str, Any]) -> QuantisationConfig | None:
    """Return how a model's linear layers are quantised, or None if they are not.

    Args:
        path: path of the model.
        raw: its `config.json`.

    Raises:
        ModelError: they are quantised in a way that is not supported.
    """
    config = quantization_of(raw)
    if not config:
        return None
    if not isinstance(config, dict):
        raise ModelError(f"{path}: quantization_config must be a mapping, not {shown(config)}")
    if _is_mlx(config):
        return _read_mlx(path, config)
    method = config.get("quant_method")
    if method in ("fp8", "fbgemm_fp8"):
        return _read_fp8(path, config)
    if method == "compressed-tensors":
        return _read_compressed(path, config)
    if method == "bitsandbytes":
        return _read_bitsandbytes(path, config)
    if method == "mxfp4":
        return QuantisationConfig(path, "mxfp4", (Scheme(4, packed=True),))
    if method == "auto-round":
        config = _as_packed(path, config)
        method = config["quant_method"]
    if method not in ("awq", "gptq"):
        raise ModelError(
            f"{path} holds weights quantised by {shown(method)}, which is not supported; awq, gptq, auto-round, fp8, "
            "compressed-tensors, bitsandbytes, mxfp4, MLX's and GGUF files are"
        )
    supported: dict[str, tuple[Any, ...]] = {"bits": (4,), "version": (None, "gemm")}
    if method == "gptq":
        supported = {"bits": (4, 8), "checkpoint_format": (None, "gptq", "gptq_v2")}
    for key, values in supported.items():
        value = config.get(key)
        if (value.lower() if isinstance(value, str) else value) not in values or isinstance(value, bool):
            choices = " or ".join(str(v) for v in values if v is not None)
            raise ModelError(
                f"{path}: quantization_config has {key}={shown(value)}; {method} is supported with {key}={choices}"
            )
    shift = int(method == "gptq" and config.get("checkpoint_format") != "gptq_v2")
    bits = dict.fromkeys((config["bits"], *_further_bits(path, config)))
    return QuantisationConfig(path, method, tuple(Scheme(b, packed=True) for b in bits), shift)


def _read_mlx(path: Path, config: Mapping[str, Any]) -> QuantisationConfig:
    """Return how MLX has stored weights: one scheme for most layers, and those of others by their names."""
    schemes = {name: _mlx_scheme(path, rule) for name, rule in config.items() if isinstance(rule, dict)}
    return QuantisationConfig(path, "mlx", (_mlx_scheme(path, config),), apart=schemes)


def _mlx_scheme(path: Path, config: Mapping[str, Any]) -> Scheme:
    """Return what a mapping says; null stands for what `mlx.core.quantize` takes by default."""
    mode = config.get("mode") or "affine"
    if mode not in ("affine", "mxfp4"):
        raise ModelError(f"{path}: MLX's quantisation is supported with mode=affine or mxfp4, not {shown(mode)}")
    exponents = mode == "mxfp4"
    supported = {"bits": (4, 2, 3, 5, 6, 8), "group_size": (64, 32, 128)}
    if exponents:
        supported = {"bits": (4,), "group_size": (32,)}
    found = []
    for key, values in supported.items():
        value = values[0] if config.get(key) is None else config[key]
        if type(value) is not int or value not in values:
            choices = " or ".join(map(str, sorted(values)))
            raise ModelError(
                f"{path}: quantization has {key}={shown(value)}; MLX's {mode} is supported with {key}={choices}"
            )
        found.append(value)
    bits, group = found
    return Scheme(bits, packed=True, group=group, exponents=exponents)


def _further_bits(path: Path, config: Mapping[str, Any]) -> list[int]:
    """Return the bits of layers that GPTQModel's `dynamic` or AutoRound's `extra_config` sets apart.

    Which layers these are is not looked up: each layer's tensors tell its bits.
    """
    rules = {key: config.get(key) or {} for key in ("dynamic", "extra_config")}
    for key, value in rules.items():
        if not isinstance(value, dict):
            raise ModelError(f"{path}: quantization_config has {key}={shown(value)}, which must be a mapping")
    found = []
    for name, rule in (item for value in rules.values() for item in value.items()):
        bits = rule.get("bits") if isinstance(rule, dict) else None
        if bits is None or name.startswith("-:") or bits in (16, 32):  # these layers are not quantised
            continue
        if type(bits) is not int or bits not in (4, 8):
            raise ModelError(
                f"{path}: quantization_config has bits={shown(bits)} for {shown(name)}; 4 or 8 are supported"
            )
        found.append(bits)
    return found


def _as_packed(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return AutoRound's description of weights in the words of the library whose layout they have.

    Source: the `packing_format` of intel/auto-round's exporters.
    """
    form = str(config.get("packing_format"))
    method = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}.get(form)
    if method is None:
        raise ModelError(
            f"{path}: auto-round is supported with packing_format auto_round:auto_gptq or auto_round:auto_awq, not "
            f"{shown(form)}"
        )
    return {**config, "quant_method": method}


def _read_fp8(path: Path, config: Mapping[str, Any]) -> QuantisationConfig:
    """Return how FP8 weights are stored: vLLM's and DeepSeek's `fp8`, and `fbgemm_fp8`."""
    if config.get("fmt", "e4m3") != "e4m3":
        raise ModelError(f"{path}: FP8 is supported as e4m3, not as {shown(config['fmt'])}")
    return QuantisationConfig(path, "scaled", (Scheme(8),), blocks=_blocks(path, config.get("weight_block_size")))


def _read_bitsandbytes(path: Path, config: Mapping[str, Any]) -> QuantisationConfig:
    """Return how bitsandbytes has stored weights; the rest is known from tensors beside each layer's."""
    flags = [key for key in ("load_in_4bit", "load_in_8bit") if config.get(key) is True]
    if len(flags) != 1:
        raise ModelError(
            f"{path}: quantization_config of bitsandbytes needs either load_in_4bit or load_in_8bit to be true, not "
            f"{' and '.join(flags) or 'none'}"
        )
    if flags == ["load_in_4bit"]:
        return QuantisationConfig(path, "codebook", (Scheme(4, packed=True),))
    return QuantisationConfig(path, "scaled", (Scheme(8),))


def _read_compressed(path: Path, config: Mapping[str, Any]) -> QuantisationConfig:
    """Return how llm-compressor has stored weights.

    Which layers its `targets` and `ignore` mean is not looked up: a layer that is quantised has a scale beside it,
    and its tensors say which of several schemes is its own.
    """
    for key in ("sparsity_config", "transform_config"):
        extension = config.get(key)
        if extension and not (isinstance(extension, dict) and extension.get("format") == "dense"):
            raise ModelError(f"{path}: quantization_config has a {key}, which is not supported")
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise ModelError(f"{path}: quantization_config needs config_groups, a mapping of mappings")
    form = config.get("format")
    if form != "mixed-precision":  # then config_groups have formats
        _check_format(path, form)
    found = [scheme for scheme in (_scheme(path, form, group) for group in groups.values()) if scheme is not None]
    sizes = {blocks for _, blocks in found if blocks}
    if len(sizes) > 1:
        raise ModelError(f"{path}: quantization_config has blocks of several sizes, which is not supported")
    schemes = tuple(dict.fromkeys(scheme for scheme, _ in found)) or (Scheme(8),)
    return QuantisationConfig(path, "scaled", schemes, blocks=next(iter(sizes), None))


def _scheme(path: Path, form: object, group: Mapping[str, Any]) -> tuple[Scheme, tuple[int, int] | None] | None:
    """Return what one of `config_groups` says of weights, and their blocks; None if it quantises none."""
    own, weights = group.get("format") or form, group.get("weights")
    _check_format(path, own)
    if weights is None or own == "dense":
        return None
    if not isinstance(weights, dict):
        raise ModelError(f"{path}: quantization_config has weights={shown(weights)}, which must be a mapping")
    bits, size = weights.get("num_bits", 8), weights.get("group_size")
    supported = (4, 8) if own == "pack-quantized" else (8,)
    if type(bits) is not int or bits not in supported:
        raise ModelError(
            f"{path}: quantization_config has weights of {shown(bits)} bits; {own} is supported with "
            f"{' or '.join(map(str, supported))}"
        )
    if size is not None and type(size) is not int:
        raise ModelError(f"{path}: quantization_config has group_size={shown(size)}, which must be an integer")
    scheme = Scheme(bits, own == "pack-quantized", max(size or 0, 0), weights.get("symmetric") is False)
    return scheme, _blocks(path, weights.get("block_structure"))


def _check_format(path: Path, form: object) -> None:
    if form not in _FORMATS:
        raise ModelError(
            f"{path}: compressed-tensors are supported in the formats {', '.join(_FORMATS)}, not {shown(form)}"
        )


def _blocks(path: Path, sizes: object) -> tuple[int, int] | None:
    if sizes is None:
        return None
    if isinstance(sizes, list | tuple) and len(sizes) == 2:
        high, wide = sizes
        if type(high) is int and type(wide) is int and min(high, wide) > 0:
            return high, wide
    raise ModelError(f"{path}: blocks of weights must have two sizes above 0, not {shown(sizes)}")


_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense")
