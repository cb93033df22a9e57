"""Pages of other origins, in the browser of somebody who can reach a server without keys."""

import json
from typing import Any

import httpx
import pytest
from serving import Live

from parlay.config import ServerConfig
from parlay.errors import ParlayError
from parlay.server.browsers import check_page
from parlay.server.errors import ApiError

LOCAL = "127.0.0.1:8000"


class NoEngine:
    """An engine that is never asked for tokens."""

    model_name, model_names = "none", ("none",)
    numerics_id, max_model_len, state = "none", 8, "ready"

    def generate(self, *args: Any, **more: Any) -> Any:
        raise ParlayError("asked")


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
        *((other, True) for other in ("evil.example:8000", "localhost.evil.example", "[", "a@b/", "127.0.0.1.x")),
    ],
)
def test_a_name_pointed_at_this_machine_is_none_of_its_own(host: str, expected: bool) -> None:
    for method in ("GET", "POST"):
        assert refused({"Host": host, "Origin": f"http://{host}"}, method) is expected
    assert not refused({"Host": host}, host="0.0.0.0")  # whose names are not known


def test_the_name_of_an_allowed_origin_is_its_own() -> None:
    assert not refused({"Host": "page.example"}, allowed_origins=("https://page.example",))


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


def test_an_allowed_page_may_send_what_openai_s_client_sends() -> None:
    asked = {
        "Origin": "https://page.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang,x-stainless-os",
    }
    with Live(NoEngine(), allowed_origins=("https://page.example",)) as live:
        answer = httpx.options(live.url + "/v1/completions", headers=asked, trust_env=False)
    assert answer.status_code == 200
    assert "x-stainless-os" in answer.headers["Access-Control-Allow-Headers"]
