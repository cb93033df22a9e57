"""DFlash2: a block in one pass with convolutions along it, then a path among the likeliest tokens of each place."""
