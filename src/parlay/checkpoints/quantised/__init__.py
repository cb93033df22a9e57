"""Linear layers that a checkpoint stores in few bits, each format in its own file."""
