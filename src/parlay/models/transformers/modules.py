"""Modules that take the place of torch's in a class of the transformers library.

They run the kernels, whose rows are independent. A norm or an activation is replaced where a trial shows that it
computes what a kernel computes, whatever its class is called; everything else stays torch's.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor, nn

from parlay.errors import ModelError
from parlay.kernels.base import Activation, Kernels
from parlay.models.transformers.attention import PagedAttention
from parlay.weights.weight import Weight

_CLOSE = 1e-5  # float32, for values near 1
_ACTIVATION_PACKAGES = ("transformers.activations", "torch.nn.modules.activation")
_POSITIONS = 128  # so few sines that torch computes them on one thread
_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps")
Norm = Callable[[Tensor, Tensor], None]  # from rows to rows


class KernelLinear(nn.Module):
    """`y = x W^T + b` by the kernels."""

    def __init__(self, kernels: Kernels, weight: Tensor | Weight, bias: Tensor | None) -> None:
        """Pack a weight `[out, in]`."""
        super().__init__()
        self._kernels = kernels
        self._weight = kernels.pack_linear(weight)
        self._bias = bias
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., out]` for `x` of `[..., in]`."""
        rows = x.reshape(-1, self.in_features).contiguous()
        out = torch.empty((rows.shape[0], self.out_features), dtype=x.dtype)
        self._kernels.linear(rows, self._weight, out)
        if self._bias is not None:
            self._kernels.add_bias(out, self._bias)
        return out.view(*x.shape[:-1], self.out_features)


class KernelHead(nn.Module):
    """The language model head: float32 logits for any dtype of the model."""

    def __init__(self, kernels: Kernels, weight: Tensor | Weight, bias: Tensor | None) -> None:
        """Pack a weight `[vocab, hidden]`."""
        super().__init__()
        self._kernels = kernels
        self._weight = kernels.pack_head(weight)
        self._bias = None if bias is None else bias.float()
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., vocab]` float32 for `x` of `[..., hidden]`."""
        rows = x.reshape(-1, self.in_features).contiguous()
        out = torch.empty((rows.shape[0], self.out_features), dtype=torch.float32)
        self._kernels.logits(rows, self._weight, out)
        if self._bias is not None:
            out += self._bias
        return out.view(*x.shape[:-1], self.out_features)


class Activate(nn.Module):
    """An activation by the kernels."""

    def __init__(self, kernels: Kernels, activation: Activation) -> None:
        super().__init__()
        self._kernels = kernels
        self._activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of `x`, of any shape."""
        out = x.reshape(-1, x.shape[-1]).clone(memory_format=torch.contiguous_format)
        self._kernels.activate(out, self._activation)
        return out.view(x.shape)


class Normalise(nn.Module):
    """A norm of the last dimension by the kernels."""

    def __init__(self, weight: Tensor, norm: Norm) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)  # some classes read its dtype
        self._norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised `x`, of any shape."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out = torch.empty_like(rows)
        self._norm(rows, out)
        return out.view(x.shape)


class NormaliseHeads(nn.Module):
    """A norm of the last dimension, with a separate weight for each head, by the kernels in float32."""

    def __init__(self, weight: Tensor, norm: Norm) -> None:
        """Create the norm from a weight `[heads, D]` and a float32 norm without one."""
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self._norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised `x` `[..., heads, D]`."""
        rows = x.reshape(-1, x.shape[-1]).float().contiguous()
        out = torch.empty_like(rows)
        self._norm(rows, out)
        return (out.view(x.shape) * self.weight.float()).to(x.dtype)


class RotaryTable(nn.Module):
    """A rotary embedding's output for each position, computed once and then looked up.

    Some kinds of scaling depend on the longest position of a call, and the bits of torch's sines on how many are
    computed together. So all positions are computed at once, in calls of one size that all see the last position.
    """

    def __init__(self, rotary: nn.Module, length: int) -> None:
        """Wrap a module whose `forward(x, position_ids, ...)` returns one or several tensors `[1, T, ...]`."""
        super().__init__()
        self._rotary = rotary
        self._length = length
        self._tables: dict[Any, list[Tensor]] = {}

    def forward(self, x: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output, row by row."""
        key = (x.dtype, args, tuple(kwargs.items()))
        if key not in self._tables:
            self._tables[key] = self._compute(x[:1, :1], args, kwargs)
        found = tuple(table[position_ids] for table in self._tables[key])
        return found if len(found) > 1 else found[0]

    def _compute(self, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Return a table `[length, ...]` for each tensor that the module returns."""
        last, step = self._length - 1, _POSITIONS - 1
        parts = []
        for start in range(0, self._length, step):
            positions = torch.arange(start, start + _POSITIONS).clamp(max=last)
            positions[-1] = last
            result = self._rotary(x, positions[None], *args, **kwargs)
            tensors = result if isinstance(result, tuple) else (result,)
            if any(tensor.shape[:2] != (1, _POSITIONS) for tensor in tensors):
                raise ModelError(f"{type(self._rotary).__name__} gives something else than a row for each position")
            parts.append([tensor[0, :step] for tensor in tensors])
        return [torch.cat(columns)[: self._length].contiguous() for columns in zip(*parts, strict=True)]


OWN = (KernelLinear, KernelHead, Activate, Normalise, NormaliseHeads, PagedAttention)
"""Modules whose rows are independent by the kernels' contract."""


def is_rotary(module: nn.Module) -> bool:
    """Whether a module turns positions into sines and cosines.

    Raises:
        ModelError: it does so in a way that depends on the longest position of a call and cannot be put in a table.
    """
    if not any("inv_freq" in name for name, _ in module.named_buffers(recurse=False)):
        return False
    kinds = getattr(module, "rope_type", "default")
    if list(inspect.signature(module.forward).parameters)[1:2] == ["position_ids"]:
        return True
    if {"dynamic", "longrope"} & set(kinds.values() if isinstance(kinds, dict) else (kinds,)):
        raise ModelError(f"{type(module).__name__} has frequencies that depend on the length of a call ({kinds})")
    return False


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer and nothing more."""
    return type(module) is nn.Linear or (type(module).__name__ == "Conv1D" and hasattr(module, "nf"))


def weight_of(linear: nn.Module) -> Tensor:
    """Return the weight `[out, in]` of a linear layer; GPT-2's are stored the other way round."""
    weight = linear.get_parameter("weight").detach()
    return weight if isinstance(linear, nn.Linear) else weight.T


def replacement(
    module: nn.Module, kernels: Kernels, dtype: torch.dtype, blocks: Weight | None = None
) -> nn.Module | None:
    """Return an equivalent of a module that runs the kernels, or None where there is none.

    Args:
        module: a module with its weights; not the output layer.
        kernels: the kernels to run with.
        dtype: the model's dtype. What is held in another one stays as it is.
        blocks: a linear layer's weight, if it stays in blocks.
    """
    if is_linear(module):
        weight, bias = weight_of(module), getattr(module, "bias", None)
        same = weight.dtype is dtype and (bias is None or bias.dtype is dtype)
        own = None if bias is None else bias.detach()
        return KernelLinear(kernels, blocks or weight.contiguous(), own) if same else None
    parameters = dict(module.named_parameters(recurse=False))
    if any(True for _ in module.children()) or parameters.keys() - {"weight", "bias"}:
        return None
    if not parameters:
        return _activation(module, kernels) if type(module).__module__ in _ACTIVATION_PACKAGES else None
    if all(p.dim() <= 2 and p.dtype is dtype for p in parameters.values()) and "weight" in parameters:
        return _norm(module, kernels)
    return None


def _activation(module: nn.Module, kernels: Kernels) -> nn.Module | None:
    x = torch.linspace(-6, 6, 97)[None]
    expected = module(x.clone())
    for activation in get_args(Activation):
        candidate = Activate(kernels, activation)
        if _close(candidate(x), expected):
            return candidate
    return None


def _norm(module: nn.Module, kernels: Kernels) -> nn.Module | None:
    eps = next((value for name in _EPS_NAMES if isinstance(value := getattr(module, name, None), float)), None)
    if eps is None:
        return None
    weight = module.get_parameter("weight").detach()
    bias = getattr(module, "bias", None)
    bias = torch.zeros_like(weight) if bias is None else bias.detach()
    # Rows with a mean of about 1, where the two kinds differ, and small rows, where eps matters.
    x = torch.randn(6, *weight.shape, generator=torch.Generator().manual_seed(weight.numel())) + 1
    x[3:] *= eps**0.5
    try:
        with torch.no_grad():
            expected = copy.deepcopy(module).float()(x)
    except (TypeError, RuntimeError):
        return None
    if weight.dim() > 1:
        ones = torch.ones(weight.shape[-1])
        plain = [NormaliseHeads(weight, norm) for norm in _norms(kernels, eps, ones, torch.zeros_like(ones))]
        return next((n for n in plain if not bias.any() and _close(n(x), expected)), None)
    own, tried = (_norms(kernels, eps, w, b) for w, b in ((weight, bias), (weight.float(), bias.float())))
    for norm, trial in zip(own, tried, strict=True):
        if _close(Normalise(weight.float(), trial)(x), expected):
            return Normalise(weight, norm)
    return None


def _norms(kernels: Kernels, eps: float, weight: Tensor, bias: Tensor) -> list[Norm]:
    """Return the kinds of norms that there are, with these weights."""

    def layer(x: Tensor, out: Tensor) -> None:
        kernels.layer_norm(x, weight, bias, eps, out)

    def rms(x: Tensor, out: Tensor) -> None:
        kernels.rms_norm(x, weight, eps, out)

    def rms_plus_one(x: Tensor, out: Tensor) -> None:
        kernels.rms_norm(x, weight, eps, out, plus_one=True)

    return [layer] if bias.any() else [layer, rms, rms_plus_one]


def _close(a: Tensor, b: Any) -> bool:
    if not isinstance(b, Tensor) or b.shape != a.shape or b.dtype is not a.dtype:
        return False
    return bool(((a - b).abs() <= _CLOSE * (1 + b.abs())).all())
