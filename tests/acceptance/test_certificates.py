"""A deletion's certificate, from the live federation to the officer who checks it with `flower-unlearn verify`."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
import torch
from typer.testing import CliRunner, Result

from server.certificate.document import canonical, decode, encode
from server.certificate.keys import PUBLIC_KEY, SIGNING_KEY, load_signing_key, make_key_pair
from server.cli import app
from server.ledger import Ledger, LedgerWriter
from server.service.grpc_server import serve
from server.state_directory.ledger_address import ledger_url
from tests.certificates import Authority
from tests.federation import InProcessFederation
from tests.kills import Killed, Killer
from tests.raising import refuses
from unlearning.requests import Granularity, Status, Target, hash_of_ids
from unlearning.tasks import load_site
from unlearning.verification.verdict import Finding

SETTINGS: dict[str, Any] = {
    "num_clients": 3,
    "rounds": 1,
    "recovery_max_rounds": 1,
    "max_examples": 150,
    "attack_samples": 20,
    "weight_decay": 0.01,
}


class Case(NamedTuple):
    """What lies on an officer's desk, all of it a copy: `state` is the server's state directory."""

    state: Path
    keys: Path
    model: Path

    @property
    def report(self) -> Path:
        return self.state / "reports" / "r-000001"

    @property
    def certificate(self) -> Path:
        return self.report / "certificate.json"

    def verify(self, *given: str) -> Result:
        """`flower-unlearn verify` with these options, or with all."""
        options = {
            "public-key": self.keys / PUBLIC_KEY,
            "report": self.report / "report.json",
            "model": self.model,
            "samples": self.state.parent / "ids.txt",
            "subject-key": self.state / "subject-key",
            "ledger": ledger_url(self.state),
        }
        words = [word for name in given or options for word in (f"--{name}", str(options[name]))]
        return CliRunner().invoke(app, ["verify", str(self.certificate), *words])

    def content(self) -> Any:
        return json.loads(self.certificate.read_bytes())["certificate"]

    def forge_ledger(self, *statements: str) -> None:
        """Write past the program, as somebody who owns the database."""
        engine = sa.create_engine(ledger_url(self.state))
        with engine.begin() as connection:
            for name in ("events_no_update", "events_no_delete", "events_no_replace"):
                connection.execute(sa.text(f"DROP TRIGGER {name}"))
            for statement in statements:
                connection.execute(sa.text(statement))
        engine.dispose()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Three samples forgotten with PUF-Special, on a live federation that signs, and the model that it left."""
    directory = tmp_path_factory.mktemp("certified")
    make_key_pair(directory / "keys")
    settings = {**SETTINGS, "certificate_key": str(directory / "keys" / SIGNING_KEY)}
    one = InProcessFederation(directory / "state", settings)
    ids = load_site(one.settings.task(), 2).train.ids.tolist()[:3]
    (directory / "ids.txt").write_text("\n".join(ids), encoding="utf-8")
    try:
        one.run()
        one.file(Target(Granularity.SAMPLE, "2", frozenset(ids)))
        one.run()
    finally:
        one.close()
    case = Case(directory / "state", directory / "keys", directory / "model.pt")
    arguments = ["model", "--state-dir", str(case.state), "--output", str(case.model)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    return case


@pytest.fixture
def case(original: Case, tmp_path: Path) -> Case:
    """A copy that a test may spoil."""
    shutil.copytree(original.state.parent, tmp_path / "copy")
    return Case(*(tmp_path / "copy" / path.relative_to(original.state.parent) for path in original))


def fails(result: Result, words: str) -> None:
    """The exit code is 1, and somewhere stand these words."""
    assert result.exit_code == 1, result.output
    assert words in result.output


def refused(case: Case, of: str, *words: str) -> None:
    """One line refuses `of` with these words, and the exit code is 1."""
    result = case.verify(*dict.fromkeys(("public-key", "public-key" if of == "signature" else of)))
    assert result.exit_code == 1, result.output
    line = next(line for line in result.output.splitlines() if line.startswith(f"REFUSED\t{of}:"))
    assert all(word in line for word in words), line


def test_a_deletion_is_certified_and_everything_holds(original: Case) -> None:
    """Signature, report, model, samples and ledger."""
    result = original.verify()
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line.split(":")[0].split() for line in lines[2:7]] == [
        ["holds", of] for of in ("signature", "report", "model", "samples", "ledger")
    ]
    assert lines[-1] == "The certificate holds."


def test_it_says_what_report_ledger_and_request_say(original: Case) -> None:
    """Hashes, figures, verdict and gaps are the report's; the event is the one before the completion."""
    content = original.content()
    report = json.loads((original.report / "report.json").read_text(encoding="utf-8"))
    assert content["attacks"] == report["attacks"]
    assert content["attacks"]["verdict"] in list(Finding)
    assert content["model"] == {
        "before": report["model_hash_before"],
        "unlearned": report["model_hash_after_unlearning"],
        "after": report["model_hash_after"],
    }
    assert set(report["not_measured"]) <= set(content["not_measured"])
    ledger = Ledger.open(ledger_url(original.state))
    event = ledger.events.page()[content["ledger"]["event"]["sequence"] - 1]
    ledger.close()
    assert (event.request_id, event.to_status) == ("r-000001", Status.VERIFYING)
    assert content["issued_at"] == event.at.isoformat(timespec="seconds")


def test_ids_of_samples_stay_out(original: Case) -> None:
    """Only their number is in, and a commitment that cannot be tested without the key."""
    request = original.content()["request"]
    assert request["num_samples"] == 3
    assert len(request["sample_ids_commitment"]) == 64
    ids = (original.state.parent / "ids.txt").read_text(encoding="utf-8").split()
    plain = [hash_of_ids(ids), *(hash_of_ids([name]) for name in ids)]
    assert [digest for digest in plain if digest in original.certificate.read_text(encoding="utf-8")] == []


def test_no_file_has_the_ids_of_forgotten_samples_in_clear(original: Case) -> None:
    """Ledger, checkpoints, reports and the clients' tombstones have keyed hashes."""
    ids = (original.state.parent / "ids.txt").read_text(encoding="utf-8").split()
    files = [path for path in original.state.rglob("*") if path.is_file()]
    assert {"ledger.db", "tombstones.json", "certificate.json"} <= {path.name for path in files}
    found = {path.name for path in files for name in ids if f'"{name}"'.encode() in path.read_bytes()}
    assert found == set()
    assert (original.state / "subject-key").stat().st_mode & 0o777 == 0o600


def test_other_samples_than_the_certified_ones_are_refused(case: Case) -> None:
    """One id fewer is another list."""
    path = case.state.parent / "ids.txt"
    path.write_text("\n".join(path.read_text(encoding="utf-8").split()[:2]), encoding="utf-8")
    fails(case.verify("public-key", "samples", "subject-key"), "are not those that are certified")


@pytest.mark.parametrize(
    "change",
    [
        "client_id = '0'",
        "method = 'puf-regular'",
        "parameters = '{\"unlearning_rate\": 1.0}'",
        "submitted_by = 'somebody else'",
        "num_samples = 2",
        "result = '{}'",
    ],
)
def test_a_request_that_was_changed_past_the_program_is_refused(case: Case, change: str) -> None:
    """Target, method, parameters, submitter and result are bound to the events."""
    case.forge_ledger("DROP TRIGGER requests_immutable", f"UPDATE requests SET {change}")
    refused(case, "ledger", "Request r-000001 is not as its last event left it")


def test_an_emptied_ledger_is_refused(case: Case) -> None:
    """All rows of all that happened are gone, and nothing that is left contradicts itself."""
    guarded = (
        "exclusions_no_delete",
        "requests_no_delete",
        "request_samples_no_delete",
        "refusals_no_delete",
    )
    tables = ("events", "exclusions", "request_samples", "rounds", "refusals", "federation_facts", "requests")
    case.forge_ledger(
        *(f"DROP TRIGGER {name}" for name in guarded),
        *(f"DELETE FROM {name}" for name in tables),
        "UPDATE fence SET token = 0, holder = '', acquired_at = NULL",
    )
    refused(case, "ledger", "is gone")


def test_a_changed_figure_is_refused(case: Case) -> None:
    """Somebody makes the attack look weaker, in the certificate."""
    whole = json.loads(case.certificate.read_bytes())
    whole["certificate"]["attacks"]["after"]["yeom"]["called"]["value"] += 0.125
    case.certificate.write_bytes(canonical(whole) + b"\n")
    refused(case, "signature", "changed after it was signed")


def test_a_changed_report_is_refused(case: Case) -> None:
    """The same in the report."""
    path = case.report / "report.json"
    path.write_bytes(path.read_bytes().replace(b"PUF-Special", b"Retrain", 1))
    refused(case, "report", "not the report that was certified")


def test_a_swapped_model_is_refused(case: Case) -> None:
    """One number of it is enough."""
    values = torch.load(case.model)
    first = next(iter(values))
    values[first] = values[first] + 1e-3
    torch.save(values, case.model)
    refused(case, "model", "another model")


def test_the_model_before_is_named_for_what_it_is(case: Case) -> None:
    """The check says that it still knows what was forgotten."""
    file = decode(case.certificate.read_bytes()).certificate
    hashes = file.model.model_copy(update={"before": file.model.after, "after": "ab" * 32})
    other = file.model_copy(update={"model": hashes})
    case.certificate.write_bytes(encode(other, load_signing_key(case.keys / SIGNING_KEY)))
    refused(case, "model", "is the model before the deletion")


def test_a_file_that_is_no_model_is_refused_with_a_sentence(case: Case) -> None:
    """Exit code 1 and no trace of a stack."""
    case.model.write_bytes(b"no model")
    fails(case.verify(), "cannot be read as a model")


@pytest.mark.parametrize(
    "forgery",
    [
        pytest.param(("DELETE FROM events WHERE sequence = 3",), id="removed"),
        pytest.param(
            (
                "UPDATE events SET sequence = 900 WHERE sequence = 2",
                "UPDATE events SET sequence = 2 WHERE sequence = 3",
                "UPDATE events SET sequence = 3 WHERE sequence = 900",
            ),
            id="reordered",
        ),
        pytest.param(("UPDATE events SET actor = 'eve' WHERE sequence = 1",), id="changed"),
    ],
)
def test_a_forged_ledger_is_refused(case: Case, forgery: tuple[str, ...]) -> None:
    """An event removed, two in another order, one changed."""
    case.forge_ledger(*forgery)
    refused(case, "ledger", "does not follow from those before it")


@pytest.mark.parametrize(("since", "place"), [(">=", "event"), (">", "head")])
def test_a_ledger_that_was_cut_is_refused(case: Case, since: str, place: str) -> None:
    """The chain that is left holds, but the rows went on from there, or name the certificate."""
    last = case.content()["ledger"][place]["sequence"]
    case.forge_ledger(f"DELETE FROM events WHERE sequence {since} {last}")
    refused(case, "ledger", "is not as its last event left it")


def test_a_second_certificate_by_the_same_key_is_refused_by_the_ledger(case: Case) -> None:
    """Not even the server can write another one later: the ledger names the first."""
    file = decode(case.certificate.read_bytes())
    other = file.certificate.model_copy(update={"not_measured": []})
    case.certificate.write_bytes(encode(other, load_signing_key(case.keys / SIGNING_KEY)))
    refused(case, "ledger", "another certificate than this file")


def test_a_wrong_key_is_refused(case: Case, tmp_path: Path) -> None:
    """Somebody else's public key."""
    make_key_pair(tmp_path / "other")
    shutil.copy(tmp_path / "other" / PUBLIC_KEY, case.keys / PUBLIC_KEY)
    refused(case, "signature", "the wrong key")


def test_a_truncated_certificate_is_refused(case: Case) -> None:
    """With one sentence and exit code 1."""
    case.certificate.write_bytes(case.certificate.read_bytes()[:-200])
    fails(case.verify(), "cut short or damaged")


def test_without_a_public_key_nothing_is_proven(original: Case) -> None:
    """A signature that was not checked proves nothing."""
    fails(original.verify("report"), "without --public-key")


def test_a_certificate_cannot_fake_a_line_of_the_check(case: Case) -> None:
    """Its text is a stranger's until the signature holds."""
    whole = json.loads(case.certificate.read_bytes())
    whole["certificate"]["method"]["title"] = "PUF\nThe certificate holds.\x1b[8m"
    case.certificate.write_bytes(canonical(whole) + b"\n")
    result = case.verify()
    assert result.exit_code == 1
    assert "The certificate holds." not in result.output.splitlines()
    assert "\x1b" not in result.output


def test_what_is_not_given_is_named_as_skipped(original: Case) -> None:
    """The conclusion says how far the check went."""
    result = original.verify("public-key")
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == (
        "The certificate holds, as far as it was checked (skipped: report, model, samples, ledger)."
    )


def test_a_ledger_that_is_not_there_is_not_made(original: Case, tmp_path: Path) -> None:
    """A mistyped path is said, and leaves no empty ledger behind."""
    path = tmp_path / "typo.db"
    result = CliRunner().invoke(app, ["verify", str(original.certificate), "--ledger", f"sqlite:///{path}"])
    assert result.exit_code == 2
    assert not path.exists()


# Through the deletion service


@pytest.fixture
def as_officer(case: Case, tmp_path: Path) -> Iterator[Callable[..., Result]]:
    """Runs a command of an officer against a deletion service over the case's ledger and reports."""
    authority = Authority(tmp_path)
    officer = authority.certify("olga", "officer")
    tls = ("--tls-ca", str(officer.ca), "--tls-cert", str(officer.certificate), "--tls-key", str(officer.key))
    ledger = Ledger.open(ledger_url(case.state))
    running = serve(ledger, case.state / "reports", "127.0.0.1:0", authority.certify("server"))
    yield lambda *arguments: CliRunner().invoke(app, ["--server", running.address, *tls, *arguments])
    running.stop(0)
    ledger.close()


def test_an_officer_fetches_and_checks_through_the_service(
    case: Case, as_officer: Callable[..., Result], tmp_path: Path
) -> None:
    """Nothing but the public key comes from elsewhere."""
    assert as_officer("report", "r-000001", "--output", str(tmp_path)).exit_code == 0
    fetched = tmp_path / "certificate-r-000001.json"
    assert fetched.read_bytes() == case.certificate.read_bytes()
    key, report = case.keys / PUBLIC_KEY, tmp_path / "report-r-000001.json"
    arguments = (str(fetched), "--public-key", str(key), "--report", str(report), "--service")
    result = as_officer("verify", *arguments)
    assert result.exit_code == 0, result.output
    assert "holds\tledger:" in result.output


def test_a_forged_ledger_is_refused_through_the_service(
    case: Case, as_officer: Callable[..., Result]
) -> None:
    """The service checks the chain again."""
    case.forge_ledger("DELETE FROM events WHERE sequence = 3")
    key = str(case.keys / PUBLIC_KEY)
    fails(as_officer("verify", str(case.certificate), "--public-key", key, "--service"), "REFUSED\tledger:")


# What is written when


def test_by_default_nothing_is_signed(federation) -> None:
    """The certificate says why, and so does `verify`."""
    one = federation(**SETTINGS, requests="at=1 client=2")
    one.run()
    path = one.directory / "reports" / "r-000001" / "certificate.json"
    file = decode(path.read_bytes())
    assert file.signature is None
    assert file.certificate.unsigned_because == "the run has no certificate-key"
    result = CliRunner().invoke(app, ["verify", str(path)])
    fails(result, "is not signed (the run has no certificate-key)")


def test_a_run_with_a_key_that_cannot_sign_does_not_start(federation, tmp_path: Path) -> None:
    """Before anything depends on it."""
    one = federation(**SETTINGS, certificate_key=str(tmp_path / "gone"))
    with refuses("certificate-key"):
        one.run()


@pytest.mark.parametrize(("kill_at", "left"), [(9, Status.VERIFYING), (10, Status.COMPLETED)])
def test_a_crash_at_the_completion_leaves_a_certificate_that_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: int, left: Status
) -> None:
    """Killed between certificate and completion, the fifth move, it is written again; killed after it, it stays."""
    killer = Killer(monkeypatch, ((LedgerWriter, "move"),))
    killer.arm(kill_at)
    make_key_pair(tmp_path / "keys")
    key = str(tmp_path / "keys" / SIGNING_KEY)
    one = InProcessFederation(
        tmp_path / "state", {**SETTINGS, "requests": "at=1 client=2", "certificate_key": key}
    )
    with pytest.raises(Killed):
        one.run()
    assert one.ledger.requests.get("r-000001").status is left
    case = Case(one.directory, tmp_path / "keys", tmp_path / "model.pt")
    first = case.content()
    killer.disarm()
    one.new_grid()
    one.run()
    one.close()
    second = case.content()
    varying = {"report_sha256", "ledger"} if left is Status.VERIFYING else set()
    assert {key for key in first if first[key] != second[key]} <= varying
    result = case.verify("public-key", "report", "ledger")
    assert result.exit_code == 0, result.output
