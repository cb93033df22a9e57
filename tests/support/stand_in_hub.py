"""A stand-in for the hub on loopback: as much of its API as the hub's library needs, and what goes wrong with it."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".gguf", ".safetensors", ".bin")  # kept as large files are, known by SHA-256


class StandInHub:
    """Repositories and their files; what is asked for is written down.

    Attributes:
        repositories: bytes by path by repository.
        cuts: by path, after how many bytes of its body each of the next answers ends.
        instead: by path, what is sent in place of the file that was announced.
        gone: paths that are listed and not there.
        ranges: whether the rest of a file can be asked for.
        stall: set in an answer's midst when a cut is to wait there, until `go_on` is set.
        asked: the paths of files whose bodies were asked for, each with the first byte.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.cuts: dict[str, list[int]] = {}
        self.instead: dict[str, bytes] = {}
        self.gone: set[str] = set()
        self.ranges = True
        self.stalls = False
        self.stalled = threading.Event()
        self.go_on = threading.Event()
        self.asked: list[tuple[str, int]] = []
        self.authorizations: set[str | None] = set()

    def publish(self, repository: str, **files: bytes | Path) -> None:
        """Put files into a repository; a directory's are all put there."""
        known = self.repositories.setdefault(repository, {})
        for name, content in files.items():
            if isinstance(content, Path) and content.is_dir():
                known.update({file.name: file.read_bytes() for file in content.iterdir()})
            else:
                known[name] = content.read_bytes() if isinstance(content, Path) else content

    def commit(self, repository: str) -> str:
        """Return the name of a repository's present state."""
        digest = sha1()
        for path, content in sorted(self.repositories[repository].items()):
            digest.update(path.encode() + content)
        return digest.hexdigest()

    def listing(self, repository: str) -> list[dict[str, Any]]:
        """Return the files of a repository as the API lists them."""
        entries = []
        for path, content in self.repositories[repository].items():
            entry: dict[str, Any] = {"path": path, "size": len(content), "oid": sha1(content).hexdigest()}
            if path.endswith(LARGE):
                entry["lfs"] = {"sha256": sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            entries.append(entry)
        return entries


@contextmanager
def serving(hub: StandInHub) -> Iterator[str]:
    """Serve a stand-in; gives its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        hub.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: StandInHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        self.hub.authorizations.add(self.headers["authorization"])
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+|/tree/[^/]+)?", path):
            self._describe(found[1], (found[2] or "").startswith("/tree"))
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._file(found[1], found[2], body)
        else:
            self._fail("EntryNotFound")

    def _describe(self, repository: str, tree: bool) -> None:
        if repository not in self.hub.repositories:
            self._fail("RepoNotFound")
            return
        entries = self.hub.listing(repository)
        if tree:
            for entry in entries:
                entry["type"] = "file"
                if "lfs" in entry:
                    entry["lfs"]["oid"] = entry["lfs"]["sha256"]
            self._json(entries)
            return
        siblings = [
            {
                "rfilename": e["path"],
                "size": e["size"],
                "blobId": e["oid"],
                **({"lfs": e["lfs"]} if "lfs" in e else {}),
            }
            for e in entries
        ]
        self._json({"id": repository, "sha": self.hub.commit(repository), "siblings": siblings})

    def _file(self, repository: str, path: str, body: bool) -> None:
        content = self.hub.repositories.get(repository, {}).get(path)
        if content is None or path in self.hub.gone:
            self._fail("EntryNotFound")
            return
        etag = sha256(content).hexdigest() if path.endswith(LARGE) else sha1(content).hexdigest()
        size, begin = len(content), 0
        content = self.hub.instead.get(path, content)
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["range"] or "")
        if asked and self.hub.ranges:
            begin = int(asked[1])
        if body:
            self.hub.asked.append((path, int(asked[1]) if asked else 0))
        cuts = self.hub.cuts.get(path)
        end = begin + cuts.pop(0) if cuts and body else len(content)
        self.send_response(206 if begin else 200)
        self.send_header("X-Repo-Commit", self.hub.commit(repository))
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Linked-Size", str(size))
        self.send_header("Content-Length", str(len(content) - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if not body:
            return
        self.wfile.write(content[begin:end])
        self.wfile.flush()
        if end < len(content):
            if self.hub.stalls:
                self.hub.stalled.set()
                self.hub.go_on.wait(60)
            self.close_connection = True

    def _json(self, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _fail(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
