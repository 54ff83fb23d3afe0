"""Authentication: by the link, once, from this machine and from no other page."""

import os
import re
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from starlette.testclient import TestClient

from server.console.launch import Settings, run_console
from server.console.routes import ACTIONS, PAGES, make_app
from tests.integration.console.conftest import PORT, Browser, Desk
from tests.waiting import WAIT_S

BASE = f"http://127.0.0.1:{PORT}"


def test_the_link_works_once_and_sets_a_cookie_that_scripts_cannot_read(desk: Desk) -> None:
    """HttpOnly and SameSite=Strict; the same link again opens nothing."""
    console = desk.console()
    link = console.login.link
    first = TestClient(make_app(console), base_url=BASE, follow_redirects=False)
    answer = first.get(link)
    assert (answer.status_code, answer.headers["location"]) == (303, "/requests")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(answer.headers["set-cookie"].split("; "))
    assert first.get("/requests").status_code == 200
    second = TestClient(make_app(console), base_url=BASE, follow_redirects=False)
    assert second.get(link).status_code == 403
    assert second.get("/requests").status_code == 403


def test_a_form_with_the_token_opens_as_the_link_does_and_only_once(desk: Desk) -> None:
    """The page that answers goes on by itself: after a redirect a browser would send no cookie of SameSite=Strict."""
    console = desk.console()
    [token] = re.findall(r'name="token" value="([^"]+)"', console.login.page)
    first = TestClient(make_app(console), base_url=BASE, follow_redirects=False)
    for wrong in (
        {},
        {"token": ""},
        {"token": "x"},
        {"token": token + "x"},
        {"token": token, "more": "x" * 2_000},
    ):
        assert first.post("/enter", data=wrong).status_code == 403
    answer = first.post("/enter", data={"token": token}, headers={"origin": "null"})
    assert answer.status_code == 200
    assert 'http-equiv="refresh" content="0; url=/requests"' in answer.text
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
    assert first.get("/requests").status_code == 200
    assert first.post("/enter", data={"token": token}).status_code == 403


def test_the_terminal_says_that_the_link_was_used_and_used_again(desk: Desk) -> None:
    """Another account may have been first; a guess is not reported."""
    console = desk.console()
    client = TestClient(make_app(console), base_url=BASE, follow_redirects=False)
    client.get("/enter?token=guessed")
    assert desk.said == []
    client.get(console.login.link)
    assert "A browser has come in by the link" in desk.said[0]
    client.get(console.login.link)
    assert "another account of this machine has your rights" in desk.said[1]
    assert "Started again, it has another link" in desk.said[1]


def test_the_browser_is_started_with_a_private_file_once_the_console_answers(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it is started with has no token; the file does, and only its owner reads it."""
    said: list[str] = []
    seen: dict[str, Any] = {}

    def opened(address: str) -> bool:
        try:
            page = Path(unquote(urlsplit(address).path))
            seen["address"], seen["modes"] = (
                address,
                [one.stat().st_mode & 0o777 for one in (page, page.parent)],
            )
            url, token = re.findall(r'action="([^"]+)".*name="token" value="([^"]+)"', page.read_text())[0]
            seen["token"], seen["file"] = token, page
            seen["status"] = httpx.post(url, data={"token": token}, timeout=WAIT_S).status_code
        finally:
            os.kill(os.getpid(), signal.SIGINT)
        return True

    monkeypatch.setattr("webbrowser.open", opened)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            run_console(Settings(address=desk.service.address, tls=None, name="ada"), said.append)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen["status"] == 200
    assert seen["modes"] == [0o600, 0o700]
    assert seen["token"] not in seen["address"]
    assert not seen["file"].exists()
    assert any("has come in by the link" in line for line in said)


def test_the_console_listens_before_the_link_is_printed(desk: Desk) -> None:
    """A browser is started before anything can answer: it waits for the page, and is not refused."""

    class Seen(Exception):
        pass

    def say(line: str) -> None:
        if found := re.search(r"127\.0\.0\.1:(\d+)/enter", line):
            socket.create_connection(("127.0.0.1", int(found[1])), timeout=5).close()
            raise Seen

    settings = Settings(address=desk.service.address, tls=None, name="ada", opens_browser=False)
    with pytest.raises(Seen):
        run_console(settings, say)


def test_without_the_cookie_no_page_opens(desk: Desk) -> None:
    """The answer says what to do and nothing of the federation."""
    stranger = TestClient(make_app(desk.console()), base_url=BASE, follow_redirects=False)
    for path in [*(path for path, _ in PAGES), "/", "/stamp"]:
        answer = stranger.get(path)
        assert answer.status_code == 403
        assert "flower-unlearn console" in answer.text
        guessed = stranger.get(path, headers={"cookie": f"flower-unlearn-console-{PORT}=x"})
        assert guessed.status_code == 403


@pytest.mark.parametrize("host", ["evil.example:4711", "127.0.0.1", "127.0.0.1:80", "[::1]:4711", ""])
def test_a_foreign_name_that_points_here_is_refused(browser: Browser, host: str) -> None:
    """DNS rebinding: the Host is the console's own address at its own port, or there is no answer, not even a style."""
    for path in ("/requests", "/static/console.js", "/enter"):
        assert browser.get(path, headers={"host": host}).status_code == 421
    assert browser.get("/requests").status_code == 200


@pytest.mark.parametrize("token", [None, "", "x"])
def test_a_form_without_the_sessions_token_does_nothing(
    desk: Desk, browser: Browser, token: str | None
) -> None:
    """Whatever the path: the token comes before anything else."""
    fields = {} if token is None else {"csrf": token}
    for path, _ in ACTIONS:
        assert browser.client.post(path, data={**fields, "what": "client", "client": "3"}).status_code == 403
    assert desk.ledger.requests.select() == []


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:80"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_a_form_of_another_site_is_refused(browser: Browser, headers: dict[str, str]) -> None:
    """Also with the right token: the browser says where the form came from."""
    data = {"csrf": browser.csrf, "what": "client", "client": "3"}
    assert browser.client.post("/file", data=data, headers=headers).status_code == 403
    own = {"origin": BASE, "sec-fetch-site": "same-origin"}
    assert browser.client.post("/file", data=data, headers=own).status_code == 303


def test_every_form_that_changes_something_carries_the_token(browser: Browser) -> None:
    """In the pages as they are made."""
    posted = browser.post("/file", what="client", client="3")
    draft = browser.follow(posted)
    browser.post(draft, method="puf-special")
    filed = browser.follow(browser.post(f"{draft}/summary"))
    for path in ("/file", draft, filed):
        forms = re.findall(r'<form method="post".*?</form>', browser.page(path), re.DOTALL)
        assert forms
        assert all(f'name="csrf" value="{browser.csrf}"' in form for form in forms)


def test_every_answer_carries_the_strict_policy(browser: Browser) -> None:
    """Nothing from elsewhere, no inline script or style, no frame; also on refusals."""
    stranger = TestClient(browser.app, base_url=BASE)
    for answer in (browser.get("/requests"), browser.get("/static/console.js"), stranger.get("/requests")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_no_page_has_an_inline_script_or_style_or_anything_from_elsewhere(
    desk: Desk, browser: Browser
) -> None:
    """What the policy would block is not there in the first place."""
    desk.loop.round(1, "training", loss=0.5, test_score=0.5)
    desk.loop.round(2, "training", loss=0.4, test_score=0.6)
    draft = browser.follow(browser.post("/file", what="client", client="3"))
    pages = [path for path, _ in PAGES if "{" not in path and "." not in path]
    for path in [*pages, draft]:
        text = browser.page(path)
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text)
        assert re.findall(r"<script[^>]*>(.*?)</script>", text) == [""]
        assert not re.search(r'(src|href|action)="(?!/|\?|#)', text)
