"""What a client remembers outlives messages, runs and restarts."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from client.context_memory import ContextMemory
from client.memory import DirectoryMemory, keep_values, newest_values, values_before
from unlearning.errors import CheckpointError
from unlearning.requests import NOTHING, Forget, Granularity, Target


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


def test_a_request_that_is_confirmed_while_the_outbox_is_read_is_no_error(tmp_path, monkeypatch):
    """`flower-unlearn-site status` reads what the client moves."""
    memory = DirectoryMemory(tmp_path)
    keys = {memory.file_request(Target(Granularity.CLIENT, "3"), "puf-special", {}) for _ in range(3)}
    read = Path.read_text

    def confirming(path: Path, encoding: str) -> str:
        monkeypatch.undo()
        memory.confirm(dict.fromkeys(keys - {path.stem}, "accepted as r-000001"))
        return read(path, encoding=encoding)

    monkeypatch.setattr(Path, "read_text", confirming)
    assert len(memory.outbox()) == 1
    assert len(memory.answered_requests()) == 2


def test_a_confirmation_cannot_name_a_file_elsewhere(tmp_path):
    """Keys come from the server; they must not become paths."""
    memory = DirectoryMemory(tmp_path / "state")
    victim = tmp_path / "victim.json"
    victim.write_text("{}")
    memory.confirm({"../../victim": "x"})
    assert victim.exists()


def test_local_layers_begin_again_without_what_is_withheld(memory):
    """An abandoned deletion goes on from the values of before; tombstones erase what was trained with them alone."""
    gone, after = Forget(sample_ids=frozenset({"x"})), {"head": np.full(2, 2.0)}
    keep_values(memory, NOTHING, 1, {"head": np.ones(2)})
    assert values_before(memory, gone, 2) == {}
    keep_values(memory, gone, 2, after)
    assert newest_values(memory)["head"].tolist() == [2, 2]
    assert values_before(memory, NOTHING, 3)["head"].tolist() == [1, 1]
    assert values_before(memory, NOTHING, 1) == {}  # a round that is done again
    memory.add_tombstones(gone, b"key of the server")
    assert newest_values(memory) == {}  # kept under ids, not under their hashes
    keep_values(memory, NOTHING, 3, after)
    memory.add_tombstones(Forget(sample_ids=frozenset({"x"})))
    assert values_before(memory, NOTHING, 4)["head"].tolist() == [2, 2]
    memory.add_tombstones(Forget(everything=True))
    assert newest_values(memory) == {}
