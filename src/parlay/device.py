"""Where an engine computes: its processor, or a GPU. This file and `kernels/triton` alone know of CUDA."""

from importlib.util import find_spec

import torch

from parlay import env
from parlay.errors import ConfigError

_LEAST = (8, 0)  # of a GPU's compute capability: Ampere, the first that multiplies bfloat16


def find_device(name: str) -> torch.device:
    """Return the device of a name, `cpu` or `cuda`.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    if name == "cpu":
        return torch.device("cpu")
    asked = f"device={name!r}"
    if torch.version.cuda is None:
        raise ConfigError(f"{asked}: the torch that is installed computes on CPUs alone; install its CUDA build")
    if find_spec("triton") is None:
        raise ConfigError(f"{asked}: the package triton is missing; install it with `pip install triton`")
    if not torch.cuda.is_available():
        raise ConfigError(f"{asked}: torch finds no GPU here; leave it at 'cpu'")
    device = torch.device("cuda", torch.cuda.current_device())
    capability = torch.cuda.get_device_capability(device)
    if capability < _LEAST:
        raise ConfigError(
            "{}: {} has compute capability {}.{}, and {}.{} is the least; leave it at 'cpu'".format(
                asked, torch.cuda.get_device_name(device), *capability, *_LEAST
            )
        )
    return device


def available_memory(name: str) -> int:
    """Return the bytes of a device's memory that are free."""
    if name == "cpu":
        return env.available_memory()
    free, _ = torch.cuda.mem_get_info(find_device(name))
    return int(free)
