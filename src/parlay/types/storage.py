"""What becomes of a checkpoint's matrices when they are read."""

from typing import Literal

# Those that are quantised stay so as far as products take them; all become plain numbers; all become eight bits.
Storage = Literal["stored", "plain", "int8"]
