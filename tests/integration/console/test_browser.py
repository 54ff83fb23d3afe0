"""The console in a real browser: one deletion from the form to the certificate at a live federation of real processes;
and which browsers are refused, at a service with certificates.

The pictures of docs/how-to-use-the-console.md are made here where FLOWER_UNLEARNING_PICTURES names a directory.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.report import write_report
from tests.certificates import Authority
from tests.deletion_service import submit
from tests.integration.console.conftest import Desk
from tests.integration.console.screen import CARDS, STRANGER, WIDE, Screen, browser, console
from tests.integration.live_federation import LiveFederation, live_federation
from tests.unit.server.report.test_report import FULL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="there is no Chromium: apt-get install chromium chromium-driver",
    ),
]
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFederation]:
    with live_federation(tmp_path_factory.mktemp("console"), num_clients=2) as federation:
        yield federation


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("downloads")) as started:
        yield started


@pytest.fixture
def screen(live: LiveFederation, driver: Any) -> Iterator[Screen]:
    with console(driver, live.deployment.layout.deletion_address) as shown:
        yield shown


def test_an_officers_day_in_a_browser(live: LiveFederation, screen: Screen) -> None:
    """File, watch it complete without reloading, report, certificate, export; no serious fault on any page."""
    faults: dict[str, list[str]] = {}

    def look(name: str, size: tuple[int, int] = WIDE) -> None:
        faults[name] = screen.serious_faults()
        screen.picture(name, size)

    screen.wait_for("No request has been filed yet")
    screen.press("File a request")
    screen.press("Go on to the plan")
    screen.wait_for("Say which client")
    look("refused")
    screen.select("client", "1")
    screen.press("Go on to the plan")
    screen.wait_for("Step 2 of 3", "Other methods")
    screen.type("reference", "DSB-2026-17")
    look("plan")
    screen.press("Go on to the summary")
    screen.wait_for("Step 3 of 3", "DSB-2026-17")
    look("summary")
    screen.press("File this request")
    screen.wait_for("Deletion request r-000001")
    screen.driver.execute_script("window.neverReloaded = true")
    screen.wait_for("carried out", "Certificate and its checks")
    assert screen.driver.execute_script("return window.neverReloaded")
    look("request")
    screen.press("Certificate and its checks")
    screen.wait_for("Byte for byte the report", "The ledger is unaltered")
    look("certificate")
    screen.open("/requests/r-000001/report")
    screen.wait_for("Deletion report: client 1")
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
    screen.set_dark(True)
    screen.open("/federation")
    look("federation-dark")
    screen.set_dark(False)
    assert {name: found for name, found in faults.items() if found} == {}
    screen.open("/register")
    screen.press("Export CSV")
    said = [
        entry for entry in screen.driver.get_log("browser") if "Content Security Policy" in entry["message"]
    ]
    assert [entry for entry in said if "/report" not in entry["message"]] == []


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_the_report_has_no_serious_fault(driver: Any, tmp_path: Path, is_dark: bool) -> None:
    """As a file, for in the console it is sandboxed, where axe-core cannot run; in two colours and widths."""
    write_report(tmp_path, FULL)
    driver.get((tmp_path / "report.html").as_uri())
    screen = Screen(driver)
    screen.wait_until_loaded()
    screen.set_dark(is_dark)
    try:
        ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(20, 25, 30)" if is_dark else "rgb(255, 255, 255)")
        assert screen.serious_faults() == []
        screen.picture(f"report-{'dark' if is_dark else 'light'}")
        driver.set_window_size(*CARDS)
        assert screen.serious_faults() == []
        scrolled = "[...document.querySelectorAll('*')].filter(e => getComputedStyle(e).overflowX == 'auto')"
        assert (
            driver.execute_script(f"return {scrolled}.filter(e => e.tabIndex != 0).map(e => e.outerHTML)")
            == []
        )
    finally:
        driver.set_window_size(*WIDE)
        screen.set_dark(False)


@pytest.mark.long
def test_strangers_stay_outside_and_a_list_too_long_is_dropped(
    driver: Any, guarded: Desk, people: Authority, tmp_path: Path
) -> None:
    """A used link, a wrong token, a form of another site, a name that points here; 100 MiB of samples.

    In the gate test_login.py and test_pages.py ask for the same without a browser.
    """
    request = submit(guarded.calling(people.certify("ada", "operator")))
    page = f"/requests/{request.id}"
    too_long = tmp_path / "samples.txt"
    with too_long.open("wb") as file:
        file.truncate(100 * MIB)
    with console(driver, guarded.service.address, people.certify("berta", "operator")) as screen:
        screen.driver.get(screen.link)
        screen.wait_for("This link was used already")
        screen.open(page)
        screen.post(f"{page}/cancel", token="guessed")
        screen.wait_for("This form is not one of this session's. Nothing was done")
        screen.driver.get("data:text/html,<p>another site</p>")
        screen.post(f"{page}/cancel", token="guessed")
        screen.wait_for("This browser is not signed in")
        screen.driver.get(f"{screen.address.replace('127.0.0.1', STRANGER)}{page}")
        screen.wait_for("This console answers to 127.0.0.1 and localhost only")
        screen.open(page)
        screen.press("Cancel this request")
        screen.wait_for("It cannot be taken back")
        assert screen.serious_faults() == []
        screen.press("Back, do nothing")
        screen.wait_for(f"Deletion request {request.id}")
        screen.open("/file")
        screen.picture("file")
        screen.choose("sample")
        screen.select("client", "3")
        before = screen.peak_mib()
        screen.driver.find_element("id", "samples").send_keys(str(too_long))
        screen.press("Go on to the plan")
        screen.wait_for("The list is longer than 64 MiB, the most that the service takes. Split it")
        assert screen.count("#samples[aria-invalid=true][aria-describedby~=samples-error]") == 1
        assert screen.peak_mib() - before < 40
    assert guarded.ledger.requests.select() == [request]
