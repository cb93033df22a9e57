"""What recurrent layers of all kinds share."""

from parlay.errors import ModelError
from parlay.models.config import ModelConfig


def check_kernel_size(config: ModelConfig, kernel_size: int) -> None:
    """Refuse a convolution that the kernel does not have.

    Raises:
        ModelError: it is of too many rows, or of one.
    """
    if not 2 <= kernel_size <= 8:
        raise ModelError(f"{config.path}: a convolution of {kernel_size} rows is not supported; 2 to 8 are")
