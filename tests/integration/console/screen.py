"""A browser's window as tests use it, at a console that is a process of its own.

Headless Chromium by Selenium, with Debian's packages chromium and chromium-driver; axe-core comes with the package
axe-selenium-python. Pages that follow what happens change while they are looked at, so what is asked of one is asked in
one script, and again where it was exchanged in between.
"""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from PIL import Image
from selenium import webdriver
from selenium.common import exceptions
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from strategies.tls_files import TlsFiles
from tests.waiting import HANGS_S

T = TypeVar("T")

PICTURES = os.environ.get("FLOWER_UNLEARNING_PICTURES", "")
CARDS = (400, 900)
WIDE = (1280, 900)
STRANGER = "stranger.example"
"""A name that the browser takes for this machine, as a stranger's name server could make it."""
CHANGING = (
    exceptions.StaleElementReferenceException,
    exceptions.NoSuchElementException,
    exceptions.ElementNotInteractableException,
    exceptions.ElementClickInterceptedException,
    exceptions.JavascriptException,
)
"""What the browser says where a page, or a part of it, was exchanged between two questions, or is not there yet."""


class Screen:
    """A browser's window that waits for what it shows; pages that follow what happens change under the hand."""

    def __init__(self, driver: Any, link: str = "", pid: int = 0) -> None:
        self.driver = driver
        self.link = link
        self.address = link.partition("/enter")[0]
        self._pid = pid

    def open(self, path: str) -> None:
        self.driver.get(f"{self.address}{path}")
        self.wait_until_loaded()

    def text(self) -> str:
        """All that the page shows, asked in one script: no part of it can be exchanged in between."""
        return self.until(lambda: str(self.driver.execute_script("return document.body.innerText")))

    def until(self, act: Callable[[], T]) -> T:
        """What `act` gives, once what it asks for is there and stays there while it is asked."""
        ends = time.monotonic() + HANGS_S
        while True:
            try:
                return act()
            except CHANGING:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.2)  # the browser is asked; there is no event to wait for

    def wait_for(self, *words: str) -> None:
        """Wait, without reloading, until the page shows all the words."""
        ends, shown = time.monotonic() + HANGS_S, self.text()
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

    def select(self, name: str, value: str) -> None:
        """Choose from a list."""
        self.until(lambda: Select(self.driver.find_element("id", name)).select_by_value(value))

    def choose(self, value: str) -> None:
        """Choose the radio button of this value."""
        self.until(
            lambda: self.driver.find_element("css selector", f"input[type=radio][value={value}]").click()
        )

    def set_dark(self, is_dark: bool) -> None:
        """Let pages think that their reader prefers dark ones, or not."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def picture(self, name: str, size: tuple[int, int] = WIDE) -> None:
        if PICTURES:
            self.driver.set_window_size(*size)
            self.driver.execute_script("window.scrollTo(0, 0); document.activeElement.blur()")
            whole = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
            small = whole.resize((whole.width * 3 // 4, whole.height * 3 // 4)) if size == WIDE else whole
            small.quantize(48).save(Path(PICTURES) / f"console-{name}.png", optimize=True)
            self.driver.set_window_size(*WIDE)

    def wait_until_loaded(self) -> None:
        """Wait for the page's style sheets: `get`, and a pressed link, can return while the page has none yet."""
        WebDriverWait(self.driver, HANGS_S).until(
            lambda shown: shown.execute_script("return document.readyState") == "complete"
        )

    def serious_faults(self) -> list[str]:
        """What axe-core calls serious or critical on this page."""
        self.wait_until_loaded()
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

    def count(self, selector: str) -> int:
        """How many elements a CSS selector finds."""
        script = "return document.querySelectorAll(arguments[0]).length"
        return self.until(lambda: int(self.driver.execute_script(script, selector)))

    def post(self, path: str, token: str | None = None) -> None:
        """Post a form that no page shows, with the session's token where no other is given."""
        if token is None:
            token = self.driver.execute_async_script(
                "const done = arguments[0]; fetch('/file').then((answer) => answer.text()).then((text) => done("
                "new DOMParser().parseFromString(text, 'text/html').querySelector('[name=csrf]').value))"
            )
        self.driver.execute_script(
            "const form = document.createElement('form'), field = document.createElement('input');"
            "form.method = 'post'; form.action = arguments[0]; field.name = 'csrf'; field.value = arguments[1];"
            "form.append(field); document.body.append(form); form.submit()",
            f"{self.address}{path}",
            token,
        )

    def peak_mib(self) -> float:
        """The most memory that the console's process has had so far."""
        status = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


@contextmanager
def browser(downloads: Path) -> Iterator[Any]:
    """Start a Chromium."""
    options = webdriver.ChromeOptions()
    for argument in (
        *(
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-proxy-server",
        ),
        f"--host-resolver-rules=MAP {STRANGER} 127.0.0.1",
    ):
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        driver.set_window_size(*WIDE)
        driver.set_script_timeout(120)
        yield driver
    finally:
        driver.quit()


@contextmanager
def console(driver: Any, service: str, tls: TlsFiles | None = None) -> Iterator[Screen]:
    """Start `flower-unlearn console`, come in as the browser that it starts, and end it as Ctrl-C does.

    No process of the machine has the link's token among its arguments at that moment.
    """
    command = [str(Path(sys.executable).parent / "flower-unlearn"), "--server", service]
    if tls is not None:
        command += ["--tls-ca", str(tls.ca), "--tls-cert", str(tls.certificate), "--tls-key", str(tls.key)]
    with TemporaryDirectory() as name, ExitStack() as stack:
        stand_in, told = Path(name) / "browser", Path(name) / "told"
        os.mkfifo(told)
        stand_in.write_text(f'#!/bin/sh\n(echo "$1"; cat /proc/[0-9]*/cmdline 2>/dev/null) > {told}\n')
        stand_in.chmod(0o700)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "BROWSER": str(stand_in)}
        started = stack.enter_context(
            subprocess.Popen([*command, "console"], stdout=subprocess.PIPE, text=True, env=environment)
        )
        try:
            assert started.stdout is not None
            link = next(line.strip() for line in started.stdout if "/enter?token=" in line)
            address, _, arguments = told.read_text(errors="replace").partition("\n")
            assert link.partition("token=")[2] not in address + arguments
            driver.get(address)
            WebDriverWait(driver, HANGS_S).until(
                lambda shown: shown.find_elements("css selector", "nav[aria-label=Pages]")
            )
            yield Screen(driver, link, started.pid)
        finally:
            started.send_signal(signal.SIGINT)
            assert started.wait(30) == 0
