"""Models written as GGUF files."""
