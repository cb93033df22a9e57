"""An EAGLE-3 head that agrees with a random target in part: its output layer is fitted to what it makes of texts."""

from pathlib import Path

import torch
from blocks import states_after
from eagles import Twin, eagle_config, random_eagle3
from heads import solve, texts_of, write_head
from safetensors.torch import load_file
from torch.nn.functional import one_hot


def write(path: Path, target: Path) -> None:
    """Write a checkpoint for a target. Some tokens are beyond the head."""
    texts, _ = texts_of(target)
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    vocab, width = embedding.shape
    ids = [token for token in range(vocab) if token % 9]
    config = eagle_config(
        vocab_size=vocab,
        hidden_size=width,
        num_key_value_heads=4,
        draft_vocab_size=len(ids),
        eagle_aux_hidden_state_layer_ids=[3, 0, 2],
    )
    tensors = random_eagle3(config, states=3 * width, ids=ids)
    # Each pair attends to itself above all.
    query = torch.cat([4 * torch.eye(64, width), torch.zeros(64, width)], 1)
    tensors["midlayer.self_attn.q_proj.weight"] = tensors["midlayer.self_attn.k_proj.weight"] = query
    twin = Twin(write_head(path, config, tensors), embedding, embedding)
    features, wanted = [], []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its products are small
    for text, known in zip(texts, states_after(target, texts, (0, 2, 3)), strict=True):
        foreseen = twin.foresee(text[1:], twin.states(known[:-1]))
        again = twin.foresee(text[2:], foreseen[:-1])  # fed with its own states, as along a draft
        for made, first in ((foreseen, 2), (again, 3)):
            features.append(twin.features(made[:-1]))
            wanted.append(text[first:])
    torch.set_num_threads(threads)
    tokens = torch.cat(wanted)
    inside = torch.isin(tokens, torch.tensor(ids))
    shares = one_hot(tokens, vocab)[inside][:, ids].double()
    tensors["lm_head.weight"] = 30 * solve(torch.cat(features)[inside], shares).float()
    write_head(path, config, tensors)
