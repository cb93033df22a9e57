"""The page at `/`, in Chromium: what a person can do there with a mouse, by keyboard, at night and on a phone."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Page, start
from served import KEYS, NGRAM, Served

import parlay
from parlay import LLM, SamplingParams

pytestmark = pytest.mark.clients
pytest_plugins = ["servers"]

PROMPT = "names = ['a', 'b', 'c', 'd', 'a', 'b',"
Open = Callable[[Served], Page]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    made = start()
    yield made
    made.quit()


@pytest.fixture
def visit(driver: Any) -> Iterator[Open]:
    """Visit a server's page with nothing remembered; at the end, look at the console and at what was requested."""
    pages: list[Page] = []

    def make(served: Served) -> Page:
        driver.get_log("browser")
        driver.get_log("performance")
        pages.append(Page(driver, served.url))
        pages[0].emulate()
        return pages[0]

    yield make
    for page in pages:
        page.check()
        page.js("localStorage.clear(); sessionStorage.clear()")


@pytest.fixture
def page(visit: Open, server: Served) -> Page:
    return visit(server).open()


def offline_text(llm: LLM, tokens: int, prompt: str = PROMPT) -> str:
    (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=tokens))
    return output.outputs[0].text


def test_an_answer(page: Page, offline: LLM) -> None:
    """Type, run, read: the offline text, coloured by who drafted it, with figures and charts."""
    page.fill("prompt", PROMPT)
    page.fill("max_tokens", 150)
    page.run()
    pieces = page.pieces()
    assert page.answer() == offline_text(offline, 150)
    drafted = [piece for piece in pieces if piece["title"] == "drafted by ngram"]
    own = [piece for piece in pieces if piece["title"] == "the model's own"]
    assert len(drafted) > 20
    assert own
    assert {piece["back"] for piece in drafted}.isdisjoint({piece["back"] for piece in own})
    assert {piece["line"] for piece in drafted}.isdisjoint({piece["line"] for piece in own})
    assert page.text("legend").split("ngram")[0] == "the model's own"
    assert "150 tokens in" in page.text("first-figures")
    assert f"{len(drafted)} of " in page.text("first-figures")
    assert page.js("return document.querySelector('#speed polyline').points.length") > 3
    assert 1 <= page.js("return document.querySelectorAll('#positions .bar').length") <= 5
    assert "tokens per second" in page.find("speed").get_attribute("aria-label")
    assert not page.shown("error")


def test_it_streams(page: Page) -> None:
    page.fill("prompt", PROMPT)
    page.fill("max_tokens", 1000)
    page.click("speculate")
    page.js(
        "window.grown = 0; new MutationObserver(() => { window.grown++; })"
        ".observe(document.getElementById('first'), { childList: true })"
    )
    page.run()
    assert page.js("return window.grown") > 4  # many events may arrive at once


def test_sampling_with_a_seed(page: Page, offline: LLM) -> None:
    page.fill("prompt", PROMPT)
    for name, value in (("temperature", 0.8), ("top_p", 0.9), ("max_tokens", 40), ("seed", 5)):
        page.fill(name, value)
    page.run()
    (output,) = offline.generate(PROMPT, SamplingParams(temperature=0.8, top_p=0.9, max_tokens=40, seed=5))
    assert page.answer() == output.outputs[0].text


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_beside_plain_decoding(page: Page, temperature: float) -> None:
    page.fill("prompt", PROMPT)
    page.fill("max_tokens", 100)
    page.fill("temperature", temperature)
    page.click("compare")
    page.run()
    text = page.answer()
    assert page.answer("second") == text != ""
    assert page.text("verdict") == f"✓ No difference: both answers are the same {len(text)} characters."
    assert page.find("verdict").get_attribute("class") == "same"
    assert not any("drafted" in piece["title"] for piece in page.pieces("second"))
    assert page.js("return document.querySelectorAll('#speed polyline').length") == 2
    assert bool(page.find("seed").get_attribute("value")) is bool(temperature)  # one noise for both
    page.click("compare")
    page.run()
    assert not page.shown("second-card")
    assert not page.shown("verdict")


def test_speculation_as_set(page: Page) -> None:
    page.fill("prompt", PROMPT)
    page.fill("max_tokens", 100)
    page.fill("drafts", 1)
    page.run()
    assert page.js("return document.querySelectorAll('#positions .bar').length") == 1
    page.click("speculate")
    assert not page.find("method").is_enabled()
    page.run()
    assert not any("drafted" in piece["title"] for piece in page.pieces())


def test_rejected_draft_tokens(page: Page, offline: LLM) -> None:
    """Hidden at first; shown, struck through, on request; no part of the answer."""
    page.fill("prompt", PROMPT)
    page.fill("max_tokens", 100)
    page.run()
    rejected = [piece for piece in page.pieces() if piece["tag"] == "DEL"]
    assert rejected
    assert all(piece["display"] == "none" for piece in rejected)
    page.click("rejected")
    shown = [piece for piece in page.pieces() if piece["tag"] == "DEL"]
    assert [piece["text"] for piece in shown] == [piece["text"] for piece in rejected]
    assert all(piece["display"] == "inline" and "line-through" in piece["line"] for piece in shown)
    assert all(piece["title"] == "rejected draft token of ngram" for piece in shown)
    assert page.answer() == offline_text(offline, 100)
    accepted = sum(piece["title"] == "drafted by ngram" for piece in page.pieces())
    assert f"{accepted} of {accepted + len(rejected)} draft tokens accepted" in page.text("first-figures")


@pytest.mark.parametrize("how", ["click", "escape"])
def test_stop(page: Page, how: str) -> None:
    """Over a network so slow that the answer would take half a minute."""
    from selenium.webdriver.common.keys import Keys

    page.fill("prompt", PROMPT)
    page.fill("max_tokens", 1900)
    page.click("speculate")
    page.slow(20_000)
    page.click("run")
    page.until(lambda: page.text("first") != "")
    if how == "click":
        page.click("stop")
    else:
        page.keys(Keys.ESCAPE)
    page.until(page.idle)
    page.slow(-1)
    assert page.text("status") == "Stopped."
    assert not page.shown("error")
    assert not page.find("stop").is_enabled()
    assert 0 < len(page.text("first")) < 2500


def test_by_keyboard(page: Page) -> None:
    """Every control in the order in which it is read, the focus visible at each; runs without a mouse."""
    from selenium.webdriver.common.keys import Keys

    order = [
        "model",
        "theme",
        "completion",
        "prompt",
        "run",
        "temperature",
        "top_p",
        "max_tokens",
        "seed",
        "speculate",
    ]
    order += ["method", "drafts", "rejected", "compare", "first"]
    for name in order:
        page.keys(Keys.TAB)
        assert page.focused() == name
        outline = page.js(
            "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, s.outlineWidth]"
        )
        assert outline == ["solid", "3px"], name
    page.chord(Keys.SHIFT, Keys.TAB)  # back to "compare"
    page.keys(Keys.SPACE)
    page.find("prompt").send_keys(" 'a'")
    page.chord(Keys.CONTROL, Keys.ENTER)
    page.until(lambda: page.text("verdict").startswith("✓") and page.idle())
    page.keys(Keys.TAB)
    assert page.focused() == "run"
    page.js("window.seen = []; addEventListener('focusin', (event) => window.seen.push(event.target.id))")
    page.keys(Keys.ENTER)
    page.until(lambda: page.js("return window.seen") == ["stop", "run"])
    assert page.idle()
    page.chord(Keys.SHIFT, Keys.TAB)
    page.keys(Keys.ENTER)
    assert page.find("prompt").get_attribute("value").endswith("\n")  # Enter is a line break there


def test_a_conversation(page: Page, offline: LLM) -> None:
    page.click("chat")
    assert page.shown("system-row")
    page.fill("system", "You write Python.")
    page.fill("max_tokens", 24)
    said: list[dict[str, str]] = [{"role": "system", "content": "You write Python."}]
    for question in ("A loop.", "Now a class."):
        page.fill("prompt", question)
        page.run()
        said.append({"role": "user", "content": question})
        (output,) = offline.chat(said, SamplingParams(temperature=0, max_tokens=24))
        assert page.answer() == output.outputs[0].text
        said.append({"role": "assistant", "content": output.outputs[0].text})
    shown = {"user": "You", "assistant": "Model"}
    assert page.text("history") == "".join(shown[m["role"]] + m["content"] for m in said[1:-1])  # the answer is below
    assert page.find("prompt").get_attribute("value") == ""
    page.click("forget")
    assert not page.shown("history")


def test_a_key(visit: Open, keyed: Served) -> None:
    from selenium.webdriver.common.keys import Keys

    page = visit(keyed)
    page.tolerated = ["status of 401"]
    page.load()
    page.until(lambda: page.shown("key"))
    assert page.focused() == "key"
    assert not page.shown("fields")
    assert not page.shown("error")  # nothing is wrong yet
    page.keys("wrong-key", Keys.ENTER)
    page.until(lambda: page.shown("error"))
    assert page.text("error").startswith("401: ")
    assert page.focused() == "key"
    page.fill("key", KEYS["bob"])
    page.keys(Keys.ENTER)
    page.until(lambda: page.shown("fields") and not page.shown("error"))
    assert page.focused() == "prompt"
    page.fill("max_tokens", 8)
    page.run()
    assert page.text("first")
    page.load()  # the key lasts as long as the tab
    page.until(lambda: page.js("return document.getElementById('model').options.length > 0"))
    assert page.find("key").get_attribute("value") == KEYS["bob"]
    assert page.js("return JSON.stringify(localStorage)") == "{}"


def test_what_can_go_wrong(visit: Open) -> None:
    with Served() as served:
        page = visit(served).open()
        page.tolerated = ["status of 400", "ERR_CONNECTION_REFUSED"]
        page.js("document.getElementById('prompt').value = 'word '.repeat(5000)")
        page.run()
        assert page.text("error").startswith("400: ")
        page.fill("prompt", "x =")
        page.fill("temperature", -1)
        page.click("run")
        assert page.js("return document.activeElement.validity.rangeUnderflow")  # the browser says it
        page.fill("temperature", 0)
        page.run()
        assert not page.shown("error")
        served.stop()
        page.run()
        assert page.text("error") == "The connection to the server failed. Is it running?"
        assert page.text("status") == "Failed."


LOOKS = {"light": {}, "dark": {"dark": True}, "phone": {"width": 390}, "phone-dark": {"width": 390, "dark": True}}


@pytest.mark.parametrize("look", LOOKS)
def test_looks(page: Page, tools: Path, look: str) -> None:
    """Nothing sticks out, axe has nothing to complain of; pictures for people to look at."""
    page.emulate(**LOOKS[look])
    folder, axe = tools / "screenshots", tools / "node_modules" / "axe-core" / "axe.min.js"
    page.load()
    page.until(lambda: page.js("return document.getElementById('model').options.length > 0"))
    page.picture(folder / f"{look}-empty.png")
    assert page.overflow() == []
    assert page.complaints(axe) == []
    for name, value in (("max_tokens", 120), ("temperature", 0.7), ("seed", 8)):
        page.fill(name, value)
    page.click("compare")
    page.click("rejected")
    page.run()
    page.js("scrollTo(0, 0)")
    page.picture(folder / f"{look}-compared.png")
    assert page.overflow() == []
    assert page.complaints(axe) == []
    page.click("chat")
    for message in ("A function that adds two numbers.", "Now a test of it."):
        page.fill("prompt", message)
        page.fill("max_tokens", 60)
        page.run()
    page.js("document.getElementById('prompt').value = 'word '.repeat(5000)")
    page.tolerated = ["status of 400"]
    page.run()
    page.picture(folder / f"{look}-chat.png")
    assert page.shown("error")
    assert page.overflow() == []
    assert page.complaints(axe) == []


@pytest.mark.parametrize("width", [390, None])
def test_the_way_to_the_reference(page: Page, width: int | None) -> None:
    """At the end of the page, and nothing lies over it."""
    page.emulate(width=width)
    page.load()
    page.js("scrollTo(0, document.documentElement.scrollHeight)")
    over = """const box = document.querySelector("footer a").getBoundingClientRect();
        return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2).getAttribute("href")"""
    assert page.js(over) == "/docs"
    assert page.overflow() == []


def test_colours_by_choice(page: Page) -> None:
    def back() -> str:
        return str(page.js("return getComputedStyle(document.body).backgroundColor"))

    light = back()
    page.click("theme")
    dark = back()
    assert dark != light
    page.load()
    assert back() == dark  # remembered
    page.click("theme")
    assert back() == light
    page.emulate(dark=True)
    assert back() == light  # chosen, whatever the system says
    page.click("theme")
    assert back() == dark


def test_a_chat_model_with_a_long_name(visit: Open, tools: Path, tmp_path: Path) -> None:
    """It opens in chat, fits a phone, and says which rate is which."""
    model = tmp_path / ("a-chat-model-with-a-name-of-many-words-" * 3 + "instruct")
    shutil.copytree(Path(parlay.__file__).parent / "assets" / "tiny-code", model)
    with Served("--speculative-config", NGRAM, model=str(model)) as served:
        page = visit(served)
        page.emulate(width=390)
        page.open()
        assert page.js("return document.getElementById('chat').checked")
        assert page.js("return document.getElementById('prompt').value") == ""
        page.picture(tools / "screenshots" / "phone-long-name.png")
        assert page.overflow() == []
        page.fill("prompt", "A function that adds two numbers.")
        page.fill("max_tokens", 40)
        page.run()
        figures = page.text("first-figures")
        assert "tokens/s end-to-end" in figures
        assert "decode-only" in figures
        assert page.overflow() == []
