"""The server: the engine in a process of its own, and the front that speaks to clients."""
