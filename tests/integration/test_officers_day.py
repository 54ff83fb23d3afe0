"""A data-protection officer's day: thirty patients of three hospitals, on real processes with certificates for all.

One hospital is offline, two requests are held, one is refused, one deadline is extended, the deletion service is killed
while requests come in; what is accepted is carried out together, and the register has all of it in the end. In the gate
an officer's day is in a browser (console/test_browser.py), and acceptance/test_approval.py decides in one process.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import DELETION_SERVICE, supernode
from client.supernode import LEASE_S
from server.certificate.keys import PUBLIC_KEY, make_key_pair
from server.operations.flower_control import flower_environment
from server.operations.starting import write_app
from server.service.client import DeletionClient
from server.service.statuses import AccessDenied
from strategies.installation import program, run_script
from strategies.settings.run_config import RunSettings
from strategies.tls_files import TlsFiles
from tests.integration.deployments import FrugalDeployment, restart
from tests.integration.live_federation import OVER_SESSIONS, SETTINGS
from tests.programs import run_well
from tests.supervised import SeldomAsked, supervised
from tests.waiting import HANGS_S
from unlearning.errors import IllegalMove
from unlearning.gdpr import Ground, Particulars, one_month_after, today
from unlearning.requests import DeletionRequest, Granularity, Outcome, Status, Target
from unlearning.tasks import load_site

pytestmark = [pytest.mark.slow, pytest.mark.long]

HOSPITALS = 3
OFFLINE = 2
PATIENTS = 10
"""Of each hospital."""


@dataclass(frozen=True, kw_only=True)
class Day:
    """The federation, and the people who call its deletion service by certificate."""

    directory: Path
    deployment: FrugalDeployment
    officer: DeletionClient
    operator: DeletionClient
    officer_files: TlsFiles

    def command(self, *arguments: str) -> str:
        """Run `flower-unlearn` as the officer."""
        files = self.officer_files
        tls = ("--tls-ca", str(files.ca), "--tls-cert", str(files.certificate), "--tls-key", str(files.key))
        address = self.deployment.layout.deletion_address
        command = [program("flower-unlearn"), "--server", address, *tls, *arguments]
        return run_well(command, self.directory, flower_environment())

    def wait_until_all(self, ids: list[str], status: Status) -> None:
        """Wait until all of these requests have come to this state."""
        self.deployment.wait_until(
            lambda: {found.status for found in self.officer.list_requests() if found.id in ids} == {status},
            HANGS_S,
            f"{len(ids)} requests are {status}",
            poll_s=1.0,
        )


@pytest.fixture
def day(tmp_path: Path) -> Iterator[Day]:
    """A federation with certificates that needs an officer's decision, after its first round."""
    settings = {**SETTINGS, **OVER_SESSIONS, "num-clients": HOSPITALS, "approval": "officer"}
    settings["certificate-key"] = str(make_key_pair(tmp_path / "keys")[0])
    deployment = FrugalDeployment(
        tmp_path / "federation",
        num_clients=HOSPITALS,
        app_dir=write_app(tmp_path / "app"),
        run_config=settings,
        secure=True,
        with_deletion_service=True,
        with_sessions=True,
    )
    with deployment:
        layout = deployment.layout
        people = {}
        for role in ("officer", "operator"):
            run_script("make_certificates.sh", str(layout.certificates_dir), role, f"the-{role}")
            stem = layout.certificates_dir / f"the-{role}"
            people[role] = TlsFiles(layout.authority, stem.with_suffix(".pem"), stem.with_suffix(".key"))
        run = SeldomAsked(deployment)
        run.submit()
        with (
            supervised(run, poll_s=5.0),
            DeletionClient(layout.deletion_address, people["officer"]) as officer,
            DeletionClient(layout.deletion_address, people["operator"]) as operator,
        ):
            deployment.wait_until(lambda: bool(officer.rounds()), HANGS_S, "the first round is done")
            yield Day(
                directory=tmp_path,
                deployment=deployment,
                officer=officer,
                operator=operator,
                officer_files=people["officer"],
            )


def patients(hospital: int) -> list[str]:
    """The ids of a hospital's records that are asked for."""
    settings = RunSettings.from_run_config({**SETTINGS, "num-clients": HOSPITALS})
    return sorted(load_site(settings.task(), hospital).train.ids.tolist())[:PATIENTS]


def letter(number: int) -> Particulars:
    """What is written down of the letter that came in `number` days ago."""
    return Particulars(
        received_on=today() - timedelta(days=number), ground=Ground.B, reference=f"letter {number}"
    )


def file_all(day: Day) -> dict[str, DeletionRequest]:
    """File a request for each of thirty patients; the deletion service is killed on the way and comes back."""
    filed: dict[str, DeletionRequest] = {}
    asked = [(hospital, patient) for hospital in range(HOSPITALS) for patient in patients(hospital)]
    for number, (hospital, patient) in enumerate(asked):
        if number == len(asked) // 2:
            restart(day.deployment, DELETION_SERVICE)
            day.deployment.wait_until(
                day.deployment.deletion_service_answers, HANGS_S, "the deletion service is back"
            )
            again = filed[asked[0][1]]
            assert file_one(day, *asked[0], number=0).id == again.id
        filed[patient] = file_one(day, hospital, patient, number=number)
    return filed


def file_one(day: Day, hospital: int, patient: str, *, number: int) -> DeletionRequest:
    """File the request of one patient; the first is held from the start."""
    return day.officer.submit(
        Target(Granularity.SAMPLE, str(hospital), frozenset({patient})),
        method="puf-special",
        idempotency_key=f"patient {patient}",
        particulars=letter(number % 28),
        hold_reason="" if number else "a court keeps the file",
    )


def test_all_requests_of_a_day_are_accepted_decided_and_answered(day: Day) -> None:
    """None is lost or blocks another, each deadline is right, and the register says what was shown."""
    day.deployment.kill(supernode(OFFLINE))
    killed_at = time.monotonic()
    filed = file_all(day)
    assert time.monotonic() - killed_at < 60
    requests = list(filed.values())
    assert [request.id for request in requests] == [f"r-{number:06d}" for number in range(1, 31)]
    for number, request in enumerate(requests):
        assert request.status is Status.AWAITING
        assert request.received_on == today() - timedelta(days=number % 28)
        assert request.due_on == one_month_after(request.received_on)

    # The officer decides; the operator may not.
    held_first, held, refused, extended = (requests[number].id for number in (0, 11, 12, 13))
    with pytest.raises(AccessDenied):
        day.operator.change("accept", requests[1].id)
    day.officer.change("hold", held, reason="the insurer needs the file")
    day.officer.change("refuse", refused, reason="a law demands that the record is kept (Art. 17(3)(b))")
    later = day.officer.change("extend", extended, days=30, reason="many letters at once")
    assert later.due_on == requests[13].due_on + timedelta(days=30)
    accepted = [request.id for request in requests if request.id != refused]
    for one in accepted:
        assert day.officer.change("accept", one).status is Status.ACCEPTED
    with pytest.raises(IllegalMove):
        day.officer.change("accept", refused)

    # What needs neither the hospital that is away nor a held request goes on without them.
    now = {
        request.id
        for request in requests
        if request.target.client_id != str(OFFLINE) and request.id not in (held_first, held, refused)
    }
    day.wait_until_all(sorted(now), Status.COMPLETED)
    states = Counter(found.status for found in day.officer.list_requests() if found.id not in now)
    assert states.pop(Status.REFUSED) == 1
    assert sum(states.values()) == 12
    assert Status.COMPLETED not in states
    assert Status.FAILED not in states

    # Until then the SuperLink counts it as online and lets no other in with its key.
    day.deployment.wait_until(
        lambda: time.monotonic() > killed_at + LEASE_S, 2 * LEASE_S, "its lease has ended"
    )
    day.deployment.start(supernode(OFFLINE))
    for one in (held_first, held):
        day.officer.change("release", one, reason="the case is closed")
    day.wait_until_all(accepted, Status.COMPLETED)

    # What was asked at once is carried out at once: few unlearning rounds for 29 requests.
    served = {tuple(record.request_ids) for record in day.officer.rounds() if record.kind == "unlearning"}
    assert sorted(request for batch in served for request in batch) == accepted
    assert len(served) <= 4
    check_register(
        day, accepted, refused, {**{item.id: item.due_on for item in requests}, extended: later.due_on}
    )
    check_answer(day, accepted[-1], list(filed)[-1])


def check_answer(day: Day, request_id: str, patient: str) -> None:
    """A request's report is its own, and its certificate holds for its own record."""
    written = day.directory / "answers"
    day.command("report", request_id, "--output", str(written))
    report = json.loads((written / f"report-{request_id}.json").read_text())
    assert report["request"]["id"] == request_id
    (written / "ids.txt").write_text(patient)
    state = day.deployment.layout.state_dir
    options = (
        *("--report", str(written / f"report-{request_id}.json"), "--samples", str(written / "ids.txt")),
        *("--subject-key", str(state / "subject-key"), "--service"),
        *("--public-key", str(day.directory / "keys" / PUBLIC_KEY)),
    )
    day.command("verify", str(written / f"certificate-{request_id}.json"), *options)


def check_register(day: Day, accepted: list[str], refused: str, deadlines: dict[str, date]) -> None:
    """The register has every request once, each with its deadline, its answer and what was shown of it."""
    register: list[dict[str, Any]] = json.loads(day.command("list", "--json"))
    assert [row["id"] for row in register] == sorted([*accepted, refused])
    assert all(row["due_on"] == deadlines[row["id"]].isoformat() for row in register)
    assert {row["id"] for row in register if row["status"] == "refused"} == {refused}
    outcomes = {Outcome(row["outcome"]) for row in register if row["id"] != refused}
    assert outcomes <= {Outcome.NOT_SHOWN, Outcome.TOO_FEW, Outcome.REDUCED, Outcome.OVER_FORGETTING}
    assert day.operator.verify_ledger().problem == ""
