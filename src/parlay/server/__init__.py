"""The server: the engine in a separate process, and the front that speaks to clients."""
