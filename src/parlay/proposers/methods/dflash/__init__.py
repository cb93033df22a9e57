"""DFlash: a block of tokens in one pass, from the target's states after several of its layers."""
