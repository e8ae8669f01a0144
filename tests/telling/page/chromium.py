"""Chromium, as the tests of the page drive it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--window-size=1280,1000",
)  # fmt: skip
CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))


class Browser:
    """A page in Chromium, at one of the places that a reader looks at it from."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.run = driver.execute_script

    def open(self, path: Path, dark: bool = False, width: int = 1280, script: bool = True) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.command("Emulation.setDeviceMetricsOverride", **size)
        self.command("Emulation.setScriptExecutionDisabled", value=not script)
        self.driver.get("about:blank")
        self.logs("browser"), self.logs("performance")
        self.driver.get(path.as_uri())

    def command(self, name: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)

    def logs(self, kind: str) -> list[dict[str, Any]]:
        return list(self.driver.get_log(kind))

    def choose(self, **wanted: str) -> str:
        """Sets filters as a reader does, and returns what is said of what is left."""
        self.run("document.getElementById('filters').reset()")
        for name, value in wanted.items():
            self.run(
                "const e = document.getElementById('filters').elements[arguments[0]]; e.value = arguments[1];"
                "if (e.value !== arguments[1]) throw Error(arguments[1]);"
                "e.dispatchEvent(new Event('input', {bubbles: true}));",
                name, value,
            )  # fmt: skip
        return self.settled()

    def settled(self) -> str:
        return self.driver.execute_async_script(
            "const done = arguments[0]; setTimeout(() => done(document.getElementById('shown').textContent), 200);"
        )

    def shown(self, selector: str) -> list[str]:
        """The texts of the elements that are not hidden."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].filter((e) => e.checkVisibility())"
            ".map((e) => e.innerText.trim())",
            selector,
        )

    def press(self, *keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)


@contextmanager
def started(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own; without one the test is skipped, or fails where it is required."""
    if CHROMIUM is None or DRIVER is None:
        reason = "chromium and chromedriver are not installed (Debian: chromium, chromium-driver)"
        pytest.fail(reason) if os.environ.get("BROWSER_TESTS") == "required" else pytest.skip(reason)
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed: dependency group browser"
    )
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
