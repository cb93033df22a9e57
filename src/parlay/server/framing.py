"""Requests whose head a proxy in front of the server may read otherwise, or is too long: refused before all else.

Such a request may hide a second one from the proxy ("smuggling"). RFC 9112 (6.1) has the server close the connection.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from parlay.server.errors import ApiError

_MOST_HEAD = 64 << 10  # bytes; h11 notices longer ones by 16 KiB later
_LINE = len("  HTTP/1.1\r\n\r\n")


class Framing:
    """The outermost layer."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it and close its connection."""
        trouble = _trouble(scope) if scope["type"] == "http" else ""
        if trouble:
            await ApiError(400, trouble, headers={"Connection": "close"}).response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _trouble(scope: Scope) -> str:
    names = {name for name, _ in scope["headers"]}
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            return "a request has Content-Length or Transfer-Encoding, not both; leave one out"
        if scope.get("http_version") == "1.0":
            return "HTTP/1.0 has no Transfer-Encoding; use Content-Length or HTTP/1.1"
    query = scope["query_string"]
    target = len(scope.get("raw_path", b"")) + len(query) + bool(query)
    head = _LINE + len(scope["method"]) + target + sum(len(n) + len(v) + 4 for n, v in scope["headers"])
    return f"the request's head has more than {_MOST_HEAD} bytes; send less" if head > _MOST_HEAD else ""
