"""A P-EAGLE head that agrees with a random target in part: its output layer is fitted to what it makes of texts."""

from pathlib import Path

import torch
from blocks import states_after
from eagles import Twin, eagle_config, random_eagle3
from heads import solve, texts_of, write_head
from safetensors.torch import load_file
from torch.nn.functional import one_hot

MASK = 255


def write(path: Path, target: Path) -> None:
    """Write a checkpoint for a target."""
    texts, _ = texts_of(target)
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    vocab, width = embedding.shape
    config = eagle_config(
        architectures=["PEagleSpeculator"],
        num_key_value_heads=4,
        mask_token_id=MASK,
        eagle_aux_hidden_state_layer_ids=[1, 2, 3],
    )
    tensors = random_eagle3(config)
    # Each pair attends to itself above all, and passes its token on.
    own = torch.cat([torch.eye(64, width), torch.zeros(64, width)], 1)
    tensors["midlayer.self_attn.q_proj.weight"] = tensors["midlayer.self_attn.k_proj.weight"] = 6 * own
    tensors["midlayer.self_attn.v_proj.weight"], tensors["midlayer.self_attn.o_proj.weight"] = own, torch.eye(64)
    tensors["fc.weight"] *= 0.3
    tensors["midlayer.mlp.down_proj.weight"] *= 0.3
    tensors["mask_hidden"] = torch.randn((1, 1, 3 * width), generator=torch.Generator().manual_seed(6))
    twin = Twin(write_head(path, config, tensors), embedding, embedding)
    features, wanted = [], []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its products are small
    for text, known in zip(texts, states_after(target, texts, (1, 2, 3)), strict=True):
        features.append(twin.features(twin.foresee(text[1:], twin.states(known[:-1]))[:-1]))
        wanted.append(text[2:])
    torch.set_num_threads(threads)
    tensors["lm_head.weight"] = 30 * solve(torch.cat(features), one_hot(torch.cat(wanted), vocab).double()).float()
    write_head(path, config, tensors)
