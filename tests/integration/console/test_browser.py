"""The console in a real browser at a live federation of real processes: one deletion from the form to the certificate.

Headless Chromium by Selenium, with Debian's packages chromium and chromium-driver. The pictures of docs/console.md are
made here where FLOWER_UNLEARNING_PICTURES names a directory. axe-core comes with the package axe-selenium-python.
"""

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import pytest
from PIL import Image
from selenium.common import exceptions

from tests.integration.live_federation import LiveFederation, live_federation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="there is no Chromium: apt-get install chromium chromium-driver",
    ),
]

T = TypeVar("T")

WAIT_S = 240.0
CHANGING = (
    exceptions.StaleElementReferenceException,
    exceptions.NoSuchElementException,
    exceptions.ElementNotInteractableException,
    exceptions.ElementClickInterceptedException,
    exceptions.JavascriptException,
)
"""What the browser says where a page, or a part of it, was exchanged between two questions, or is not there yet."""
PICTURES = os.environ.get("FLOWER_UNLEARNING_PICTURES", "")
CARDS = (400, 900)
WIDE = (1280, 900)


class Screen:
    """A browser's window that waits for what it shows; pages that follow what happens change under the hand."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver = driver
        self.address = address

    def open(self, path: str) -> None:
        self.driver.get(f"{self.address}{path}")

    def text(self) -> str:
        """All that the page shows, asked in one script: no part of it can be exchanged in between."""
        return self.until(lambda: str(self.driver.execute_script("return document.body.innerText")))

    def until(self, act: Callable[[], T]) -> T:
        """What `act` gives, once what it asks for is there and stays there while it is asked."""
        ends = time.monotonic() + WAIT_S
        while True:
            try:
                return act()
            except CHANGING:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.2)  # the browser is asked; there is no event to wait for

    def wait_for(self, *words: str) -> None:
        """Wait, without reloading, until the page shows all the words."""
        ends, shown = time.monotonic() + WAIT_S, self.text()
        while any(word not in shown for word in words):
            assert time.monotonic() < ends, f"{words} is not shown: {shown}"
            time.sleep(0.2)  # as above
            shown = self.text()

    def type(self, name: str, text: str) -> None:
        """Put a text into a field, in place of what stood there."""

        def act() -> None:
            field = self.driver.find_element("id", name)
            field.clear()
            field.send_keys(text)

        self.until(act)

    def press(self, text: str) -> None:
        """Press the first button or link with this text, where there is one."""

        def act() -> None:
            button = self.driver.find_element(
                "xpath", f"//*[self::button or self::a][normalize-space()='{text}']"
            )
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
            button.click()

        self.until(act)

    def picture(self, name: str, size: tuple[int, int] = WIDE) -> None:
        if PICTURES:
            self.driver.set_window_size(*size)
            self.driver.execute_script("window.scrollTo(0, 0); document.activeElement.blur()")
            whole = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
            small = whole.resize((whole.width * 3 // 4, whole.height * 3 // 4)) if size == WIDE else whole
            small.quantize(48).save(Path(PICTURES) / f"console-{name}.png", optimize=True)
            self.driver.set_window_size(*WIDE)

    def serious_faults(self) -> list[str]:
        """What axe-core calls serious or critical on this page."""
        script = files("axe_selenium_python") / "node_modules" / "axe-core" / "axe.min.js"

        def act() -> Any:
            self.driver.execute_script(script.read_text(encoding="utf-8"))
            return self.driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")

        found = self.until(act)
        return [
            f"{item['id']}: {item['help']}: {[node['html'][:120] for node in item['nodes'][:3]]}"
            for item in found["violations"]
            if item["impact"] in ("serious", "critical")
        ]

    def is_wider_than_the_window(self) -> bool:
        width = self.driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        return bool(width > 0)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFederation]:
    with live_federation(tmp_path_factory.mktemp("console"), num_clients=3) as federation:
        yield federation


@pytest.fixture(scope="module")
def screen(live: LiveFederation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screen]:
    """A browser that came in by the link of `flower-unlearn console`, a process of its own."""
    from selenium import webdriver

    command = [str(Path(sys.executable).parent / "flower-unlearn")]
    command += ["--server", live.deployment.layout.deletion_address, "console", "--no-browser"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as console:
        assert console.stdout is not None
        link = next(line.strip() for line in console.stdout if "/enter?token=" in line)
        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
            options.add_argument(argument)
        downloads = tmp_path_factory.mktemp("downloads")
        options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
        try:
            driver.set_window_size(*WIDE)
            driver.set_script_timeout(120)
            driver.get(link)
            yield Screen(driver, link.partition("/enter")[0])
        finally:
            driver.quit()
            console.send_signal(signal.SIGINT)
            assert console.wait(30) == 0


def test_an_officers_day_in_a_browser(live: LiveFederation, screen: Screen) -> None:
    """File, watch it complete without reloading, report, certificate, export; no serious fault on any page."""
    faults: dict[str, list[str]] = {}

    def look(name: str, size: tuple[int, int] = WIDE) -> None:
        faults[name] = screen.serious_faults()
        screen.picture(name, size)

    screen.wait_for("No request has been filed yet")
    screen.press("File a request")
    screen.type("client", "99")
    screen.press("Go on to the plan")
    screen.wait_for("Known")
    look("refused")
    screen.type("client", "2")
    screen.press("Go on to the plan")
    screen.wait_for("PUF-Special", "Step 2 of 3")
    screen.type("reference", "DSB-2026-17")
    look("plan")
    screen.press("Go on to the summary")
    screen.wait_for("Step 3 of 3", "DSB-2026-17")
    look("summary")
    screen.press("File this request")
    screen.wait_for("Deletion request r-000001")
    screen.driver.execute_script("window.neverReloaded = true")
    screen.wait_for("completed", "Certificate and its checks")
    assert screen.driver.execute_script("return window.neverReloaded")
    look("request")
    screen.press("Certificate and its checks")
    screen.wait_for("Byte for byte the report", "All events follow from each other")
    look("certificate")
    screen.open("/requests/r-000001/report")
    screen.wait_for("Deletion report: client 2")
    screen.open("/federation")
    rounds = len(live.training_rounds())
    live.wait_for_rounds(2)
    screen.wait_for(f"Round {live.training_rounds()[rounds].round} (training)")
    look("federation")
    for name in ("requests", "register", "refusals", "access", "file"):
        screen.open(f"/{name}")
        screen.wait_for("Federation")
        look(name)
    screen.driver.set_window_size(*CARDS)
    for name in ("requests", "requests/r-000001", "federation", "register", "file", "access", "refusals"):
        screen.open(f"/{name}")
        assert not screen.is_wider_than_the_window(), name
    screen.open("/requests/r-000001")
    screen.picture("request-narrow", CARDS)
    screen.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    screen.open("/federation")
    look("federation-dark")
    assert {name: found for name, found in faults.items() if found} == {}
    screen.open("/register")
    screen.press("Export CSV")
    said = [
        entry for entry in screen.driver.get_log("browser") if "Content Security Policy" in entry["message"]
    ]
    assert [entry for entry in said if "/report" not in entry["message"]] == []
