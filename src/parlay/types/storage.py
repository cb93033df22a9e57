"""How a checkpoint's matrices are stored once they are read."""

from typing import Literal, get_args

# Formats to quantise to: blocks of eight bits, or of four with embedding and head in eight.
Made = Literal["int8", "int4"]
MADE: tuple[Made, ...] = get_args(Made)
# Keep quantised matrices as far as products support them; make all plain numbers; make all blocks.
Storage = Literal["stored", "plain", Made]

# Files that weights are read from.
LoadFormat = Literal["auto", "safetensors", "pt", "gguf", "bitsandbytes"]
