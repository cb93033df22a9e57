"""How numbers may be stored: each by itself, or in blocks of small integers that share a scale.

Source: ggml's table of types; numbers and names are those of GGUF files. MXFP4 is of the Open Compute Project's
"Microscaling Formats" 1.0.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to store numbers.

    Attributes:
        number: its number in a GGUF file.
        name: its name in a GGUF file.
        block: numbers per block; 1 where each is by itself.
        size: bytes per block.
        factors: where in a block the float16 factors of its scales and minimums lie; known for `COMPUTED` alone.
        exponent: where the exponent of its scale lies, which is a power of two (E8M0); known for `COMPUTED` alone.
        nibbles: where four words lie, the highest four bits of which are such a factor's; known for `COMPUTED` alone.
        unpacked: bytes per block in memory, where the kernels keep codes in more bits than files do.
    """

    number: int
    name: str
    block: int
    size: int
    factors: tuple[int, ...] = ()
    exponent: int | None = None
    nibbles: int | None = None
    unpacked: int | None = None

    @property
    def memory(self) -> int:
        """Bytes per block in memory."""
        return self.unpacked or self.size

    def __str__(self) -> str:
        return self.name


_TABLE: tuple[tuple[Any, ...], ...] = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18, (0,)),
    (3, "Q4_1", 32, 20, (0, 2)),
    (6, "Q5_0", 32, 22, (0,)),
    (7, "Q5_1", 32, 24, (0, 2)),
    (8, "Q8_0", 32, 34, (0,)),
    (10, "Q2_K", 256, 84, (80, 82)),
    (11, "Q3_K", 256, 110, (108,)),
    (12, "Q4_K", 256, 144, (0, 2)),
    (13, "Q5_K", 256, 176, (0, 2)),
    (14, "Q6_K", 256, 210, (208,)),
    (16, "IQ2_XXS", 256, 66, (0,), None, None, 106),
    (17, "IQ2_XS", 256, 74, (0,), None, None, 114),
    (18, "IQ3_XXS", 256, 98, (0,), None, None, 138),
    (19, "IQ1_S", 256, 50, (0,), None, None, 106),
    (20, "IQ4_NL", 32, 18, (0,)),
    (21, "IQ3_S", 256, 110, (0,), None, None, 138),
    (22, "IQ2_S", 256, 82, (0,), None, None, 114),
    (23, "IQ4_XS", 256, 136, (0,)),
    (27, "I64", 1, 8),
    (29, "IQ1_M", 256, 56, (), None, 48, 114),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54, (52,), None, None, 74),
    (35, "TQ2_0", 256, 66, (64,), None, None, 74),
    (39, "MXFP4", 32, 17, (), 0),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
)
KINDS = {row[0]: Kind(*row) for row in _TABLE}
BY_NAME = {kind.name: kind for kind in KINDS.values()}

# Kinds that are read as another one, which holds the same numbers: levels of 1 and 2 bits as of 4.
READ_AS = {BY_NAME["Q1_0"]: BY_NAME["Q4_0"], BY_NAME["Q2_0"]: BY_NAME["Q4_0"]}

HALF = BY_NAME["F16"]
# Kinds that products take as they are, for any activations, as they do `HALF`; other blocks are dequantised when
# they are read.
COMPUTED = tuple(
    kind for kind in KINDS.values() if kind.factors or kind.exponent is not None or kind.nibbles is not None
)
