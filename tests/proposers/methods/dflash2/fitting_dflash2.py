"""A DFlash2 head that agrees with a random target in part: its output layer is fitted to what it makes of texts."""

from pathlib import Path

from blocks import block_config, fit_output, near_sighted, walk_tensors, write_head


def write(path: Path, target: Path) -> None:
    """Write a checkpoint for a target. Its convolutions and its selector do little."""
    config = block_config(architectures=["DFlash2DraftModel"], block_size=9)
    config["dflash_config"] |= {
        "conv_kernel_size": 2,
        "conv_group_size": 8,
        "selector_rank": 6,
        "selector_top_k": 40,
    }
    tensors = near_sighted(config)
    tensors["lm_head.weight"] = fit_output(config, tensors, path, target, range(257))
    further = {name: 0.1 * tensor for name, tensor in walk_tensors(64, 257).items()}
    for name, tensor in further.items():
        if name.endswith("base_kernel"):
            tensor[:] = 0
            tensor[:, 0] = 1
    write_head(path, config, {**tensors, **further})
