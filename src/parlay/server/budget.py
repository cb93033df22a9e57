"""How many bytes of requests' bodies are held at once, in total and for each key."""

from collections import Counter

from parlay.server.errors import ApiError


class Budget:
    """Bytes that are shared by all keys. A key may hold as many as are still free, so that none can take all."""

    def __init__(self, most: int) -> None:
        """Begin with nothing held; `most` bytes are the limit."""
        self._most = most
        self._of: Counter[str] = Counter()
        self.held = 0

    def take(self, key: str, count: int) -> None:
        """Hold further bytes of a key.

        Raises:
            ApiError: the key would hold more than would be left.
        """
        if self._of[key] + count > self._most - self.held - count:
            raise ApiError(429, "the server holds as many bytes of requests as it takes; retry a little later")
        self.held += count
        self._of[key] += count

    def give(self, key: str, count: int) -> None:
        """Hold that many less."""
        self.held -= count
        self._of[key] -= count
        if not self._of[key]:
            del self._of[key]
