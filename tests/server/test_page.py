"""The page: one file that needs no other, with labels, contrast and a policy; its script runs under node."""

import base64
import hashlib
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from parlay.server import page as module
from parlay.server.page import content_security_policy, page

HTML = page()
SCRIPT = re.findall(r"<script>(.*?)</script>", HTML, re.DOTALL)[0]
STYLE = re.findall(r"<style>(.*?)</style>", HTML, re.DOTALL)[0]
VOID = {"meta", "link", "input", "br"}


Found = list[tuple[str, dict[str, str | None], tuple[str, ...]]]


class Elements(HTMLParser):
    """Every element with its attributes, and whether tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Found = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def elements() -> Found:
    parser = Elements()
    parser.feed(HTML)
    assert not parser.open
    return parser.found


def test_it_needs_nothing_from_elsewhere(elements: Found) -> None:
    for tag, attributes, _ in elements:
        for name in ("src", "href", "action", "srcset", "data"):
            value = attributes.get(name)
            if (tag, name) != ("a", "href"):  # which is followed only when asked
                assert value is None or value.startswith("data:"), (tag, name, value)
        assert tag not in {"iframe", "object", "embed", "base", "img"}
    assert not re.findall(r"@import|url\(|import\s*\(|importScripts|WebSocket|EventSource", HTML)
    # The only address is the name of a namespace, which nobody fetches.
    assert re.findall(r"https?://[^\"'` ]*", HTML) == ["http://www.w3.org/2000/svg"]
    assert set(re.findall(r"fetch\((.*?)[,)]", SCRIPT)) == {'"/v1/models"', "path"}
    assert set(re.findall(r'"(/[\w/]*)"', SCRIPT)) == {"/v1/models", "/v1/completions", "/v1/chat/completions"}


def test_it_leads_to_the_reference(elements: Found) -> None:
    links = [(attributes, around) for tag, attributes, around in elements if tag == "a"]
    # In a tab of its own: a conversation would be gone.
    assert links == [({"href": "/docs", "target": "_blank", "rel": "noopener"}, ("html", "body", "footer"))]
    app = (Path(module.__file__).parent / "app.py").read_text()
    assert 'Route("/docs"' in app


def test_ids_are_unique_and_there(elements: Found) -> None:
    ids = Counter(a["id"] for _, a, _ in elements if "id" in a)
    assert max(ids.values()) == 1
    used = set(re.findall(r'\$\("([\w-]+)"\)', SCRIPT)) | set(re.findall(r'number\("([\w-]+)"\)', SCRIPT))
    assert len(used) > 25
    assert used <= set(ids)
    for _, attributes, _ in elements:
        for name in ("for", "aria-labelledby"):
            if name in attributes:
                assert attributes[name] in ids


def test_everything_to_fill_in_has_a_label(elements: Found) -> None:
    labelled = {a["for"] for tag, a, _ in elements if tag == "label" and "for" in a}
    fields = [(a["id"], around) for tag, a, around in elements if tag in {"input", "select", "textarea"}]
    assert len(fields) > 12
    assert [id_ for id_, around in fields if id_ not in labelled and "label" not in around] == []
    assert all(a.get("type") for tag, a, _ in elements if tag == "button")
    attributes = {name for _, a, _ in elements for name in a}
    assert "tabindex" in attributes
    assert {a["tabindex"] for _, a, _ in elements if "tabindex" in a} == {"0", "-1"}  # focus goes in the page's order
    assert {"status", "alert"} <= {a.get("role") for _, a, _ in elements}


def test_text_that_came_from_a_server_is_never_markup() -> None:
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", SCRIPT)


def test_the_policy_allows_this_page_and_nothing_else(elements: Found) -> None:
    policy = dict(part.split(" ", 1) for part in content_security_policy(HTML).split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for name, body in (("script-src", SCRIPT), ("style-src", STYLE)):
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert policy[name] == f"'sha256-{digest}'"
    # What the policy would silently drop.
    assert [a for _, a, _ in elements if "style" in a or any(name.startswith("on") for name in a)] == []
    assert len(re.findall("<script", HTML)) == len(re.findall("<style", HTML)) == 1
    changed = content_security_policy(HTML.replace('"use strict";', '"use strict"; alert(1);'))
    assert changed != content_security_policy(HTML)
    assert "script-src 'none'" in content_security_policy("<p>nothing")


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""
    bright, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_contrast(mode: int) -> None:
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", STYLE)
    colours = {name: both[mode] for name, *both in pairs}
    for ground in ("page", "card"):
        assert contrast(colours["ink"], colours[ground]) >= 7
        for text in ("quiet", "good", "bad", "accent"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        for line in ("edge", "s1", "s2", "s3", "s4", "s5"):
            assert contrast(colours[line], colours[ground]) >= 3, (line, ground)
    for i in range(1, 6):
        assert contrast(colours["ink"], colours[f"s{i}-tint"]) >= 7
        assert contrast(colours[f"s{i}"], colours[f"s{i}-tint"]) >= 3
    assert contrast(colours["on-accent"], colours["accent"]) >= 4.5
    assert contrast(colours["bad"], colours["bad-tint"]) >= 4.5


def test_colour_is_not_all() -> None:
    styles = re.findall(r"\.s(\d) \{[^}]*?text-decoration-style: (\w+)", STYLE)
    assert len({style for _, style in styles} | {"solid"}) == 5


def test_it_honours_what_the_reader_prefers() -> None:
    assert "prefers-reduced-motion: reduce" in STYLE
    assert "prefers-reduced-motion: reduce" in SCRIPT
    assert "color-scheme: light dark" in STYLE
    assert 'name="viewport"' in HTML
    # Nothing has a width of its own that a small phone does not have.
    widths = [float(w) for w in re.findall(r"(?<!max-)(?<!min-)width: ([\d.]+)rem", STYLE)]
    assert all(w < 20 for w in widths)


@pytest.mark.skipif(shutil.which("node") is None, reason="the page's script is run by node")
def test_the_script() -> None:
    here = Path(__file__).parent
    command = ["node", str(here / "page_test.js"), str(Path(module.__file__).with_name("page.html"))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("ok ")
