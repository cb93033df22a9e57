"""What the documentation's site has besides `docs/`, for mkdocs: `make docs`.

The README is its first page, and the pages of `docs/reference/` are completed from the code. Links between pages
become the site's; of links to files that the site has no page for, such as sources, the text stays.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).resolve().parents[1]
_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_GENERATED = {
    "<!-- generated: command_line -->": reference.command_line,
    "<!-- generated: options -->": reference.options,
    "<!-- generated: http -->": lambda: "[Endpoints](endpoints.html) · [OpenAPI document](openapi.json)",
}
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)\s]+)\)")


def on_files(files: Files, *, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages that lie beside `docs/`, and a server's own."""
    for name, page in _PAGES.items():
        files.append(File.generated(config, page, content=(_ROOT / name).read_text("utf-8")))
    for name, content in reference.http().items():
        files.append(File.generated(config, f"reference/{name}", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Put in what is generated, and lead links to where the site has what they are to."""
    for mark, make in _GENERATED.items():
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    own = {place: name for name, place in _PAGES.items()}
    source = own.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def lead(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or ":" in path:
            return match[0]
        whole = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (_ROOT / whole).exists():
            return match[0]  # which mkdocs refuses
        place = _PAGES.get(whole, whole.removeprefix("docs/") if whole.startswith("docs/") else "")
        if files.get_file_from_path(place) is None:
            return text
        there = posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")
        return f"{image}[{text}]({there}{'#' + anchor if anchor else ''})"

    return _LINK.sub(lead, markdown)
