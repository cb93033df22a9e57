"""`parlay verify --url`: the same requests to a running server in several ways."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from serving import Live

from parlay import AsyncLLM
from parlay.cli.main import main
from parlay.same_tokens.server import KINDS


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live(AsyncLLM("tiny-code", max_model_len=256)) as serving:
        yield serving


def test_parlays_own(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--url", live.url, "--max-tokens", "12", "--json"]) == 0
    text, _, line = capsys.readouterr().out.rstrip().rpartition("\n")
    assert "one request, one answer" in text
    rows = json.loads(line)["rows"]
    assert {(row["way"], row["parameters"]) for row in rows} == {
        (way, kind)
        for way in ("again", "together", "among others", "streamed", "without speculation")
        for kind in KINDS
    }
    assert all(row["same"] and row["tokens"] > 12 for row in rows)


class Moody(BaseHTTPRequestHandler):
    """Answers with a word that changes after the fifth request."""

    asked = 0

    def do_GET(self) -> None:
        self.give({"data": [{"id": "moody"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).asked += 1
        self.give({"choices": [{"text": "calm" if self.asked < 6 else "angry"}]})

    def give(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def moody() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Moody)
    Moody.asked = 0
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_server_that_changes_its_mind(moody: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--url", moody + "/v1", "--json"]) == 1
    text, _, line = capsys.readouterr().out.rstrip().rpartition("\n")
    assert "one request has several answers" in text
    (row,) = json.loads(line)["rows"]
    assert (row["way"], row["difference"]) == ("again", "prompt 1, character 0: 'angry', not 'calm'")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9", "no server answers at http://127.0.0.1:9/v1 ("),
        ("127.0.0.1:9", "is not the address of a server"),
        ("http://a:b@c", "leave user and password out"),
    ],
)
def test_no_server(url: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--url", url]) == 2
    assert words in capsys.readouterr().err
