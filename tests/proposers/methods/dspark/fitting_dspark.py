"""A DSpark head that agrees with a random target in part: its output layer is fitted to what it makes of texts."""

from pathlib import Path

from blocks import block_config, fit_output, markov_tensors, near_sighted, write_head


def write(path: Path, target: Path) -> None:
    """Write a checkpoint for a target."""
    config = block_config(
        architectures=["Qwen3DSparkModel"],
        mask_token_id=255,
        target_layer_ids=[0, 1, 2],
        block_size=10,
        markov_rank=8,
        markov_head_type="rnn",
        sample_from_anchor=False,
    )
    del config["dflash_config"]
    tensors = near_sighted(config)
    tensors["lm_head.weight"] = fit_output(config, tensors, path, target, range(257))
    further = markov_tensors("rnn", 64, 8, 257, 257)
    further["markov_head.markov_w2.weight"] *= 0.1
    write_head(path, config, {**tensors, **further})
