"""A person at the page: Debian's Chromium, headless, driven by Selenium."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from served import wait_until

MISSING = "no chromium or no chromedriver; run: apt-get install chromium chromium-driver"


def start() -> Any:
    """Return a driver whose Chromium can reach nothing but this machine."""
    from selenium import webdriver

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert chromium, MISSING
    assert driver, MISSING
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",  # machines of CI run everything as root
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
        "--window-size=1280,1000",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


class Page:
    """The page as a person sees and handles it, by the ids of its elements."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url
        self.tolerated: list[str] = []  # parts of console messages that a test provokes

    def open(self) -> "Page":
        """Load it as a first-time visitor, and wait until it knows the model."""
        self.load()
        wait_until(lambda: self.js("return document.getElementById('model').options.length > 0"))
        return self

    def load(self) -> None:
        self.driver.get(self.url + "/")

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def answer(self, pane: str = "first") -> str:
        """Return an answer without the draft tokens that were rejected."""
        return "".join(piece["text"] for piece in self.pieces(pane) if piece["tag"] == "SPAN")

    def find(self, name: str) -> Any:
        return self.driver.find_element("id", name)

    def text(self, name: str) -> str:
        """Return all of an element's text, its spaces as they are."""
        return str(self.js("return document.getElementById(arguments[0]).textContent", name))

    def shown(self, name: str) -> bool:
        return bool(self.find(name).is_displayed())

    def fill(self, name: str, text: Any) -> None:
        """Replace a field's content by typing."""
        from selenium.webdriver.common.keys import Keys

        field = self.find(name)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(Keys.DELETE)
        field.send_keys(str(text))

    def keys(self, *keys: str) -> None:
        """Press keys one after another, whatever has the focus."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def chord(self, *keys: str) -> None:
        """Press keys together."""
        from selenium.webdriver import ActionChains

        chain = ActionChains(self.driver)
        for key in keys:
            chain.key_down(key)
        for key in reversed(keys):
            chain.key_up(key)
        chain.perform()

    def focused(self) -> str:
        return str(self.js("return document.activeElement.id"))

    def click(self, name: str) -> None:
        self.find(name).click()

    def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        wait_until(condition, seconds)

    def run(self) -> None:
        """Press Run and wait for the end."""
        self.click("run")
        self.until(
            lambda: self.text("status").startswith(("Finished", "Cut off", "Failed", "Stopped")) and self.idle()
        )

    def idle(self) -> bool:
        return bool(self.find("run").is_enabled())

    def pieces(self, pane: str = "first") -> list[dict[str, Any]]:
        """Return the pieces of an answer with who drafted them and how that looks."""
        script = """return [...document.getElementById(arguments[0]).children].map((one) => {
            const style = getComputedStyle(one);
            return { text: one.textContent, tag: one.tagName, title: one.title, back: style.backgroundColor,
                line: style.textDecorationLine + style.textDecorationStyle, display: style.display };
        })"""
        return list(self.js(script, pane))

    def emulate(
        self, *, dark: bool = False, width: int | None = None, height: int = 1000, calm: bool = False
    ) -> None:
        """Prefer dark colours or little motion; be as narrow as a phone."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if calm else "no-preference"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        if width is None:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        else:
            metrics = {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": True}
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def slow(self, rate: int) -> None:
        """Let the network bring so many bytes a second; -1 is as many as it can."""
        self.driver.execute_cdp_cmd("Network.enable", {})
        conditions = {"offline": False, "latency": 0, "downloadThroughput": rate, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)

    def overflow(self) -> Sequence[str]:
        """Return what is wider than the window, if anything is."""
        script = """const wide = document.documentElement.scrollWidth > innerWidth ? ["the page"] : [];
            const out = [...document.querySelectorAll("body *")].filter((one) => {
                const box = one.getBoundingClientRect();
                return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
            });
            return [...wide, ...out.map((one) => one.tagName + "#" + one.id)]"""
        return list(self.js(script))

    def picture(self, file: Path) -> None:
        """Take a picture of the whole page."""
        import base64

        file.parent.mkdir(parents=True, exist_ok=True)
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        file.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self, axe: Path) -> list[str]:
        """Return what axe finds hard to use for some people."""
        self.js(axe.read_text(encoding="utf-8"))
        script = "const done = arguments[arguments.length - 1]; axe.run().then((found) => done(found.violations))"
        found = self.driver.execute_async_script(script)
        return [f"{one['id']}: {one['help']}: {[node['html'] for node in one['nodes']]}" for one in found]

    def check(self) -> None:
        """Nothing left the origin, and the console has nothing to say."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                assert url.startswith((self.url + "/", "data:")), url
        said = [entry["message"] for entry in self.driver.get_log("browser")]
        assert not [text for text in said if not any(part in text for part in self.tolerated)]
