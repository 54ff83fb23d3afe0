"""What a client remembers outlives messages, runs and restarts."""

import pytest
from flwr.app import Context, RecordDict

from client.context_memory import ContextMemory
from client.memory import DirectoryMemory
from unlearning.errors import CheckpointError
from unlearning.requests import Forget, Granularity, Target


@pytest.fixture(params=["directory", "context"])
def memory(request, tmp_path):
    """Every kind of memory runs the same tests."""
    if request.param == "directory":
        return DirectoryMemory(tmp_path / "state")
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    return ContextMemory(context)


def test_tombstones_only_grow(memory):
    """Burying less does not dig anything up."""
    memory.add_tombstones(Forget(sample_ids=frozenset({"1", "2"})))
    memory.add_tombstones(Forget(classes=frozenset({4})))
    memory.add_tombstones(Forget())
    assert memory.tombstones() == Forget(sample_ids=frozenset({"1", "2"}), classes=frozenset({4}))


def test_tombstones_outlive_the_process(tmp_path):
    """A second object on the same directory sees them."""
    DirectoryMemory(tmp_path).add_tombstones(Forget(everything=True))
    assert DirectoryMemory(tmp_path).tombstones().everything


def test_a_damaged_tombstone_file_stops_the_client(tmp_path):
    """Training on would break a promise."""
    (tmp_path / "tombstones.json").write_text('{"everything": tru')
    with pytest.raises(CheckpointError):
        DirectoryMemory(tmp_path).tombstones()


def test_a_filed_request_stays_until_the_server_has_answered(tmp_path):
    """Confirmed ones move to `sent` with the answer; a second confirmation changes nothing."""
    memory = DirectoryMemory(tmp_path)
    first = memory.file_request(Target(Granularity.CLIENT, "3"), "puf-special", {})
    second = memory.file_request(Target(Granularity.CLIENT, "3"), "puf-regular", {})
    assert [filed["key"] for filed in memory.outbox()] == [first, second]
    memory.confirm({first: "accepted as r-000001"})
    memory.confirm({first: "accepted as r-000001"})
    assert [filed["key"] for filed in memory.outbox()] == [second]
    assert memory.answered_requests()[0]["answer"] == "accepted as r-000001"


def test_a_confirmation_cannot_name_a_file_elsewhere(tmp_path):
    """Keys come from the server; they must not become paths."""
    memory = DirectoryMemory(tmp_path / "state")
    victim = tmp_path / "victim.json"
    victim.write_text("{}")
    memory.confirm({"../../victim": "x"})
    assert victim.exists()
