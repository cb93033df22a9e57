"""The kernels that the self-check looks at."""

from kernels.conftest import kernels, reference  # noqa: F401
