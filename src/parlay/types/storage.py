"""What becomes of a checkpoint's matrices when they are read."""

from typing import Literal, get_args

# Blocks that are made of them: of eight bits, or of four with embedding and head in eight.
Made = Literal["int8", "int4"]
MADE: tuple[Made, ...] = get_args(Made)
# Those that are quantised stay so as far as products take them; all become plain numbers; all become blocks.
Storage = Literal["stored", "plain", Made]

# Files that weights are read from.
LoadFormat = Literal["auto", "safetensors", "pt", "gguf", "bitsandbytes"]
