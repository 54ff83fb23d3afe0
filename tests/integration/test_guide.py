"""The guides to set up hosts are followed as they are, by commands and by hand, on a server and three sites."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.conftest import REPOSITORY
from tests.integration.guide import GUIDES, UNTIL, Block, Place, blocks
from tests.integration.guide_hosts import GuideHost
from tests.integration.namespaces import Network, network_or_skip
from tests.waiting import HANGS_S

BY_COMMANDS = (
    "how-to-install",
    "how-to-set-up-the-server",
    "how-to-set-up-a-site",
    "how-to-start-the-federation",
    "how-to-check-a-host",
)
BY_HAND = (
    "how-to-install",
    "how-to-set-up-the-server-by-hand",
    "how-to-set-up-a-site-by-hand",
    "how-to-check-a-host",
)
TUTORIAL = ("tutorial-three-machines",)
NOT_GIVEN = ("how-to-run-in-containers",)

FOLLOWED = {*BY_COMMANDS, *BY_HAND, *TUTORIAL, *NOT_GIVEN}

SERVER = "server"
SITES = ("hospital-0", "hospital-1", "hospital-2")
"""Longer than what is waited for takes on a busy machine."""


def test_each_block_says_where_it_is_given():
    """By a marker that the test below knows; what is repeated until it says something says what."""
    found = [block for page in FOLLOWED for block in blocks(GUIDES / f"{page}.md")]
    assert {block.page for block in found} == FOLLOWED
    assert [(block.page, block.line) for block in found if block.marker not in list(Place)] == []
    assert [(block.page, block.line) for block in found if block.marker in UNTIL and not block.said] == []


def test_the_table_of_ports_is_the_same_on_both_pages():
    """In the index of deploy/ and in the reference."""
    index, reference = (
        (REPOSITORY / page).read_text(encoding="utf-8").partition("## Ports\n\n")[2].partition("\n\n")[0]
        for page in ("deploy/README.md", "docs/reference-ports-and-files.md")
    )
    assert index == reference != ""


def test_what_is_said_is_compared_line_by_line(tmp_path):
    """A line is found as a part of one that is said, after the one before; `…` is anything."""
    text = "## A\n\n**On the server:**\n\n```sh\nsay\n```\n\n```text\none … three\nfour\n```\n"
    (tmp_path / "guide.md").write_text(text)
    [block] = blocks(tmp_path / "guide.md")
    assert (block.page, block.marker, block.commands) == ("guide", "On the server", "say")
    assert block.missing_in("x\none  two three!\nfour") == ""
    assert block.missing_in("four\none two three") == "four"
    assert block.missing_in("one two\nfour") == "one … three"


class Reader:
    """Gives the blocks of some guides, each on its hosts, and times them."""

    def __init__(self, network: Network, directory: Path, stack: ExitStack) -> None:
        self._hosts: dict[str, GuideHost] = {}
        for name in (SERVER, *SITES):
            self._hosts[name] = host = GuideHost(name, network, directory)
            stack.callback(host.close)
        self._address = network.address(SERVER)
        self._began = time.monotonic()

    def follow(self, pages: Sequence[str], sites: Sequence[str]) -> None:
        """Give every block of these guides in their order."""
        for page in pages:
            for block in blocks(GUIDES / f"{page}.md"):
                self._give(block, Place(block.marker), sites)

    def _give(self, block: Block, place: Place, sites: Sequence[str]) -> None:
        match place:
            case Place.EVERY_HOST:
                pairs = [(SERVER, sites[0]), *zip(sites, sites, strict=True)]
            case Place.SERVER_FOR_EACH_SITE:
                pairs = [(SERVER, site) for site in sites]
            case Place.EACH_SITE:
                pairs = list(zip(sites, sites, strict=True))
            case Place.ONE_SITE | Place.ONE_SITE_UNTIL:
                pairs = [(sites[1], sites[1])]
            case _:
                pairs = [(SERVER, sites[0])]
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
        print(f"{time.monotonic() - self._began:6.1f} s  {block.page}, line {block.line}, {place}")

    def _run(self, block: Block, host: str, *, again: bool) -> None:
        deadline = time.monotonic() + HANGS_S
        while True:
            done = self._hosts[host].run(block.commands)
            missing = block.missing_in(done.stdout)
            if done.returncode == 0 and not missing:
                return
            if not again or time.monotonic() > deadline:
                logs = "\n".join(one.logs() for one in self._hosts.values())
                pytest.fail(
                    f"Line {block.line} of {block.page} on {host} ended with {done.returncode} and does not say "
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
@pytest.mark.parametrize(
    ("pages", "sites"),
    [(BY_COMMANDS, SITES), (BY_HAND, SITES), (TUTORIAL, SITES[:2])],
    ids=["by-commands", "by-hand", "tutorial"],
)
def test_the_guide_can_be_followed_as_it_stands(
    reader: Reader, pages: Sequence[str], sites: Sequence[str]
) -> None:
    """Each block succeeds on its hosts and says what the guide says; in the end `check` finds no problem on any."""
    reader.follow(pages, sites)
