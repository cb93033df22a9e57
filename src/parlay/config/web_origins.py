"""Origins of web pages, as `--allowed-origins` names them and as browsers send them."""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from parlay.errors import ConfigError, shown

_PORTS = {"http": 80, "https": 443}  # which browsers leave out
_WHOLE = ("*", "null")  # every origin, and that of files and of frames in a sandbox
_FORM = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>\*|(\*\.)?[^\s/?#@:*,\[\]]+|\[[0-9a-f:.]+\])(?P<port>:(\d+|\*))?"
)


def parse_origin(text: str) -> str:
    """Return an origin in the form in which browsers send it.

    It may have `*` in three places: for the port, for subdomains (`https://*.example.org`), and for all that follows
    a scheme that is not the web's (`vscode-webview://*`).

    Raises:
        ConfigError: no browser sends such an origin.
    """
    origin = re.sub(r"(?<=[^/])/$", "", text.strip().lower())
    if origin in _WHOLE:
        return origin
    found = _FORM.fullmatch(origin)
    if found is None:
        raise _never(text, _advice(origin))
    scheme, host, port = found["scheme"], found["host"], found["port"] or ""
    if scheme in _PORTS:
        if host == "*":
            raise _never(text, "write * for all origins, or give the host")
        if host.startswith("*.") and "." not in host[2:].rstrip(".") and host != "*.localhost":
            raise _never(text, "*. stands for subdomains of a domain such as *.example.org")
        if port and port != ":*" and int(port[1:]) == _PORTS[scheme]:
            port = ""
        try:
            host = host if host.isascii() else host.encode("idna").decode()
        except UnicodeError:
            raise _never(text, "its host is no name") from None
    return f"{scheme}://{host}{port}"


def matches(origin: str | None, allowed: Sequence[str]) -> bool:
    """Return whether a browser's origin is among the allowed ones."""
    return origin is not None and re.fullmatch(pattern(allowed), origin) is not None


def pattern(allowed: Sequence[str]) -> str:
    """Return a regular expression that all of an allowed origin matches."""
    return "|".join(map(_pattern, allowed)) or r"(?!)"


def host_pattern(allowed: Sequence[str]) -> str:
    """Return a regular expression that the allowed origins' hosts match, ports left out."""
    hosts = [urlsplit(one.removesuffix(":*")).hostname or "" for one in allowed if one not in _WHOLE]
    return "|".join(_host(host) for host in hosts if host not in ("", "*")) or r"(?!)"


def _pattern(origin: str) -> str:
    if origin in _WHOLE:
        return r".*" if origin == "*" else origin
    found = _FORM.fullmatch(origin)
    assert found is not None
    port = r"(:\d+)?" if found["port"] == ":*" else found["port"] or ""
    host = r"[^/]*" if found["host"] == "*" else _host(found["host"])
    return f"{re.escape(found['scheme'])}://{host}{port}"


def _host(name: str) -> str:
    return rf"([^./:@]+\.)+{re.escape(name[2:])}" if name.startswith("*.") else re.escape(name)


def _advice(origin: str) -> str:
    if "," in origin:
        return "give the flag once for each origin"
    if "://" not in origin:
        return f"give the scheme too, as in http://{origin}" if origin else "give one, or leave the option out"
    if re.fullmatch(r"[^/]*//[^/?#]*[/?#].*", origin):
        return "an origin has no path; leave it out"
    return "it is SCHEME://HOST or SCHEME://HOST:PORT, with * for the port or as *.DOMAIN"


def _never(text: str, advice: str) -> ConfigError:
    return ConfigError(f"allowed_origins: no page has the origin {shown(text)}; {advice}", param="allowed_origins")
