"""A site whose num-partitions or partition-id does not fit the run is named after its first round, by name."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from client.cli import app as site
from server.ledger import SITE_PROBLEMS
from tests.federation import InProcessFederation


@pytest.fixture
def federation(tmp_path: Path):
    """Of three clients, which have the three parts of the data."""
    made = InProcessFederation(tmp_path, {"num-clients": 3})
    yield made
    made.close()


def set_up(federation: InProcessFederation, client: str, **changes: int) -> None:
    context = federation.grid.contexts[federation.node(client)]
    context.node_config = {
        **context.node_config,
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }


def known(federation: InProcessFederation) -> dict[str, str]:
    return dict(federation.ledger.facts().get(SITE_PROBLEMS) or {})


def status(federation: InProcessFederation, client: str) -> str:
    directory = federation.directory / "clients" / client
    return CliRunner().invoke(site, ["status", "--state-dir", str(directory)]).output


def test_parts_that_fit_are_no_problem(federation, caplog):
    """Nothing is said anywhere."""
    federation.run(rounds=2)
    assert known(federation) == {}
    assert "part " not in caplog.text
    assert "problem" not in status(federation, "2")


def test_another_number_of_parts_is_named_until_it_is_mended(federation, caplog):
    """In the log and in the ledger after the first round; at the site with the next message."""
    set_up(federation, "2", num_partitions=4)
    federation.run(rounds=2)
    assert "It has part 2 of 4" in known(federation)["2"]
    assert caplog.text.count("Client 2: It has part 2 of 4") == 1
    assert "problem: It has part 2 of 4" in status(federation, "2")
    assert "problem" not in status(federation, "1")
    set_up(federation, "2", num_partitions=3)
    federation.run(rounds=4)
    assert known(federation) == {}
    assert "problem" not in status(federation, "2")


def test_a_part_that_is_not_there_is_named(federation):
    """The site cannot load it, and says so itself."""
    set_up(federation, "2", partition_id=3)
    federation.run(rounds=1)
    assert "There are the partitions 0 to 2, got 3" in known(federation)["2"]
    assert "problem: There are the partitions 0 to 2, got 3" in status(federation, "2")
