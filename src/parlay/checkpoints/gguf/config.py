"""A GGUF file's metadata as the `config.json` that Hugging Face would write for the same model.

Source: ggml's `docs/gguf.md` for the keys.
"""

from pathlib import Path
from typing import Any

from parlay.checkpoints.gguf.end_tokens import end_tokens
from parlay.checkpoints.gguf.families import family_of, size_of
from parlay.checkpoints.gguf.family import Family, layer_types
from parlay.checkpoints.gguf.names import MAX_EXPERTS
from parlay.checkpoints.gguf.parts import GGUFModel
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.checkpoints.gguf.rotary import rotary_keys
from parlay.errors import ModelError

# Config keys by the metadata's, of every family.
SIZES = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
}
# The same of what norms add, by whether they subtract the mean.
EPS = {
    False: ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    True: ("attention.layer_norm_epsilon", "layer_norm_eps"),
}
_BOS = "tokenizer.ggml.bos_token_id"


def read_gguf_config(path: Path) -> dict[str, Any]:
    """Return the shape of a GGUF file's model as a `config.json` of Hugging Face would hold it.

    Raises:
        ModelError: the file is damaged, contradicts itself, or holds a model that is not supported.
    """
    with GGUFModel(path) as file:
        name, family = family_of(file)
        embedding = file.tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelError(f"{path} lacks the tensor 'token_embd.weight'")
        queries = _queries(file, name, family)
        varied = _varied(file, name) if family.heads_vary_by_window else {}
        far, near = _by_window(file, name, family)
        sizes = _sizes(file, name, varied | far | ({"num_attention_heads": queries[0]} if queries else {}))
        heads = sizes["num_attention_heads"]
        context, layers = sizes.pop("max_position_embeddings"), sizes.pop("num_hidden_layers")
        sizes["vocab_size"] = embedding.shape[0]
        hidden, head_dim = sizes["hidden_size"], sizes["head_dim"]
        _check_sizes(file, {**sizes, "num_experts": size_of(file, f"{name}.expert_count", 0) or 1}, layers)
        if family.latent:
            sizes |= _latent(file, name)
            head_dim = sizes["head_dim"]
        elif not varied and (value := size_of(file, f"{name}.attention.value_length", head_dim)) != head_dim:
            if not family.value_width:
                raise ModelError(
                    f"{path}: {name} with heads whose values are not as wide as their keys is not supported"
                )
            near[family.value_width] = value
        options = _options(file, name, family, head_dim) | near
        further = file.integer(f"{name}.nextn_predict_layers", 0)
        layers -= further if further < layers else 0  # an assistant has no others
        options |= _of_layers(file, family, options.get("layer_types"), layers)
        if family.recurrent:
            options |= _recurrent(file, name, family, layers)
        if family.wide_layers:
            options["query_pre_attn_scalar"] = hidden // heads if layers == family.wide_layers else head_dim
        return {
            "architectures": [family.architecture],
            "model_type": name,
            **sizes,
            "num_hidden_layers": layers,
            **_eps(file, name, family),
            "max_position_embeddings": context,
            "tie_word_embeddings": "output.weight" not in file.tensors,
            "dtype": _dtype(file),
            "bos_token_id": file.integer(_BOS) if _BOS in file else None,
            "eos_token_id": end_tokens(file) or None,
            **({} if varied else rotary_keys(file, name, family, head_dim)),
            **family.fixed,
            **options,
            **_of_attention(file, family, queries, heads),
            **varied,
        }


def _sizes(file: GGUFFile, name: str, given: dict[str, Any]) -> dict[str, int]:
    """Return the sizes of a model, by the names of configs; `given` has some of them."""
    heads = given.get("num_attention_heads") or size_of(file, f"{name}.attention.head_count")
    defaults = {
        "attention.head_count_kv": heads,
        "attention.key_length": size_of(file, f"{name}.embedding_length") // max(heads, 1),
        # Of models whose layers all have experts.
        "feed_forward_length": size_of(file, f"{name}.expert_feed_forward_length", 0) or None,
    }
    return {
        hf: given[hf] if hf in given else size_of(file, f"{name}.{key}", defaults.get(key))
        for key, hf in SIZES.items()
    }


def _latent(file: GGUFFile, name: str) -> dict[str, int]:
    """Return the sizes of latent attention; older files have heads' widths where others have those of entries."""
    turning = size_of(file, f"{name}.rope.dimension_count")
    query = size_of(file, f"{name}.attention.key_length_mla", size_of(file, f"{name}.attention.key_length", 1 << 10))
    value = size_of(
        file, f"{name}.attention.value_length_mla", size_of(file, f"{name}.attention.value_length", 1 << 10)
    )
    if not 0 < turning < query:
        raise ModelError(f"{file.path}: {turning} of the {query} columns of a query turn, which is not supported")
    heads = size_of(file, f"{name}.attention.head_count")
    return {
        "qk_rope_head_dim": turning,
        "qk_nope_head_dim": query - turning,
        "v_head_dim": value,
        "head_dim": turning,
        "num_key_value_heads": heads,
    }


def _queries(file: GGUFFile, name: str, family: Family) -> list[int]:
    """Return how many heads of queries each layer has, where a file lists them; empty otherwise."""
    key = f"{name}.attention.head_count"
    if not (family.queries and file.is_array(key)):
        return []
    found = file.numbers(key)
    if len(found) != size_of(file, f"{name}.block_count") or not all(isinstance(count, int) for count in found):
        raise ModelError(f"{file.path}: {key} must list a number of heads for each layer")
    return [int(count) for count in found]


def _by_window(file: GGUFFile, name: str, family: Family) -> tuple[dict[str, int], dict[str, int]]:
    """Return sizes that files list by layer: of layers without a window, by the keys of all models, and with one."""
    far, near = dict[str, int](), dict[str, int]()
    for part, hf in family.window_sizes.items():
        key = f"{name}.{part}"
        values = file.numbers(key) if file.is_array(key) else [file.integer(key)]
        windows = file.numbers(f"{name}.attention.sliding_window_pattern") or [0] * len(values)
        values *= len(windows) if len(values) == 1 else 1
        for found, own, kind in (far, SIZES[part], False), (near, hf, True):
            kinds = zip(values, windows, strict=False)
            counts = {int(value) for value, window in kinds if bool(window) == kind} or {*map(int, values[:1])}
            if len(counts) != 1 or len(values) != len(windows):
                raise ModelError(f"{file.path}: {key} differs among layers that have a window, or among others")
            found[own] = counts.pop()
    return far, near


def _of_layers(file: GGUFFile, family: Family, kinds: list[str] | None, layers: int) -> dict[str, list[str]]:
    """Return the kinds of a model's own layers and of MTP layers, and which have experts."""
    found = {}
    if kinds is not None and len(kinds) > layers:
        found = {"layer_types": kinds[:layers], "mtp_layer_types": kinds[layers:]}
    if family.sparse:
        each = (f"blk.{i}.ffn_gate_inp.weight" in file.tensors for i in range(layers))
        found[family.sparse] = ["sparse" if experts else "dense" for experts in each]
    return found


def _of_attention(file: GGUFFile, family: Family, queries: list[int], heads: int) -> dict[str, Any]:
    """Return what a family's files say of attention by lists and tensors: heads by layer, a gate, a factor."""
    found: dict[str, Any] = {family.queries: queries} if queries and len({*queries}) > 1 else {}
    if family.gating:
        gate = file.tensors.get("blk.0.attn_gate.weight")
        found[family.gating] = "per-head" if gate is None or gate.shape[0] == heads else "per-element"
    if family.query_scale:
        found[family.query_scale] = _query_scale(file)
    return found


def _query_scale(file: GGUFFile) -> float:
    """Return the factor on queries that a file has as the weights of their norms; those of keys are 1."""
    factors = set[str]()
    for name in file.tensors:
        if name.endswith(".attn_q_norm.weight"):
            factors |= {str(x) for x in file.read(name).numpy()}
        elif name.endswith(".attn_k_norm.weight") and not bool((file.read(name) == 1).all()):
            raise ModelError(f"{file.path}: {name!r} must hold ones; other norms of keys are not supported")
    if len(factors) != 1:
        raise ModelError(f"{file.path}: the norms of queries must have one weight, for all columns of all layers")
    return float(factors.pop())  # as a decimal, like float32 numbers of the metadata


def _varied(file: GGUFFile, name: str) -> dict[str, Any]:
    """Return what differs between layers with a window and those without, in Gemma 4's words."""
    near = [bool(each) for each in file.numbers(f"{name}.attention.sliding_window_pattern")]
    layers = size_of(file, f"{name}.block_count")
    if len(near) != layers or True not in near or False not in near:
        raise ModelError(f"{file.path}: {name}.attention.sliding_window_pattern must tell {layers} layers apart")

    def each(key: str) -> list[int]:
        key = f"{name}.{key}"
        values = [int(value) for value in file.numbers(key)] if file.is_array(key) else [file.integer(key)] * layers
        if len(values) != layers:
            raise ModelError(f"{file.path}: {key} must list {layers} layers")
        return values

    heads, inner = each("attention.head_count_kv"), each("feed_forward_length")
    window, whole = near.index(True), near.index(False)
    return {
        "layer_types": layer_types(near),
        "num_key_value_heads": heads[window],
        "num_global_key_value_heads": heads[whole],
        "head_dim": size_of(file, f"{name}.attention.key_length_swa"),
        "global_head_dim": size_of(file, f"{name}.attention.key_length"),
        "attention_k_eq_v": f"blk.{whole}.attn_v.weight" not in file.tensors,
        "intermediate_size": min(inner),
        "use_double_wide_mlp": max(inner) > min(inner),
        "enable_moe_block": size_of(file, f"{name}.expert_count", 0) > 0,
        "rope_parameters": {
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": file.number(f"{name}.rope.freq_base_swa", 10000.0),
            },
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": _turning_part(file),
                "rope_theta": file.number(f"{name}.rope.freq_base", 1e6),
            },
        },
    }


def _turning_part(file: GGUFFile) -> float:
    """Return the part of a head's columns that turns; the frequencies of others are divided by a huge number."""
    if "rope_freqs.weight" not in file.tensors:
        return 1.0
    divisors = file.read("rope_freqs.weight")
    turning = divisors == 1
    if not len(divisors) or not (turning | (divisors > 1e20)).all():
        raise ModelError(f"{file.path}: 'rope_freqs.weight' scales rotary frequencies in a way that is not supported")
    return float(turning.sum()) / len(divisors)


def _recurrent(file: GGUFFile, name: str, family: Family, layers: int) -> dict[str, Any]:
    """Return which layers are recurrent, and the width of their heads' values."""
    found: dict[str, Any] = {}
    listed, heads = f"{name}.attention.recurrent_layers", f"{name}.attention.head_count_kv"
    every = size_of(file, f"{name}.full_attention_interval", 4)
    if family.single_part_layers:
        found["layers_block_type"] = [_lone_kind(file, family, i) for i in range(layers)]
        kinds = [True] * layers
    elif listed in file and file.is_array(listed):
        kinds = [bool(each) for each in file.numbers(listed)]
    elif file.is_array(heads):
        kinds = [each == 0 for each in file.numbers(heads)]
    else:
        kinds = [(i + 1) % max(every, 1) != 0 for i in range(layers)]
    if len(kinds) < layers:
        raise ModelError(f"{file.path}: {len(kinds)} layers are said to be recurrent or not, of {layers}")
    if not family.single_part_layers:
        found["layer_types"] = layer_types(kinds[:layers], family.recurrent)
    if family.value:
        width, count = size_of(file, f"{name}.ssm.inner_size"), size_of(file, f"{name}.ssm.time_step_rank")
        if count < 1 or width % count:
            raise ModelError(
                f"{file.path}: {width} columns of recurrent layers do not divide into {count} heads; the file is "
                "damaged"
            )
        found[family.value] = width // count
    return found


def _lone_kind(file: GGUFFile, family: Family, layer: int) -> str:
    """Return what the only part of a layer is, by its tensors."""
    has = {"ssm_in": family.recurrent, "attn_q": "attention", "attn_qkv": "attention", "ffn_gate_inp": "moe"}
    return next((kind for part, kind in has.items() if f"blk.{layer}.{part}.weight" in file.tensors), "mlp")


def _eps(file: GGUFFile, name: str, family: Family) -> dict[str, float]:
    key, hf = EPS[family.layer_norms]
    other, _ = EPS[True]
    rms, _ = EPS[False]
    if family.layer_norms and f"{name}.{rms}" in file:  # norms that do not subtract the mean, of some models
        return {"rms_norm_eps": file.number(f"{name}.{rms}")}
    # Nemotron-H's files have the key of norms that subtract the mean.
    return {hf: file.number(f"{name}.{other if family.single_part_layers and f'{name}.{key}' not in file else key}")}


def _options(file: GGUFFile, name: str, family: Family, head_dim: int) -> dict[str, Any]:
    """Return what only some families have."""
    options: dict[str, Any] = {}
    for key in family.refused:
        if f"{name}.{key}" in file:
            raise ModelError(
                f"{file.path}: {name} with the key {name}.{key} is not supported; its rows are stored otherwise"
            )
    for key, hf in family.options.items():
        key = f"{name}.{key}"
        if key in file and hf == "sliding_window_pattern" and file.is_array(key):
            options["layer_types"] = layer_types(file.numbers(key))
        elif key in file:
            options[hf] = file.numbers(key) if file.is_array(key) else file.value(key)
    if options.get("sliding_window") == 0:  # which says that there is none
        options["sliding_window"] = None
    if name.startswith("granite"):
        # Hugging Face's class takes 1 where a config does not say, ggml what a Llama has.
        options.setdefault("attention_multiplier", head_dim**-0.5)
    # One flag for all of attention, and one for the whole network; the loader compares with what there is. Some files
    # have biases of queries, keys and values alone.
    biases = (
        ("attn_q", "qkv_bias"),
        ("attn_qkv", "qkv_bias"),
        ("attn_output", "attention_bias"),
        ("ffn_down", "mlp_bias"),
    )
    for last, flag in biases:
        if f"blk.0.{last}.bias" in file.tensors:
            options[flag] = True
    if "blk.0.ssm_conv1d.weight" in file.tensors:
        options["mamba_conv_bias"] = "blk.0.ssm_conv1d.bias" in file.tensors
    norms = ("attn_q_norm", "use_qk_norm"), ("ssm_norm", "mamba_rms_norm")
    return options | {flag: True for norm, flag in norms if f"blk.0.{norm}.weight" in file.tensors}


def _check_sizes(file: GGUFFile, sizes: dict[str, int], layers: int) -> None:
    """Refuse sizes that nothing in the file has, before anything as large is made."""
    largest = max(max(stored.shape) for stored in file.tensors.values())
    for key, size in {**sizes, "num_hidden_layers": layers}.items():
        limit = {"num_hidden_layers": len(file.tensors), "num_experts": min(largest, MAX_EXPERTS)}.get(key, largest)
        if not 1 <= size <= limit:
            raise ModelError(f"{file.path}: {key} is {size}, but the file's tensors allow 1 to {limit}")
    tokens = file.length("tokenizer.ggml.tokens")
    if tokens > sizes["vocab_size"]:
        raise ModelError(f"{file.path} names {tokens} tokens but embeds only {sizes['vocab_size']}")


def _dtype(file: GGUFFile) -> str:
    """Return what to compute in: norms are always stored as float32 and say nothing."""
    kinds = {stored.kind.name for stored in file.tensors.values() if len(stored.shape) > 1}
    return {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}.get(frozenset(kinds), "bfloat16")
