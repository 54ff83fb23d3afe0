"""Old reports become their certificate, old texts go; open and held requests and what answers young ones stay."""

from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.ledger import Ledger
from server.ledger.records import PRUNED
from server.operations.retention import Pruned, Retention, prune
from tests.ledgers import LATER, NOW, advance, live_at, submit
from tests.raising import refuses
from unlearning.gdpr import Particulars
from unlearning.requests import Granularity, Status, Target

NAMES = ("report.json", "report.html", "certificate.json")
IN_TWO_YEARS = LATER + timedelta(days=24 * 30, seconds=1)


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    return tmp_path / "reports"


def file(ledger: Ledger, reports: Path, number: int, status: Status = Status.COMPLETED) -> str:
    """A request of a class, brought to this status, with a report of 20 bytes and a certificate."""
    target = Target(Granularity.CLASS, class_label=number)
    request = submit(ledger, target, key=str(number), particulars=Particulars(reference="née 1984"))
    advance(ledger, request.id, status, ledger.acquire_fence("loop", now=NOW))
    folder = reports / request.id
    folder.mkdir(parents=True)
    for name in NAMES:
        (folder / name).write_bytes(b"0123456789")
    return request.id


def left(reports: Path, request_id: str) -> set[str]:
    return {path.name for path in (reports / request_id).iterdir()}


def pruned(ledger: Ledger, reports: Path, *, is_dry: bool = False, **kept: int) -> list[Pruned]:
    return [*prune(ledger, reports.parent, Retention(**kept), now=IN_TWO_YEARS, is_dry=is_dry)]


def test_an_old_report_becomes_its_certificate_and_the_ledger_holds(ledger, reports):
    """The request is what it was, its end included."""
    old = file(ledger, reports, 1)
    before = ledger.requests.get(old)
    assert pruned(ledger, reports) == [Pruned(request_id=old, what="report", num_bytes=20)]
    assert left(reports, old) == {"certificate.json"}
    assert (ledger.requests.get(old), ledger.events.verify()) == (before, "")
    assert pruned(ledger, reports) == []


def test_a_dry_run_says_the_same_and_changes_nothing(sqlite_ledger, reports):
    """Bytes included."""
    old, head = file(sqlite_ledger, reports, 1), sqlite_ledger.events.head()
    assert pruned(sqlite_ledger, reports, is_dry=True, text_months=24) == [
        Pruned(request_id=old, what="report", num_bytes=20),
        Pruned(request_id=old, what="texts", num_bytes=9),
    ]
    assert (left(reports, old), sqlite_ledger.events.head()) == ({*NAMES}, head)


@pytest.mark.parametrize("status", [Status.SCHEDULED, Status.VERIFYING, Status.FAILED, Status.ACCEPTED])
def test_what_is_not_ended_stays(sqlite_ledger, reports, status):
    """Whatever its age."""
    file(sqlite_ledger, reports, 1, status)
    assert pruned(sqlite_ledger, reports, text_months=1) == []


def test_what_is_held_stays(sqlite_ledger, reports):
    """For as long as the hold lasts, which keeps the request open."""
    submit(sqlite_ledger, hold_reason="a lawsuit", particulars=Particulars(note="a note"))
    assert pruned(sqlite_ledger, reports, text_months=1) == []


def test_a_report_that_answers_a_younger_request_stays(sqlite_ledger, reports):
    """Until that one is as old."""
    old = file(sqlite_ledger, reports, 1)
    young = submit(sqlite_ledger, Target(Granularity.CLASS, class_label=2), key="2")
    writer = live_at(sqlite_ledger, sqlite_ledger.acquire_fence("loop", now=NOW), IN_TWO_YEARS)
    writer.move(young.id, Status.COMPLETED, result={"answered_by": [old]})
    assert pruned(sqlite_ledger, reports) == []


def test_a_report_without_a_certificate_stays(sqlite_ledger, reports):
    """Nothing else would prove the deletion."""
    old = file(sqlite_ledger, reports, 1)
    (reports / old / "certificate.json").unlink()
    assert pruned(sqlite_ledger, reports) == []


def test_old_texts_go_and_the_ledger_holds(sqlite_ledger, reports):
    """As by `redact`; months of 0 keep them."""
    old = file(sqlite_ledger, reports, 1)
    assert pruned(sqlite_ledger, reports, report_months=0) == []
    assert [one.what for one in pruned(sqlite_ledger, reports, report_months=0, text_months=24)] == ["texts"]
    assert sqlite_ledger.requests.get(old).reference == ""
    assert sqlite_ledger.events.verify() == ""


@pytest.mark.parametrize("erased", [0, 1])
def test_a_command_that_died_between_two_files_goes_on(sqlite_ledger, reports, monkeypatch, erased):
    """With one event, however often it is run."""
    old, unlink, count = file(sqlite_ledger, reports, 1), Path.unlink, iter(range(9))

    def die(path: Path) -> None:
        if next(count) == erased:
            raise KeyboardInterrupt
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            pruned(sqlite_ledger, reports)
    assert [one.what for one in pruned(sqlite_ledger, reports)] == ["report"]
    assert left(reports, old) == {"certificate.json"}
    assert [event.kind for event in sqlite_ledger.events.all(old)].count(PRUNED) == 1


def test_the_command_takes_its_months_from_the_federations_file(sqlite_ledger, reports, tmp_path):
    """An option overrules it, an unknown key is refused."""
    old = file(sqlite_ledger, reports, 1)
    path = tmp_path / "federation.toml"
    path.write_text(f'state-dir = "{tmp_path}"\n[retention]\nreport-months = 1\n')
    command = ["--federation-file", str(path), "prune"]
    kept = CliRunner().invoke(app, [*command, "--report-months", "9999", "--json"])
    assert kept.stdout == "[]\n"
    done = CliRunner().invoke(app, [*command, "--dry-run"])
    assert f"{old}\treport\t20" in done.stdout
    for months in ("true", "2.7", "0.5"):  # an option would take 1, 2, and 0, which is never
        path.write_text(f'state-dir = "{tmp_path}"\n[retention]\nreport-months = {months}\n')
        unfit = CliRunner().invoke(app, [*command, "--dry-run"])
        assert (unfit.exit_code, "report-months: give a whole number" in unfit.output) == (2, True)
    path.write_text(f'state-dir = "{tmp_path}"\n[retention]\nmonths = 1\n')
    refused = CliRunner().invoke(app, command)
    assert (refused.exit_code, "retention.months: there is no such key" in refused.output) == (2, True)


def test_months_below_zero_are_refused():
    """They would erase what has not ended yet."""
    with refuses("report-months"):
        Retention(report_months=-1)


@pytest.mark.parametrize(
    "command", [("prune",), ("erase-residue", "--superlink-database", "file"), ("check",)]
)
def test_where_no_ledger_is_none_is_made(tmp_path, monkeypatch, command):
    """A job with a wrong path would prune an empty one, and say for years that all is well."""
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for given in (
        ("--state-dir", "nowhere"),
        ("--state-dir", ".", "--ledger", f"sqlite:///{tmp_path}/nowhere.db"),
    ):
        done = CliRunner().invoke(app, [*command, *given])
        assert done.exit_code != 0
        assert "There is no ledger" in " ".join(done.output.split())
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
