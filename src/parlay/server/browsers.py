"""Protection against web pages of other origins that send requests through a user's browser.

A browser hides the answer from such a page, but sends the request; and a page whose name is pointed at this machine
after it was loaded ("DNS rebinding") even reads the answer. Where keys are needed neither succeeds, since no browser
sends one by itself.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from parlay.config import ServerConfig
from parlay.config.web_origins import host_pattern, matches
from parlay.server.errors import ApiError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Names that mean this machine in every system's files; without a name, only programs ask.
_NAMES = ("", "localhost", "ip6-localhost", "ip6-loopback", "localhost.localdomain")
# Reserved (RFC 6761, and by ICANN in 2024): no public name server has them. Containers reach their host as
# host.docker.internal and the like. Not `.local`: any machine in the same network may answer for it.
_RESERVED = (".localhost", ".internal")
_READING = ("GET", "HEAD", "OPTIONS")


def check_page(method: str, headers: Mapping[bytes, str], config: ServerConfig) -> None:
    """Refuse a request of another origin's page to a server without keys; other clients send no such headers.

    Args:
        method: the HTTP method.
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
    if is_loopback(config.host) and not _is_own(name := _name(host), allowed):
        flag = f"--allowed-origins http://{name if re.fullmatch('[a-z0-9.-]+', name) else 'NAME'}"
        raise ApiError(
            403, f"this server is not known under that name; use localhost, or start it with {flag} or a key"
        )
    origin = headers.get(b"origin")
    if method in _READING or matches(origin, allowed):
        return
    # Sec-Fetch-Site is the browser's own view, whatever a proxy made of Host; not every browser sends it.
    site = headers.get(b"sec-fetch-site")
    same = site in ("same-origin", "none") if site else origin is None or origin.partition("://")[2] == host
    if not same:
        raise ApiError(
            403, "pages of this origin may not use this server; start it with --allowed-origins ORIGIN or a key"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches what listens there."""
    try:
        return host in LOOPBACK or ip_address(host).is_loopback
    except ValueError:
        return False


def _is_own(name: str, allowed: tuple[str, ...]) -> bool:
    """Return whether no stranger can have pointed a name at this machine."""
    if name in _NAMES or name.endswith(_RESERVED):
        return True
    try:
        ip_address(name)  # an address cannot be pointed elsewhere
    except ValueError:
        return bool(name) and re.fullmatch(host_pattern(allowed), name) is not None
    return True


def _name(host: str) -> str:
    """Return the name in a `Host` header; empty if there is none, and `?` if it has another form."""
    try:
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".") or "?" if host else ""
    except ValueError:
        return "?"
