"""Where vLLM's documents start a server from."""
