"""GGUF files: reading, what their names and keys mean, writing."""
