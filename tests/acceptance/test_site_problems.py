"""What is wrong with a site's set-up or data, or with a server that was set back, is named, client by client."""

import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from client.cli import app as site
from server.ledger import SITE_PROBLEMS
from tests.federation import InProcessFederation
from unlearning.requests import Granularity, Status, Target


@pytest.fixture
def of_three(federation) -> InProcessFederation:
    """Clients that have the three parts of the data."""
    return federation(num_clients=3)


def set_up(federation: InProcessFederation, client: str, **changes: int | str) -> None:
    config = federation.grid.contexts[federation.node(client)].node_config
    config.update({key.replace("_", "-"): value for key, value in changes.items()})


def known(federation: InProcessFederation) -> dict[str, str]:
    return dict(federation.ledger.facts().get(SITE_PROBLEMS) or {})


def status(federation: InProcessFederation, client: str) -> str:
    directory = federation.directory / "clients" / client
    return CliRunner().invoke(site, ["status", "--state-dir", str(directory)]).output


def test_parts_that_fit_are_no_problem(of_three, caplog):
    """Nothing is said anywhere."""
    of_three.run(rounds=2)
    assert known(of_three) == {}
    assert "part " not in caplog.text
    assert "problem" not in status(of_three, "2")


def test_another_number_of_parts_is_named_until_it_is_mended(of_three, caplog):
    """In the log and in the ledger after the first round; at the site with the next message."""
    set_up(of_three, "2", num_partitions=4)
    of_three.run(rounds=2)
    assert "It has part 2 of 4" in known(of_three)["2"]
    assert caplog.text.count("Client 2: It has part 2 of 4") == 1
    assert "problem:\tIt has part 2 of 4" in status(of_three, "2")
    assert "problem" not in status(of_three, "1")
    set_up(of_three, "2", num_partitions=3)
    of_three.run(rounds=4)
    assert known(of_three) == {}
    assert "problem" not in status(of_three, "2")


def test_a_part_that_is_not_there_is_named(of_three):
    """The site cannot load it, and says so itself."""
    set_up(of_three, "2", partition_id=3)
    of_three.run(rounds=1)
    assert "There are the partitions 0 to 2, got 3" in known(of_three)["2"]
    assert "problem:\tThere are the partitions 0 to 2, got 3" in status(of_three, "2")


def test_a_state_directory_without_its_whole_path_is_named(of_three, tmp_path, monkeypatch):
    """A SuperNode that is started elsewhere would not know what the site has forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    set_up(of_three, "1", state_dir="~/state")
    set_up(of_three, "2", state_dir="state")
    of_three.run(rounds=1)
    assert "give its whole path in this node's configuration" in known(of_three)["2"]
    assert "1" not in known(of_three)
    assert (tmp_path / "home" / "state" / "sample-ids").is_file()
    assert not (tmp_path / "state").exists()


def test_a_misspelt_key_is_named_and_the_site_left_out(of_three):
    """A site that demands secure aggregation, and says it wrongly, would train in the clear."""
    of_three.grid.contexts[of_three.node("2")].node_config["require_secure_aggregation"] = True
    of_three.run(rounds=1)
    assert "require-secure-aggregation is one" in known(of_three)["2"]
    assert "require-secure-aggregation is one" in status(of_three, "2")
    assert [record.metrics["participants"] for record in of_three.ledger.rounds()] == [["0", "1"]]


def test_a_directory_that_two_clients_were_given_is_the_first_ones(of_three, tmp_path):
    """Else what is filed at one would ask to forget the other as well, and either would obey the other's tombstones."""
    shared = tmp_path / "shared"
    for client in ("1", "2"):
        set_up(of_three, client, client_id=client, state_dir=str(shared))
    of_three.run(rounds=1)
    (other,) = {"1", "2"} & known(of_three).keys()
    mine = ({"1", "2"} - {other}).pop()
    assert f"is client {mine}'s, and this is client {other}" in known(of_three)[other]
    assert [record.metrics["participants"] for record in of_three.ledger.rounds()] == [sorted({"0", mine})]
    set_up(of_three, other, state_dir=str(tmp_path / "own"))
    of_three.run(rounds=2)
    assert known(of_three) == {}


def test_rows_that_move_after_a_deletion_are_not_trained_on(of_three, tmp_path):
    """The owner takes one forgotten row out of the file: the other one would stand where nothing is left out."""
    random = np.random.default_rng(0)
    rows = {"inputs": random.normal(size=(40, 1, 8, 8)).astype(np.float32), "targets": np.arange(40) % 10}

    def write(name, **content):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "train.npz", **content)
        set_up(of_three, "1", data_dir=str(tmp_path / name))

    write("before", **rows)
    of_three.run(rounds=1)
    gone, kept = frozenset({"3", "6"}), np.delete(np.arange(40), 3)
    request = of_three.file(Target(Granularity.SAMPLE, "1", gone), "natural")
    of_three.run(rounds=2)
    assert of_three.ledger.requests.get(request.id).status is Status.COMPLETED
    assert known(of_three) == {}
    less = {name: values[kept] for name, values in rows.items()}
    write("after", **less)
    of_three.run(rounds=3)
    assert "Give each example that stays its former position as its id" in known(of_three)["1"]
    write("with ids", **less, ids=kept.astype(str))
    of_three.run(rounds=4)
    assert known(of_three) == {}
    taking_part = [
        record.metrics["participants"] for record in of_three.ledger.rounds() if record.kind == "training"
    ]
    assert [("1" in one) for one in taking_part[-2:]] == [False, True]
    own = (of_three.directory / "clients" / "1" / "sample-ids").read_text().split()
    assert own == [str(place) for place in kept if place != 6]


@pytest.mark.parametrize("granularity", [Granularity.SAMPLE, Granularity.CLIENT])
def test_a_server_that_was_set_back_is_named_by_those_who_know_more(
    federation, tmp_path, caplog, granularity
):
    """As a snapshot of its machine does: the model holds again what was deleted since, and its ledger knows nothing."""
    one = federation(num_clients=3)
    one.run(rounds=1)
    one.close()
    shutil.copytree(one.directory, tmp_path / "snapshot", ignore=shutil.ignore_patterns("clients"))
    ids = (one.directory / "clients" / "1" / "sample-ids").read_text().split()
    target = Target(granularity, "1", frozenset(ids[:2] if granularity is Granularity.SAMPLE else ()))
    one = federation(num_clients=3)
    one.forget(target, "natural", rounds=2)
    one.run(rounds=3)
    assert known(one) == {}
    one.close()
    for place in [path for path in one.directory.iterdir() if path.name != "clients"]:
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    shutil.copytree(tmp_path / "snapshot", one.directory, dirs_exist_ok=True)
    again = federation(num_clients=3)
    again.run(rounds=3)
    assert list(known(again)) == ["1"]
    assert "the server was set back to an earlier state" in known(again)["1"]
    assert "the server was set back" in status(again, "1")
    samples = f" samples={','.join(target.sample_ids)}" if target.sample_ids else ""
    again.run(rounds=6, requests=f"at=4 client=1{samples} method=retrain")  # which names it until then
    assert caplog.text.count("Client 1: It knows of deletions that this ledger knows no longer") == 1
    assert known(again) == {}


def test_another_federation_is_no_earlier_state(federation):
    """A site keeps what it must not use for every server; one that never knew of it is not behind itself."""
    one = federation(num_clients=3)
    one.run(rounds=1)
    ids = (one.directory / "clients" / "1" / "sample-ids").read_text().split()
    one.forget(Target(Granularity.SAMPLE, "1", frozenset(ids[:2])), "natural", rounds=2)
    other = federation("another", num_clients=3)
    shutil.copytree(one.directory / "clients", other.directory / "clients")
    other.run(rounds=2)
    assert known(other) == {}
