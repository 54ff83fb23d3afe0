"""A ledger's password is in no file and in no message of a federation that uses it."""

from flwr.common.serde import message_to_proto

from server.ledger import Ledger
from server.operations.backup import back_up
from server.operations.metrics import LedgerCollector
from server.state_directory.ledger_address import VARIABLE
from tests.ledgers import CANARY, NOW
from tests.residue import files_with
from unlearning.requests import Status


def test_no_file_and_no_message_has_the_ledgers_password(
    federation, url_with_password, monkeypatch, tmp_path, caplog
):
    """Settings, checkpoints, report, certificate, a backup, log, metrics, and all that clients receive."""
    caplog.set_level("DEBUG")
    monkeypatch.setenv(VARIABLE, url_with_password)
    one = federation(
        num_clients=3,
        max_examples=200,
        rounds=2,
        requests="at=1 client=2 method=puf-special",
        recovery_max_rounds=1,
    )
    one.run()
    back_up(tmp_path / "backup", state_dir=one.directory, ledger_url=url_with_password, now=NOW)
    ledger = Ledger.open(url_with_password)
    (request,) = ledger.requests.select()
    assert request.status is Status.COMPLETED
    said = [
        caplog.text,
        repr(ledger.events.page()),
        repr(request),
        repr(list(LedgerCollector(ledger).collect())),
    ]
    ledger.close()
    received = [message_to_proto(message).SerializeToString() for message in one.grid.sent]
    received += [repr(context).encode() for context in one.grid.contexts.values()]
    assert len(received) > 10
    assert [text for text in said if CANARY in text] == []
    assert [message for message in received if CANARY.encode() in message] == []
    assert files_with(tmp_path, CANARY) == []
    assert (one.directory / "settings.json").is_file()
