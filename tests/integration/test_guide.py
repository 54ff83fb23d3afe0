"""deploy/README.md is followed as it stands, by commands and step by step: each time on a server and three sites."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.conftest import REPOSITORY
from tests.integration.guide import UNTIL, Block, Place, blocks
from tests.integration.guide_hosts import GuideHost
from tests.integration.namespaces import Network, network_or_skip

BY_COMMANDS = ("On every host", "By commands", "Your first deletion", "Check it")
STEP_BY_STEP = ("On every host", "The server", "Each client", "The run", "Check it")
NOT_GIVEN = ("With containers",)

SERVER = "server"
SITES = ("hospital-0", "hospital-1", "hospital-2")
WITHIN_S = 300.0
"""Longer than what is waited for takes on a busy machine."""


def test_each_block_says_where_it_is_given():
    """By a marker that the test below knows, in a chapter that it follows."""
    found = blocks()
    assert {block.chapter for block in found} == {*BY_COMMANDS, *STEP_BY_STEP, *NOT_GIVEN}
    assert [block.line for block in found if block.marker not in list(Place)] == []
    assert [block.line for block in found if block.marker in UNTIL and not block.said] == []


def test_what_is_said_is_compared_line_by_line(tmp_path):
    """A line is found as a part of one that is said, after the one before; `…` is anything."""
    text = "## A\n\n**On the server:**\n\n```sh\nsay\n```\n\n```text\none … three\nfour\n```\n"
    (tmp_path / "guide.md").write_text(text)
    [block] = blocks(tmp_path / "guide.md")
    assert (block.chapter, block.marker, block.commands) == ("A", "On the server", "say")
    assert block.missing_in("x\none  two three!\nfour") == ""
    assert block.missing_in("four\none two three") == "four"
    assert block.missing_in("one two\nfour") == "one … three"


class Reader:
    """Gives the blocks of some chapters, each on its hosts, and times them."""

    def __init__(self, network: Network, directory: Path, stack: ExitStack) -> None:
        self._hosts: dict[str, GuideHost] = {}
        for name in (SERVER, *SITES):
            self._hosts[name] = host = GuideHost(name, network, directory)
            stack.callback(host.close)
        self._address = network.address(SERVER)
        self._began = time.monotonic()

    def follow(self, chapters: Sequence[str]) -> None:
        """Give every block of these chapters in the guide's order."""
        for block in blocks():
            if block.chapter in chapters:
                self._give(block, Place(block.marker))

    def _give(self, block: Block, place: Place) -> None:
        match place:
            case Place.EVERY_HOST:
                pairs = [(SERVER, SITES[0]), *zip(SITES, SITES, strict=True)]
            case Place.SERVER_FOR_EACH_SITE:
                pairs = [(SERVER, site) for site in SITES]
            case Place.EACH_SITE:
                pairs = list(zip(SITES, SITES, strict=True))
            case Place.ONE_SITE | Place.ONE_SITE_UNTIL:
                pairs = [(SITES[1], SITES[1])]
            case _:
                pairs = [(SERVER, SITES[0])]
        for host, site in pairs:
            number = SITES.index(site)
            mine = block.replaced(
                {
                    "192.0.2.10": self._address,
                    "PATH_OF_THIS_REPOSITORY": str(REPOSITORY),
                    **({SITES[0]: site} if place not in UNTIL else {}),
                    "--part-id 0": f"--part-id {number}",
                    "partition-id=0": f"partition-id={number}",
                }
            )
            self._run(mine, host, again=place in UNTIL)
        print(f"{time.monotonic() - self._began:6.1f} s  line {block.line}: {block.chapter}, {place}")

    def _run(self, block: Block, host: str, *, again: bool) -> None:
        deadline = time.monotonic() + WITHIN_S
        while True:
            done = self._hosts[host].run(block.commands)
            missing = block.missing_in(done.stdout)
            if done.returncode == 0 and not missing:
                return
            if not again or time.monotonic() > deadline:
                logs = "\n".join(one.logs() for one in self._hosts.values())
                pytest.fail(
                    f"Line {block.line} of the guide on {host} ended with {done.returncode} and does not say "
                    f"{missing!r}:\n{block.commands}\n---\n{done.stdout}\n---\n{logs}"
                )
            time.sleep(1.0)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Who follows the guide, where this machine has what that takes."""
    with network_or_skip([SERVER, *SITES]) as network, ExitStack() as stack:
        yield Reader(network, tmp_path, stack)


@pytest.mark.slow
@pytest.mark.hosts
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chapters", [BY_COMMANDS, STEP_BY_STEP], ids=["by-commands", "step-by-step"])
def test_the_guide_can_be_followed_as_it_stands(reader: Reader, chapters: Sequence[str]) -> None:
    """Each block succeeds on its hosts and says what the guide says; in the end `check` finds no problem on any."""
    reader.follow(chapters)
