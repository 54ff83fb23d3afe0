"""A command does all that it was called for, whatever becomes of its output.

Its reader goes away, as in `… | head -1`, or the terminal's encoding lacks a character.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.ledger import Ledger
from server.service.grpc_server import RunningServer
from tests.cases import LONG, slow_but
from tests.deletion_service import LiveLoop
from tests.waiting import WAIT_S


def run(name: str, *arguments: str, messages_too: bool = False) -> tuple[int, str]:
    """A program's exit status and messages, where its output has no reader; nor its messages, if so wanted."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [str(Path(sys.executable).with_name(name)), *arguments],
        stdout=writer,
        stderr=writer if messages_too else subprocess.PIPE,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    os.close(writer)
    return done.returncode, done.stderr or ""


@pytest.mark.slow
def test_every_target_is_filed_although_nobody_reads_of_the_first(
    service: RunningServer, loop: LiveLoop, ledger: Ledger
) -> None:
    """Neither a traceback nor half of the work; the exit code is the command's own."""
    request = ("--server", service.address, "request", "--client", "3", "--client", "4")
    assert run("flower-unlearn", *request) == (0, "")
    assert [item.target.client_id for item in ledger.requests.select()] == ["3", "4"]
    unknown = (*request[:3], "--client", "9", "--client", "8")
    assert run("flower-unlearn", *unknown, messages_too=True)[0] == 3  # both are refused


def test_who_follows_a_request_ends_with_the_reader(
    service: RunningServer, loop: LiveLoop, ledger: Ledger
) -> None:
    """It would show for days what nobody sees."""
    assert run("flower-unlearn", "--server", service.address, "request", "--client", "3", "--wait") == (1, "")
    assert [item.target.client_id for item in ledger.requests.select()] == ["3"]


@pytest.mark.parametrize(
    "name", slow_but(["flower-unlearn"], [f"flower-unlearn{end}" for end in ("", "-site", "-peer")], LONG)
)
@pytest.mark.slow
def test_every_program_ends_in_silence(name: str) -> None:
    """With the status that it has with a reader."""
    assert run(name, "--help") == (0, "")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_what_the_terminal_cannot_show_is_escaped(
    service: RunningServer, loop: LiveLoop, encoding: str
) -> None:
    """A request that was filed is no failure; JSON stays JSON, with every character."""

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("flower-unlearn")), "--server", service.address, *arguments],
            env={**os.environ, "PYTHONIOENCODING": encoding},
            capture_output=True,
            timeout=WAIT_S,
            check=True,
        )
        return done.stdout.decode(encoding)

    reference = "Żmija … ε 😀"
    said("request", "--client", "3", "--reference", reference)
    shown = said("status", "r-000001")
    assert (reference in shown) == (encoding == "utf-8")
    assert "\\u017bmija" in shown or encoding == "utf-8"
    assert json.loads(said("status", "r-000001", "--json"))["reference"] == reference
