"""Stored responses: in memory, bounded in bytes, each for the key that made it."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import msgspec

from parlay.errors import shown
from parlay.server.errors import ApiError

_OVERHEAD = 1024  # bytes of an entry besides its texts, generously
_OVERHEAD_OF_ITEM = 256  # bytes of an item's id, generously


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response.

    Attributes:
        owner: owner of the response.
        body: the response as sent to the client, in JSON.
        conversation: its messages, the answer's included and the instructions not, in JSON.
        items: ids of its output's items.
    """

    owner: str
    body: bytes
    conversation: bytes
    items: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of its texts, with overhead."""
        return len(self.body) + len(self.conversation) + _OVERHEAD + _OVERHEAD_OF_ITEM * len(self.items)

    def messages(self) -> list[dict[str, Any]]:
        """Return the conversation."""
        return list(msgspec.json.decode(self.conversation))


class ResponseStore:
    """Keeps the newest; whole conversations, so that no response depends on another one. Threads may share it."""

    def __init__(self, most: int) -> None:
        """Start empty; never keep more than `most` bytes."""
        self._most = most
        self._held: dict[str, OrderedDict[str, StoredResponse]] = {}  # by owner
        self._items: dict[tuple[str, str], str] = {}  # responses by owner and item
        self._sizes: Counter[str] = Counter()  # by owner
        self._lock = Lock()

    @property
    def size(self) -> int:
        """Bytes that all of it takes."""
        return self._sizes.total()

    def put(self, name: str, stored: StoredResponse) -> bool:
        """Store a response, and drop older ones for it; return whether it is not too large for that.

        The oldest of the owner with most bytes are forgotten, so that no owner displaces one that has less.
        """
        if stored.size > self._most:
            return False
        with self._lock:
            self._held.setdefault(stored.owner, OrderedDict())[name] = stored
            self._items.update({(stored.owner, item): name for item in stored.items})
            self._sizes[stored.owner] += stored.size
            while self.size > self._most:
                greatest = max(self._sizes, key=self._sizes.__getitem__)
                self._forget(greatest, next(iter(self._held[greatest])))
            return name in self._held.get(stored.owner, {})

    def get(self, name: str, owner: str, param: str | None = None) -> StoredResponse:
        """Return a response of `owner`.

        Raises:
            ApiError: there is none. Whether another key has one is not revealed.
        """
        with self._lock:
            return self._find(name, owner, param)

    def items(self, wanted: Iterable[str], owner: str) -> dict[str, dict[str, Any]]:
        """Return those items of the outputs of `owner`'s responses that are there, by their ids."""
        with self._lock:
            names = {self._items.get((owner, item)) for item in wanted} - {None}
            bodies = [self._held[owner][str(name)].body for name in names]
        return {item["id"]: item for body in bodies for item in msgspec.json.decode(body)["output"]}

    def delete(self, name: str, owner: str) -> None:
        """Delete a response of `owner`.

        Raises:
            ApiError: there is none.
        """
        with self._lock:
            self._find(name, owner, None)
            self._forget(owner, name)

    def _forget(self, owner: str, name: str) -> None:
        stored = self._held[owner].pop(name)
        self._sizes[owner] -= stored.size
        for item in stored.items:
            del self._items[owner, item]
        if not self._held[owner]:
            del self._held[owner], self._sizes[owner]

    def _find(self, name: str, owner: str, param: str | None) -> StoredResponse:
        found = self._held[owner].get(name) if owner in self._held else None
        if found is None:
            raise ApiError(
                404, f"there is no response {shown(name)} of this key: it was not stored, or was deleted, or "
                "evicted by newer ones; give the whole conversation as input",
                param=param, code="response_not_found",
            )  # fmt: skip
        return found
