"""A SuperNode that the server refuses is started again, with the likely reason; one without a SuperExec is ended."""

import logging
import os
import sys
from itertools import count

from client import supernode
from client.supernode import LET_IN_S, _run, _until_let_in

NODE = """
import subprocess, sys, time
started = subprocess.Popen([sys.executable, "-S", "-c", {superexec!r}])
time.sleep({lives_s})
"""
"""Starts another program and never looks at it again, as a SuperNode does with its SuperExec."""


class Runs:
    """SuperNodes that run for given times and end with given statuses, on a clock of their own."""

    def __init__(self, *ends: tuple[float, int]) -> None:
        self.ends = list(ends)
        self.now = 0.0

    def run_once(self) -> int:
        lived_s, status = self.ends.pop(0)
        self.now += lived_s
        return status

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def until_let_in(self) -> int:
        return _until_let_in(self.run_once, clock=lambda: self.now, sleep=self.sleep)


def test_it_is_tried_again_until_it_is_let_in(caplog):
    """With a sentence that says what Flower's does not; then its end is the program's."""
    runs = Runs((3.0, 1), (3.0, 1), (500.0, 0))
    with caplog.at_level(logging.WARNING):
        assert runs.until_let_in() == 0
    assert runs.ends == []
    assert len(caplog.messages) == 2
    assert "or its key is not registered" in caplog.messages[0]


def test_a_key_that_is_refused_for_longer_than_a_lease_is_said_to_be_not_registered(caplog):
    """At growing pauses, five minutes at most; until the operator registers it again."""
    runs = Runs(*[(4.0, 1)] * 15, (500.0, 0))
    with caplog.at_level(logging.WARNING):
        assert runs.until_let_in() == 0
    texts = caplog.messages
    assert ["its key is not registered at the server" in text for text in texts] == [False] * 7 + [True] * 8
    pauses = [float(text.split("again in ")[1].split(" s")[0]) for text in texts]
    assert pauses == [5] * 7 + [10, 20, 40, 80, 160, 300, 300, 300]


def test_what_ends_after_it_was_let_in_is_not_started_again():
    """Nor what was asked to end."""
    assert Runs((LET_IN_S, 1)).until_let_in() == 1
    assert Runs((1.0, 0)).until_let_in() == 0
    assert Runs((1.0, -9)).until_let_in() == -9
    assert Runs((1.0, os.EX_TEMPFAIL)).until_let_in() == os.EX_TEMPFAIL


def node(superexec: str, lives_s: float) -> list[str]:
    return [sys.executable, "-S", "-c", NODE.format(superexec=superexec, lives_s=lives_s)]


def test_a_supernode_whose_superexec_has_ended_is_ended(caplog):
    """It would count as online, and every later message would wait permanently."""
    with caplog.at_level(logging.ERROR):
        assert _run(node("", lives_s=600), look_s=0.1) == os.EX_TEMPFAIL
    assert ["SuperExec of this SuperNode has ended" in text for text in caplog.messages] == [True]


def test_a_supernode_whose_superexec_lives_is_left_alone(caplog):
    """Its own end is the program's."""
    assert _run(node("import time; time.sleep(2)", lives_s=1), look_s=0.1) == 0
    assert _run([sys.executable, "-S", "-c", "raise SystemExit(3)"], look_s=0.1) == 3
    assert caplog.messages == []


def test_a_supernodes_programs_call_this_host_past_a_proxy(monkeypatch):
    """Its ClientApps ask it for their message over HTTP."""
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", "example.org")
    seen = "import os; raise SystemExit(os.environ['no_proxy'] != 'example.org,localhost,127.0.0.1,::1')"
    assert _run([sys.executable, "-S", "-c", seen], look_s=0.1) == 0


def test_a_process_that_is_collected_before_the_next_look_does_not_count(monkeypatch, caplog):
    """The one that is found then is another."""
    pids = count()
    monkeypatch.setattr(supernode, "_ended_children", lambda _: {next(pids)})
    assert _run(node("", lives_s=1), look_s=0.1) == 0
    assert caplog.messages == []
    assert next(pids) > 1
