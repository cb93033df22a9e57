"""Small random multimodal checkpoints, made with the transformers library."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from checkpoints import VOCAB, write_byte_tokenizer
from families import FAMILIES, LATENT, SMALL, STEP, growing, rope
from pieces import random_tokens

SEES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
QWEN_SEES = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 8,
    "deepstack_visual_indexes": [0],
}
HEARS = {
    "d_model": 32,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "num_mel_bins": 16,
    "output_dim": 64,
    "downsample_hidden_size": 8,
}
GLIMMER_SEES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "pos_emb_height": 4,
    "pos_emb_width": 4,
}
GLM_TURNS = rope("default", mrope_section=[2, 1, 1], partial_rotary_factor=0.5)
# name: (transformers' prefix of class names, text config, vision config, further keys, the text model's class)
TOWERS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "step3p7": (
        "Step3p7",
        STEP,
        {"width": 16, "layers": 1, "heads": 2, "image_size": 28, "patch_size": 14, "mlp_ratio": 1.0},
        {},
        "Step3p5ForCausalLM",
    ),
    "gemma3": (
        "Gemma3",
        {"model_type": "gemma3_text", "query_pre_attn_scalar": 20, "sliding_window": 13, "tie_word_embeddings": True},
        {**SEES, "model_type": "siglip_vision_model"},
        {"mm_tokens_per_image": 1},
        "Gemma3ForCausalLM",
    ),
    "mistral3": (
        "Mistral3",
        {"model_type": "mistral", "sliding_window": None},
        {**SEES, "model_type": "pixtral"},
        {"tie_word_embeddings": False},
        "MistralForCausalLM",
    ),
    "ministral3": (
        "Mistral3",
        {"model_type": "ministral3", **growing()},
        {**SEES, "model_type": "pixtral"},
        {},  # the outer config ties the output layer, the inner one does not: the files have none
        "Ministral3ForCausalLM",
    ),
    "mistral4": (
        "Mistral3",
        {"model_type": "mistral4", **growing(), **LATENT, "head_dim": 40, "n_group": 1, "topk_group": 1},
        {**SEES, "model_type": "pixtral"},
        {"tie_word_embeddings": False},
        "Mistral4ForCausalLM",
    ),
    "qwen3_vl": (
        "Qwen3VL",
        {
            "model_type": "qwen3_vl_text",
            **rope("default", mrope_section=[4, 2, 2], mrope_interleaved=True),
        },
        QWEN_SEES,
        {},
        "Qwen3ForCausalLM",
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VL",
        {"model_type": "qwen2_5_vl_text", **rope("default", mrope_section=[4, 2, 2])},
        QWEN_SEES,
        {},
        "Qwen2ForCausalLM",
    ),
    "qwen2_5_omni": (
        "Qwen2_5OmniThinker",
        {"model_type": "qwen2_5_omni_text", **rope("default", mrope_section=[4, 2, 2])},
        {**QWEN_SEES, "deepstack_visual_indexes": None},
        {"audio_config": HEARS},
        "Qwen2ForCausalLM",
    ),
    "qwen3_omni_moe": (
        "Qwen3OmniMoeThinker",
        {
            "model_type": "qwen3_omni_moe_text",
            **rope("default", mrope_section=[4, 2, 2], mrope_interleaved=True),
            **{key: value for key, value in FAMILIES["qwen3moe"][1].items() if key != "norm_topk_prob"},
            "mlp_only_layers": [],
        },
        QWEN_SEES,
        {"audio_config": HEARS},
        "Qwen3MoeForCausalLM",
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoe",
        {
            "model_type": "qwen3_vl_moe_text",
            **rope("default", mrope_section=[4, 2, 2], mrope_interleaved=True),
            **{key: value for key, value in FAMILIES["qwen3moe"][1].items() if key != "norm_topk_prob"},
            "mlp_only_layers": [],
        },
        QWEN_SEES,
        {},
        "Qwen3MoeForCausalLM",
    ),
    "qwen3_5_moe": (
        "Qwen3_5Moe",
        {"model_type": "qwen3_5_moe_text", **FAMILIES["qwen3_5moe"][1], "linear_key_head_dim": 16},
        QWEN_SEES,
        {},
        "Qwen3_5MoeForCausalLM",
    ),
    "gemma4": (
        "Gemma4",
        {"model_type": "gemma4_text", **FAMILIES["gemma4-experts"][1], "pad_token_id": 0},
        {**SEES, "head_dim": 16, "num_key_value_heads": 2},
        {},
        "Gemma4ForCausalLM",
    ),
    "glm4v": (
        "Glm4v",
        {"model_type": "glm4v_text", **GLM_TURNS},
        QWEN_SEES,
        {},
        "Glm4ForCausalLM",
    ),
    "glm4v_moe": (
        "Glm4vMoe",
        {"model_type": "glm4v_moe_text", **FAMILIES["glm4moe"][1], "use_qk_norm": False, **GLM_TURNS},
        QWEN_SEES,
        {},
        "Glm4MoeForCausalLM",
    ),
    "llama4": (
        "Llama4",
        {
            "model_type": "llama4_text",
            **FAMILIES["llama4"][1],
            **rope("default"),
            "attention_chunk_size": 8192,  # as all GGUF files have it
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
        {**SEES, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
        {},
        "Llama4ForCausalLM",
    ),
    "muse_glimmer": (
        "MuseGlimmer",
        {"model_type": "muse_glimmer_text", "num_hidden_layers": 5, "sliding_window": 13, "output_multiplier": 0.6},
        GLIMMER_SEES,
        {"out_hidden_size": 128, "projector_hidden_size": 32},
        "MuseGlimmerForCausalLM",
    ),
    "muse_glimmer-bases": (
        "MuseGlimmer",
        {
            "model_type": "muse_glimmer_text",
            "num_hidden_layers": 3,
            "sliding_window": 9,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "layer_rope_theta": [10000.0, 10000.0, 0],
            "qk_scale_factor": 2.0,
            "post_norm_eps": 0.01,
        },
        GLIMMER_SEES,
        {"out_hidden_size": 128, "projector_hidden_size": 32},
        "MuseGlimmerForCausalLM",
    ),
}


def write_tower(path: Path, name: str, **changes: Any) -> torch.Tensor:
    """Write a random checkpoint; return transformers' logits of random tokens, `[tokens, vocab]`."""
    import transformers

    prefix, text, vision, more, _ = TOWERS[name]
    config = getattr(transformers, f"{prefix}Config")(
        text_config=deepcopy({**SMALL, **text, **changes}), vision_config={**vision}, **more
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}ForConditionalGeneration")(config).float().eval()
    with torch.no_grad():
        for own, parameter in model.named_parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3 if "embed" in own or "lm_head" in own else 0.12)
        logits: torch.Tensor = model(input_ids=torch.tensor([random_tokens()])).logits[0]
    model.save_pretrained(path)
    write_byte_tokenizer(path, VOCAB)
    return logits
