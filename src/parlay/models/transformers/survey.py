"""The operations that torch itself computes in a pass of a model and that are not known to keep rows independent."""

from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from parlay.models.transformers.modules import OWN

# Operations that `kernels.base` allows outside the kernels, by torch's names: copies and views;
_COPIES = (
    "alias arange as_strided cat clone contiguous copy_ detach embedding empty empty_like expand flatten full "
    "full_like gather index index_select lift_fresh masked_fill new_empty new_zeros ones ones_like permute repeat "
    "reshape scalar_tensor scatter select slice split split_with_sizes squeeze stack t _to_copy to transpose unbind "
    "unsqueeze _unsafe_view view where zeros zeros_like"
)
# comparisons, signs and maxima; single additions, products and quotients; and what has been measured.
_NUMBERS = (
    "abs clamp clamp_max clamp_min eq ge gt le lt logical_and logical_not logical_or maximum minimum ne neg relu "
    "add add_ div div_ mul mul_ rsub sub sub_ cumsum _log_softmax _softmax"
)
_HARMLESS = frozenset((*_COPIES.split(), *_NUMBERS.split()))


class OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, records what torch computes outside of parlay's own modules.

    Attributes:
        rest: operations that are not known to be row-invariant, by name.
    """

    def __init__(self, *models: nn.Module) -> None:
        """Prepare to watch passes of these models."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.rest: tuple[str, ...] = ()
        self._inside = 0
        self._hooks = [
            hook
            for model in models
            for module in model.modules()
            if isinstance(module, OWN)
            for hook in (module.register_forward_pre_hook(self._enter), module.register_forward_hook(self._leave))
        ]

    def _enter(self, *_: Any) -> None:
        self._inside += 1

    def _leave(self, *_: Any) -> None:
        self._inside -= 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        # A square is a product.
        if not self._inside and name not in _HARMLESS and not (name == "pow" and args[1:] == (2,)):
            self.rest = tuple(sorted({*self.rest, name}))
        return func(*args, **(kwargs or {}))

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
