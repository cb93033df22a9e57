"""Pages of other origins, in the browser of somebody who can reach a server without keys."""

import json
import re
from typing import Any

import httpx
import pytest
from serving import Live, NoEngine

from parlay.config import ServerConfig
from parlay.errors import ConfigError
from parlay.server.browsers import check_page
from parlay.server.errors import ApiError

LOCAL = "127.0.0.1:8000"


def refused(headers: dict[str, str], method: str = "POST", **options: Any) -> bool:
    try:
        check_page(method, {k.lower().encode(): v for k, v in headers.items()}, ServerConfig(**options))
    except ApiError as error:
        return error.status == 403
    return False


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, False),  # no browser
        ({"Origin": f"http://{LOCAL}"}, False),  # the server's own page
        ({"Origin": "https://evil.example"}, True),
        ({"Origin": "http://127.0.0.1:9000"}, True),
        ({"Origin": "null"}, True),  # a sandboxed frame
        ({"Origin": "http://["}, True),
        ({"Sec-Fetch-Site": "cross-site"}, True),
        ({"Sec-Fetch-Site": "same-site", "Origin": f"http://{LOCAL}"}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://behind-a-proxy.example"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
    ],
)
def test_a_page_of_another_origin_is_refused(headers: dict[str, str], expected: bool) -> None:
    assert refused({"Host": LOCAL, **headers}) is expected
    assert not refused({"Host": LOCAL, **headers}, "GET")  # the browser hides the answer
    assert not refused({"Host": LOCAL, **headers}, allowed_origins=("*",))


def test_an_allowed_origin_is_served() -> None:
    headers = {"Host": LOCAL, "Origin": "https://page.example", "Sec-Fetch-Site": "cross-site"}
    assert not refused(headers, allowed_origins=("https://page.example",))
    assert refused(headers, allowed_origins=("https://other.example",))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((own, False) for own in (LOCAL, "localhost", "localhost:80", "a.localhost:1", "[::1]:8000", "192.0.2.1")),
        # Docker Desktop's, Podman's, minikube's and Lima's names of the host, and a name with its root.
        *((f"{own}:8000", False) for own in ("host.docker.internal", "host.containers.internal")),
        *((f"{own}:8000", False) for own in ("gateway.docker.internal", "kubernetes.docker.internal")),
        *((own, False) for own in ("host.minikube.internal", "host.lima.internal", "localhost.", "LOCALHOST:1")),
        *((own, False) for own in ("host.docker.internal.", "ip6-localhost:8000", "localhost.localdomain", "")),
        # Whoever is in the same network may answer for `.local` (RFC 6762), and anyone may have a name like these.
        *((other, True) for other in ("box.local", "internal.example.com", "docker-internal.com", "xinternal")),
        *((other, True) for other in ("host.docker.internal.evil.example", ".", "localhost..", "box")),
        *((other, True) for other in ("evil.example:8000", "localhost.evil.example", "[", "a@b/", "127.0.0.1.x")),
    ],
)
def test_a_name_pointed_at_this_machine_is_none_of_its_own(host: str, expected: bool) -> None:
    for method in ("GET", "POST"):
        assert refused({"Host": host, "Origin": f"http://{host}"}, method) is expected
    assert not refused({"Host": host}, host="0.0.0.0")  # whose names are not known


def test_the_name_of_an_allowed_origin_is_its_own() -> None:
    for allowed in ("https://page.example", "https://page.example:8443", "https://page.example:*"):
        assert not refused({"Host": "page.example:8000"}, allowed_origins=(allowed,))
    assert not refused({"Host": "a.page.example"}, allowed_origins=("https://*.page.example",))
    for allowed in ("https://*.page.example", "https://page.example", "vscode-webview://*", "null"):
        assert refused({"Host": "evil.example"}, allowed_origins=(allowed,))


def test_every_loopback_address_is_this_machine_s_alone() -> None:
    assert refused({"Host": "evil.example"}, host="127.0.0.2")
    assert not refused({"Host": "evil.example"}, host="192.0.2.1")


@pytest.mark.parametrize("host", ["box.local:8000", "a.b.example", "my-box"])
def test_a_refusal_names_the_flag_that_works(host: str) -> None:
    with pytest.raises(ApiError) as told:
        check_page("GET", {b"host": host}, ServerConfig())
    flag = next(word for word in str(told.value).split() if word.startswith("http://"))
    assert not refused({"Host": host}, allowed_origins=(flag,))


# As browsers, VS Code, Obsidian, Tauri and extensions send them; the first column as people write them.
@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("http://localhost:3000/", "http://localhost:3000"),
        ("HTTPS://Example.org", "https://example.org"),
        ("https://example.org:443", "https://example.org"),
        ("http://example.org:80/", "http://example.org"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("http://localhost:*", "http://localhost:5173"),
        ("http://localhost:*", "http://localhost"),
        ("https://*.example.com", "https://a.example.com"),
        ("https://*.example.com", "https://a.b.example.com"),
        ("https://*.example.com:*", "https://a.example.com:8443"),
        ("http://*.localhost:*", "http://app.localhost:3000"),
        ("vscode-webview://*", "vscode-webview://0gk8qb6q2hr1s5l9n3qd"),
        ("chrome-extension://*", "chrome-extension://mhjfbmdgcfjbbpaeojofohoefgiehjai"),
        ("app://obsidian.md", "app://obsidian.md"),
        ("tauri://localhost", "tauri://localhost"),
        ("null", "null"),
        ("*", "https://anything.example"),
    ],
)
def test_an_allowed_origin_is_matched_as_browsers_send_it(written: str, sent: str) -> None:
    headers = {"Host": LOCAL, "Origin": sent, "Sec-Fetch-Site": "cross-site"}
    assert not refused(headers, allowed_origins=(written,))
    if written != "*":
        assert refused({**headers, "Origin": "https://evil.example"}, allowed_origins=(written,))


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("https://*.example.com", "https://example.com.evil.example"),
        ("https://*.example.com", "https://evil.example/.example.com"),
        ("https://*.example.com", "https://evilexample.com"),
        ("https://*.example.com", "http://a.example.com"),
        ("https://*.example.com", "https://example.com"),
        ("https://*.example.com", "https://a.example.com:8443"),
        ("http://localhost:*", "http://localhost.evil.example"),
        ("http://localhost:*", "http://localhost:1@evil.example"),
        ("https://example.org", "https://examplexorg"),
        ("vscode-webview://*", "https://vscode-webview.example"),
        ("null", "nullx"),
    ],
)
def test_a_wildcard_stands_for_no_more_than_it_says(written: str, sent: str) -> None:
    assert refused({"Host": LOCAL, "Origin": sent, "Sec-Fetch-Site": "cross-site"}, allowed_origins=(written,))


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("host.docker.internal", "http://host.docker.internal"),
        ("*.example.com", "scheme"),
        ("http://localhost:3000/app", "no path"),
        ("https://a.example?x", "no path"),
        ("http://*", "write *"),
        ("https://*:3000", "write *"),
        ("https://*.com", "subdomains"),
        ("https://a.*.example", "SCHEME://HOST"),
        ("https://me@example.org", "SCHEME://HOST"),
        ("http://a.example,http://b.example", "once for each"),
        ("", "leave the option out"),
        ("http://", "SCHEME://HOST"),
    ],
)
def test_what_no_browser_sends_is_refused(written: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(advice)):
        ServerConfig(allowed_origins=(written,))


@pytest.mark.parametrize("keys", [(), ("a-key-for-tests",)])
def test_the_server_asks(keys: tuple[str, ...]) -> None:
    """A body without a type is sent without asking the server first; with keys, the key decides."""
    body = json.dumps({"tokens": []})
    with Live(NoEngine(), api_key=keys) as live:
        evil = {"Origin": "https://evil.example"}
        answer = httpx.post(live.url + "/detokenize", content=body, headers=evil, trust_env=False)
        rebound = httpx.get(live.url + "/v1/models", headers={"Host": "evil.example"}, trust_env=False)
    assert (answer.status_code, rebound.status_code) == ((401, 401) if keys else (403, 403))
    if not keys:
        assert answer.json()["error"]["type"] == "permission_error"


@pytest.mark.parametrize("origin", ["https://page.example", "https://*.example", "vscode-webview://*"])
def test_an_allowed_page_may_send_what_openai_s_client_sends(origin: str) -> None:
    origin = origin.replace("*.example", "*.page.example")
    page = origin.replace("*", "a")
    asked = {
        "Origin": page,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang,x-stainless-os",
    }
    with Live(NoEngine(), allowed_origins=(origin,)) as live:
        other = httpx.options(live.url + "/v1/completions", headers={**asked, "Origin": "x://b"}, trust_env=False)
        answer = httpx.options(live.url + "/v1/completions", headers=asked, trust_env=False)
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == page
    assert "Access-Control-Allow-Origin" not in other.headers
    assert "x-stainless-os" in answer.headers["Access-Control-Allow-Headers"]
