"""What recurrent layers of all kinds share."""

from parlay.errors import ModelError
from parlay.models.config import ModelConfig


def check_taps(config: ModelConfig, taps: int) -> None:
    """Refuse a convolution that the kernel does not have.

    Raises:
        ModelError: it is of too many rows, or of one.
    """
    if not 2 <= taps <= 8:
        raise ModelError(f"{config.path}: a convolution of {taps} rows is not served; 2 to 8 are")
