"""The page at `/`: one file, and the policy that lets a browser run that file and nothing else."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

_PAGE = Path(__file__).with_name("page.html")


@cache
def page() -> str:
    """Return the page's HTML."""
    return _PAGE.read_text(encoding="utf-8")


def content_security_policy(html: str) -> str:
    """Return the `Content-Security-Policy` header under which a page works.

    Its own inline scripts and style sheets are allowed by their hashes, requests to its own server too; nothing else.
    `style` attributes and handlers in attributes are therefore ignored.
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(html, 'script')}",
            f"style-src {_hashes(html, 'style')}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _hashes(html: str, tag: str) -> str:
    bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    digests = (hashlib.sha256(body.encode()).digest() for body in bodies)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests) or "'none'"
