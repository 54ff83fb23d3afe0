"""Deadlines, a hold and people's texts through a whole deletion: in ledger, report and certificate, and erased."""

from datetime import UTC, date, datetime, timedelta

from typer.testing import CliRunner

from server.certificate.document import decode
from server.certificate.keys import PUBLIC_KEY, SIGNING_KEY, make_key_pair
from server.cli import app
from server.ledger import NewRequest
from server.requests.admission import admit
from server.state_directory.ledger_address import ledger_url
from tests.federation import client
from unlearning.deadlines import Ground, Particulars
from unlearning.requests import Status

SECRET = "Erika Müller"


def test_a_held_request_waits_and_its_texts_are_in_no_file_but_the_ledger(federation, tmp_path):
    """Held, it sits in the ledger while its client sits out; released, it is completed; redacted, it verifies."""
    make_key_pair(tmp_path / "keys")
    key = str(tmp_path / "keys" / SIGNING_KEY)
    small = {"num_clients": 3, "recovery_max_rounds": 1, "max_examples": 150, "attack_samples": 20}
    one = federation(rounds=1, certificate_key=key, **small)
    one.run()
    now = datetime.now(UTC)
    received = now.date() - timedelta(days=2)
    given = Particulars(received_on=received, ground=Ground.D, reference=SECRET, note=SECRET)
    new = NewRequest(
        target=client("2"),
        method="puf-special",
        submitted_by="ada",
        idempotency_key="k",
        particulars=given,
    )
    request = admit(one.ledger, new, by_operator=True, now=now)
    one.ledger.hold(request.id, reason=SECRET, by="ada", now=now)
    one.ledger.extend(request.id, days=7, reason=SECRET, by="ada", now=now)
    one.run(rounds=2)
    assert one.ledger.get(request.id).status is Status.RECEIVED
    assert "2" not in one.ledger.rounds()[-1].metrics["participants"]
    one.ledger.release(request.id, reason=SECRET, by="ada", now=now)
    one.run(rounds=3)
    done = one.ledger.get(request.id)
    assert (done.status, done.reference) == (Status.COMPLETED, SECRET)

    asked = one.report(request.id)["request"]
    assert (asked["received_on"], asked["due_on"]) == (received.isoformat(), done.due_on.isoformat())
    assert (asked["extended_days"], asked["ground"]) == (7, "d")
    folder = one.directory / "reports" / request.id
    assert not [path for path in folder.iterdir() if "Erika" in path.read_text(encoding="utf-8")]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "the data was processed unlawfully" in page
    assert f"{done.due_on} (extended by 7 days)" in page
    certified = decode((folder / "certificate.json").read_bytes()).certificate.request
    assert date.fromisoformat(certified.received_on or "") == received
    assert certified.reference_sha256 == asked["reference_sha256"] is not None

    one.ledger.redact(request.id, by="ada", now=now)
    assert one.ledger.get(request.id).reference == ""
    result = CliRunner().invoke(
        app,
        [
            *(
                "verify",
                str(folder / "certificate.json"),
                "--public-key",
                str(tmp_path / "keys" / PUBLIC_KEY),
            ),
            *("--report", str(folder / "report.json"), "--ledger", ledger_url(one.directory)),
        ],
    )
    assert result.exit_code == 0, result.stdout
