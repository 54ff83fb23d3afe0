"""Deadlines, a hold and people's texts through a whole deletion: in ledger, report and certificate, and erased."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from typer.testing import CliRunner, Result

from server.certificate.document import decode, encode
from server.certificate.keys import PUBLIC_KEY, SIGNING_KEY, load_signing_key, make_key_pair
from server.cli import app
from server.ledger import NewRequest
from server.ledger.texts import Kind
from server.requests.admission import admit
from server.state_directory.ledger_address import ledger_url
from tests.federation import SMALL, client
from unlearning.gdpr import Amendment, Ground, Particulars
from unlearning.requests import Status

SECRET = "Erika Müller"


def test_a_held_request_waits_and_its_texts_are_in_no_file_but_the_ledger(federation, tmp_path):
    """Held, it sits in the ledger while its client sits out; released, it is completed; redacted, it verifies."""
    make_key_pair(tmp_path / "keys")
    key = str(tmp_path / "keys" / SIGNING_KEY)
    one = federation(rounds=1, certificate_key=key, **SMALL)
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
    one.ledger.decisions.hold(request.id, reason=SECRET, by="ada", now=now)
    one.ledger.decisions.extend(request.id, days=7, reason=SECRET, by="ada", now=now)
    one.run(rounds=2)
    assert one.ledger.requests.get(request.id).status is Status.RECEIVED
    assert "2" not in one.ledger.rounds()[-1].metrics["participants"]
    one.ledger.decisions.release(request.id, reason=SECRET, by="ada", now=now)
    one.run(rounds=3)
    done = one.ledger.requests.get(request.id)
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

    def verify(certificate: Path) -> Result:
        given = ("--public-key", str(tmp_path / "keys" / PUBLIC_KEY), "--ledger", ledger_url(one.directory))
        return CliRunner().invoke(app, ["verify", str(certificate), *given])

    later = Amendment(ground="a", reference=f"{SECRET} again")
    one.ledger.decisions.amend(request.id, what=later, by="ada", now=now)
    one.ledger.decisions.redact(request.id, by="ada", now=now)
    assert one.ledger.requests.get(request.id).reference == ""
    result = verify(folder / "certificate.json")
    assert result.exit_code == 0, result.stdout
    of_later = one.ledger.requests.text_commitment(request.id, Kind.REFERENCE)
    for changes, named in (({"reference_sha256": of_later}, "reference"), ({"ground": "a"}, "ground")):
        content = decode((folder / "certificate.json").read_bytes()).certificate
        other = content.model_copy(update={"request": certified.model_copy(update=changes)})
        (tmp_path / "other.json").write_bytes(encode(other, load_signing_key(Path(key))))
        refused = verify(tmp_path / "other.json").stdout
        assert f"Request {request.id} says something else there: {named}." in refused
