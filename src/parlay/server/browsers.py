"""Protection against web pages of other origins that send requests through a user's browser.

A browser hides the answer from such a page, but sends the request; and a page whose name is pointed at this machine
after it was loaded ("DNS rebinding") even reads the answer. Where keys are needed neither succeeds, since no browser
sends one by itself.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from parlay.config import ServerConfig
from parlay.server.errors import ApiError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_READING = ("GET", "HEAD", "OPTIONS")


def check_page(method: str, headers: Mapping[bytes, str], config: ServerConfig) -> None:
    """Refuse a request of another origin's page to a server without keys; other clients send no such headers.

    Args:
        method: HTTP's.
        headers: the request's, names in lower case.
        config: the allowed origins, and where the server listens.

    Raises:
        ApiError: it is such a page's.
    """
    allowed = config.allowed_origins
    if "*" in allowed:
        return
    host = headers.get(b"host", "")
    # Only this machine reaches it, so a name that others can give it is not its own.
    if config.host in LOOPBACK and not _is_own(host, allowed):
        raise ApiError(403, "this server is not known under that name; ask it as localhost, or start it with a key")
    origin = headers.get(b"origin")
    if method in _READING or origin in allowed:
        return
    # Sec-Fetch-Site is the browser's own view, whatever a proxy made of Host; not every browser sends it.
    site = headers.get(b"sec-fetch-site")
    same = site in ("same-origin", "none") if site else origin is None or origin.partition("://")[2] == host
    if not same:
        raise ApiError(403, "pages of this origin may not ask this server; start it with --allowed-origins or a key")


def _is_own(host: str, allowed: tuple[str, ...]) -> bool:
    name = _name(f"//{host}")
    if not host or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)  # an address cannot be pointed elsewhere
    except ValueError:
        return bool(name) and name in map(_name, allowed)
    return True


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
