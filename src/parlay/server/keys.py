"""API keys: which are accepted, their names in the log, and which cache is theirs."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path

from parlay.config.server import ServerConfig, check_key
from parlay.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Client:
    """The sender of a request.

    Attributes:
        name: the key's name, for logs.
        tenant: tenant whose caches are used; clients of one tenant share them.
        owner: owner of the stored responses that it sees; separate for every key, even where caches are shared.
    """

    name: str = ""
    tenant: str = ""
    owner: str = ""


ANYONE = Client()


class Keys:
    """The keys that are accepted; without any, every client is."""

    def __init__(self, named: Sequence[tuple[str, str]], *, shared_cache: bool = False) -> None:
        """Store digests of keys; the salt is new in every process.

        Args:
            named: names and keys, in pairs.
            shared_cache: give all of them one tenant.
        """
        self._salt = secrets.token_bytes(16)
        self._clients = [
            (digest := self._digest(key), Client(name, "" if shared_cache else digest.hex(), digest.hex()))
            for name, key in named
        ]

    def __bool__(self) -> bool:
        """Whether a key is needed."""
        return bool(self._clients)

    def client(self, authorization: str | None) -> Client | None:
        """Return the sender of an `Authorization` header; None for an unknown one.

        Every key is compared, and in full: the time taken tells nothing about them.
        """
        if not self._clients:
            return ANYONE
        scheme, _, key = (authorization or "").partition(" ")
        digest = self._digest(key.strip() if scheme.lower() == "bearer" else "")
        found = None
        for known, client in self._clients:
            if compare_digest(known, digest):
                found = client
        return found

    def _digest(self, key: str) -> bytes:
        return blake2b(key.encode("utf-8", "surrogatepass"), salt=self._salt, digest_size=16).digest()


def read_keys(config: ServerConfig, environment: Sequence[str] = ()) -> Keys:
    """Return the keys of the command line, of the environment and of the file.

    Raises:
        ConfigError: the file cannot be read, or a key is none.
    """
    named = [(f"key{i}", check_key(key)) for i, key in enumerate((*config.api_key, *environment), start=1)]
    if config.api_key_file is not None:
        from_file = _read(Path(config.api_key_file), len(named))
        if not from_file:  # naming a file asks for protection
            raise ConfigError(f"{config.api_key_file} has no keys; write one into it or leave api_key_file out")
        named += from_file
    return Keys(named, shared_cache=config.shared_cache)


def _read(file: Path, before: int) -> list[tuple[str, str]]:
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_key_file {str(file)!r} cannot be read: {error}") from None
    named: list[tuple[str, str]] = []
    for line in lines:
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise ConfigError(f"a line of {file} has more than a name and a key; keys have no spaces")
        named.append((words[0] if len(words) == 2 else f"key{before + len(named) + 1}", check_key(words[-1])))
    return named
