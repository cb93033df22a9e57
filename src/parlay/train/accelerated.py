"""A target on an accelerator, by `transformers`.

A head's training data need not be the engine's states to the bit, and it needs many.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from parlay.log import logger
from parlay.train.data import Text


class AcceleratedTarget:
    """The layers of a target, without its output layer."""

    def __init__(self, path: Path, dtype: torch.dtype, device: torch.device) -> None:
        """Load them.

        Raises:
            Exception: anything that transformers raises for what it cannot load.
        """
        from transformers import AutoModelForCausalLM

        file = {"gguf_file": path.name} if path.is_file() else {}
        model: Any = AutoModelForCausalLM.from_pretrained(path.parent if file else path, dtype=dtype, **file)
        self._body = model.base_model.to(device).eval()
        self._stack = self._body.layers  # an architecture that keeps them elsewhere is refused here
        self._device = device
        self._layers: tuple[int, ...] = ()

    def tap(self, layers: tuple[int, ...]) -> None:
        """Let `states` return the residual stream after so many layers too."""
        self._layers = layers

    @torch.no_grad()
    def states(self, texts: Sequence[Text]) -> list[tuple[Tensor, ...]]:
        """Return of each text the states after the final norm and where they are tapped, each `[length, H]`."""
        tokens = [torch.from_numpy(text.tokens).long() for text in texts]
        padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True).to(self._device)
        lengths = torch.tensor([len(text.tokens) for text in texts], device=self._device)
        mask = torch.arange(padded.shape[1], device=self._device) < lengths[:, None]
        stream: list[Tensor] = []

        def before(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            stream.append(given[0])

        def after(layer: nn.Module, given: tuple[Tensor, ...], made: Tensor | tuple[Tensor, ...]) -> None:
            stream.append(made if isinstance(made, Tensor) else made[0])

        layers = self._stack
        hooks = [layers[0].register_forward_pre_hook(before), *(each.register_forward_hook(after) for each in layers)]
        try:
            final = self._body(input_ids=padded, attention_mask=mask, use_cache=False).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        wanted = final, *(stream[layer] for layer in self._layers)
        return [tuple(state[i, : len(text.tokens)] for state in wanted) for i, text in enumerate(texts)]


def accelerate(path: Path, dtype: torch.dtype, device: torch.device) -> AcceleratedTarget | None:
    """Return the target on the device, or None, with a warning, if transformers is missing or cannot load it.

    Args:
        path: a directory, or a file of GGUF.
        dtype: dtype that it computes in.
        device: device that it is put on.
    """
    try:
        return AcceleratedTarget(path, dtype, device)
    except Exception as error:
        logger.warning("the target stays on the CPU, since transformers cannot load it: %s", error)
        return None
