"""A site whose program is of another version is refused with one sentence at both ends, and no round waits for it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from client.cli import app as site
from server.ledger import SITE_PROBLEMS
from strategies import set_aside
from strategies.messages import SESSION, TRAIN, WHOAMI
from tests.deletion_service import free_port
from tests.federation import SMALL, client, federations
from tests.versions import FederationOfVersions, versions  # noqa: F401 - a fixture
from unlearning.requests import Status

pytestmark = pytest.mark.usefixtures("versions")

LOWER, HIGHER = 0, 2
SENTENCES = {
    LOWER: (
        "The site has a protocol version before 1 and the server has 1: upgrade flower-unlearning at the site.",
        "The server has protocol version 1 and this site has 0: upgrade flower-unlearning at this site.",
    ),
    HIGHER: (
        "The site has protocol version 2 and the server has 1: upgrade flower-unlearning at the server.",
        "The server has protocol version 1 and this site has 2: upgrade flower-unlearning at the server.",
    ),
}
"""At the server and at the site, by the site's version."""

Making = Callable[..., FederationOfVersions]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Making]:
    """Make federations of three; the nodes are registered by name, so their first message is one of a round."""
    with federations(tmp_path, FederationOfVersions) as making:

        def registered(transport: str = "messages", **settings: Any) -> FederationOfVersions:
            address = f"127.0.0.1:{free_port()}" if transport == "session" else ""
            made = making(
                transport,
                **{**SMALL, "transport": transport, "session_address": address, "min_clients": 1, **settings},
            )
            made.grid.names = {made.node(name): name for name in "012"}
            return made

        yield registered


def sent_to(federation: FederationOfVersions, name: str) -> list[str]:
    """The types of the messages to a client."""
    node = federation.node(name)
    return [one.metadata.message_type for one in federation.grid.sent if one.metadata.dst_node_id == node]


def problems(federation: FederationOfVersions) -> dict[str, str]:
    return dict(federation.ledger.facts().get(SITE_PROBLEMS) or {})


def participants(federation: FederationOfVersions) -> list[list[str]]:
    return [record.metrics["participants"] for record in federation.ledger.rounds()]


@pytest.mark.parametrize("transport", ["messages", "session"])
@pytest.mark.parametrize("version", [LOWER, HIGHER])
def test_a_site_of_another_version_is_asked_once_and_told_why(make, transport, version):
    """The rounds go on with the others; server and site each have one sentence with both versions."""
    federation = make(transport)
    federation.grid.versions[federation.node("2")] = version
    federation.run(rounds=3)
    assert sent_to(federation, "2") == [SESSION if transport == "session" else TRAIN]
    assert [sorted(one) for one in participants(federation)] == [["0", "1"]] * 3
    at_server, at_site = SENTENCES[version]
    assert problems(federation) == {"2": at_server}
    directory = federation.directory / "clients" / "2"
    assert (
        f"problem:\t{at_site}" in CliRunner().invoke(site, ["status", "--state-dir", str(directory)]).output
    )


def test_a_site_comes_back_once_its_upgraded_node_has_started(make):
    """The server goes on running; the node is asked at once, and takes part from the next round on."""
    federation = make()
    node, grid = federation.node("2"), federation.grid
    grid.versions[node] = LOWER

    def upgrade() -> None:
        grid.versions.clear()
        grid.restarted.add(node)

    grid.later["2"] = upgrade
    federation.run(rounds=5)
    assert sent_to(federation, "2")[:3] == [TRAIN, WHOAMI, TRAIN]
    assert [len(one) for one in participants(federation)] == [2, 2, 3, 3, 3]
    assert problems(federation) == {}


def test_a_site_comes_back_without_a_restart(make, monkeypatch):
    """Where the program was replaced under a running SuperNode, it is asked again after a while."""
    monkeypatch.setattr(set_aside, "ASK_AGAIN_S", 0.0)
    federation = make()
    federation.grid.versions[federation.node("2")] = HIGHER
    federation.grid.later["2"] = federation.grid.versions.clear
    federation.run(rounds=5)
    assert len(participants(federation)[-1]) == 3
    assert problems(federation) == {}


def test_no_round_waits_for_the_answer_of_a_site_that_is_set_aside(make, monkeypatch):
    """A node that hangs is asked once, and costs no time."""
    monkeypatch.setattr(set_aside, "ASK_AGAIN_S", 0.0)
    federation = make(round_timeout_s=30.0)
    node, grid = federation.node("2"), federation.grid
    grid.versions[node] = LOWER
    before: list[str] = []

    def hang() -> None:
        before.extend(sent_to(federation, "2"))
        grid.mute.add(node)

    grid.later["2"] = hang
    started = time.monotonic()
    federation.run(rounds=6)
    assert time.monotonic() - started < 15.0
    assert [sorted(one) for one in participants(federation)] == [["0", "1"]] * 6
    asked = sent_to(federation, "2")
    assert [asked[0], *asked[len(before) :]] == [TRAIN, WHOAMI]


def test_a_site_that_cannot_read_the_settings_is_asked_once(make):
    """Its program knows fewer settings, though it speaks the same version: that lasts as well."""
    federation = make()
    context = federation.grid.contexts[federation.node("2")]
    context.run_config = {**context.run_config, "of-tomorrow": 1}
    federation.run(rounds=3)
    assert sent_to(federation, "2") == [TRAIN]
    assert "cannot read the settings of the run" in problems(federation)["2"]
    assert "of-tomorrow" in problems(federation)["2"]


def test_the_start_does_not_wait_for_sites_that_cannot_take_part(make):
    """Nodes without a registered name say their version before the first round; they count as there."""
    federation = make(wait_timeout_s=30.0, start_clients=3)
    federation.grid.names = {}
    federation.grid.versions[federation.node("2")] = LOWER
    started = time.monotonic()
    federation.run(rounds=2)
    assert time.monotonic() - started < 15.0
    assert sent_to(federation, "2") == [WHOAMI]
    assert problems(federation) == {"2": SENTENCES[LOWER][0]}


def test_a_request_waits_for_a_target_of_another_version(make):
    """It is not failed: the site can carry it out after its upgrade."""
    federation = make(num_clients=3)
    node, grid = federation.node("2"), federation.grid
    federation.run(rounds=1)
    grid.versions[node] = LOWER
    request = federation.file(client("2"), "puf-special")
    federation.run(rounds=3)
    assert federation.ledger.requests.get(request.id).status is Status.SCHEDULED
    grid.versions.clear()
    federation.run(rounds=4)
    assert federation.ledger.requests.get(request.id).status is Status.COMPLETED
