"""A completed request is attacked again after further rounds, or on demand, and reopened where its effect is gone."""

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pytest

from client.planted_noise import plant_in_file, read_scores
from server.certificate.document import decode
from server.certificate.file_checks import Check, Outcome
from server.certificate.ledger_check import LedgerView, check_ledger
from server.federation.checkpoints import CheckpointStore
from server.ledger import LedgerWriter
from server.ledger.records import RECHECK, RECHECK_REQUESTED
from server.state_directory.files import REPORTS
from tests.federation import SMALL, InProcessFederation, client
from tests.kills import Killer
from tests.returning import FORGOTTEN, NUM_CLIENTS, OTHER, SETTINGS, come_back, write_data
from unlearning.errors import IllegalMove
from unlearning.requests import Granularity, Status, Target
from unlearning.tasks import load_site

GONE = client(str(FORGOTTEN))


def rechecks(one: InProcessFederation, request_id: str) -> list[dict]:
    """What the ledger has of the rechecks of a request."""
    return [event.detail[RECHECK] for event in one.ledger.events.all(request_id) if RECHECK in event.detail]


def agree(one: InProcessFederation) -> None:
    """Let every site agree to rechecks."""
    for context in one.grid.contexts.values():
        context.node_config["answer-rechecks"] = True


def ledger_check(one: InProcessFederation, content: bytes) -> Check:
    """What the ledger says of a certificate."""
    return check_ledger(decode(content).certificate, content, LedgerView.of_ledger(one.ledger))


@pytest.fixture(scope="module")
def reopened(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """A request that was completed, rechecked, reopened when its records came back, and carried out again."""
    directory = tmp_path_factory.mktemp("reopened")
    place = write_data(directory / "data")
    settings = {**SETTINGS, "data_dir": str(directory / "data"), "rounds": 8, "recheck_after_rounds": "1, 8"}
    one = InProcessFederation(directory / "server", settings)
    for number in range(NUM_CLIENTS):
        one.grid.contexts[one.node(str(number))].node_config["data-dir"] = str(place(number))
    agree(one)
    one.run()
    request = one.forget(GONE, "retrain", rounds=9)
    folder = one.directory / REPORTS / request.id
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    one.run(rounds=10)
    one.grid.contexts[one.node(str(OTHER))].node_config["data-dir"] = str(come_back(place))
    one.run(rounds=17)
    known = SimpleNamespace(
        one=one, request=request, folder=folder, first=first, status=one.ledger.requests.get(request.id)
    )
    known.found = rechecks(one, request.id)
    known.events = list(one.ledger.events.all(request.id))
    known.json = (folder / "report.json").read_bytes()
    known.page = (folder / "report.html").read_text(encoding="utf-8")
    known.check = ledger_check(one, first["certificate.json"])
    known.same_again = one.file(GONE, "puf-regular")
    one.grid.contexts[one.node(str(OTHER))].node_config["data-dir"] = str(place(OTHER))
    one.ledger.decisions.retry(request.id, by="olga", now=datetime.now(UTC))
    one.run(rounds=18)
    yield known
    one.close()


@pytest.mark.slow
def test_a_request_is_rechecked_once_after_each_number_of_rounds(reopened):
    """What was measured then is beside what was measured at the completion and before."""
    assert [(one["due"], one["rounds"], one["now"], one["then"]) for one in reopened.found] == [
        (1, 1, "reduced", "reduced"),
        (8, 8, "not shown", "reduced"),
    ]
    first = reopened.found[0]["levels"]
    assert first["completion"]["auc"] < first["before"]["auc"]
    assert reopened.found[1]["levels"]["now"]["auc"] > first["now"]["auc"]


@pytest.mark.slow
def test_a_request_whose_records_came_back_is_reopened(reopened):
    """With its deadline, which runs on; who must act finds it in the list, and it answers no other request."""
    assert reopened.status.status is Status.REOPENED
    assert reopened.status.due_on == reopened.request.due_on
    assert reopened.status.days_left(reopened.request.due_on) == 0
    assert not reopened.status.is_answered
    assert reopened.one.ledger.requests.get(reopened.same_again.id).answered_by == (reopened.request.id,)


@pytest.mark.slow
def test_the_report_stays_as_certified_and_its_page_has_the_rechecks(reopened):
    """The certificate names the report's JSON."""
    assert "8 (" in reopened.page
    assert "reopened" in reopened.page
    assert reopened.json == reopened.first["report.json"]


@pytest.mark.slow
def test_the_certificate_of_a_reopened_request_says_so_when_it_is_checked(reopened):
    """It is genuine, and what it says of the effect does not hold any more."""
    assert reopened.check.outcome is Outcome.HOLDS
    assert "reopened on" in reopened.check.sentence


@pytest.mark.slow
def test_a_reopened_request_is_carried_out_again_and_its_first_certificate_stays(reopened):
    """Of two completions each has its certificate, and the new report tells of the reopening."""
    done = reopened.one.ledger.requests.get(reopened.request.id)
    assert done.status is Status.COMPLETED, done.reason
    earlier = reopened.folder / f"until-{reopened.request.result['certificate_sha256'][:16]}"
    assert (earlier / "certificate.json").read_bytes() == reopened.first["certificate.json"]
    assert (earlier / "report.json").read_bytes() == reopened.first["report.json"]
    moves = [line["move"] for line in reopened.one.report(done.id)["events"]]
    assert "completed → reopened" in moves
    newest = ledger_check(reopened.one, (reopened.folder / "certificate.json").read_bytes())
    assert newest.outcome is Outcome.HOLDS, newest.sentence
    assert reopened.one.ledger.events.verify() == ""


@pytest.mark.parametrize(
    ("first", "stride"),
    [
        pytest.param(22, 7, id="some"),
        pytest.param(1, 1, id="every", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_a_kill_at_any_write_leaves_one_recheck_of_each_number(federation, monkeypatch, first, stride):
    """Right before and after the events of two rechecks and the checkpoints around them."""
    script = {"requests": "at=1 client=2 method=puf-regular", "recheck_after_rounds": "1 2", "rounds": 4}
    steps = ((CheckpointStore, "save"), (LedgerWriter, "note"), (LedgerWriter, "move"))
    killer = Killer(monkeypatch, steps)
    whole = federation(name="whole", **SMALL, **script)
    agree(whole)
    copies = killer.copy(whole, range(first, 100, stride))
    expected = [one["due"] for one in rechecks(whole, "r-000001")]
    assert expected == [1, 2]
    for place in copies:
        one = federation(name=f"killed-{place}", **SMALL, **script)
        agree(one)
        one.run()
        assert [found["due"] for found in rechecks(one, "r-000001")] == expected, f"killed at write {place}"
        one.close()


def test_a_recheck_on_demand_is_done_between_two_rounds_and_answered_once(federation):
    """Requested twice while it waits, it is done once; afterwards it can be requested again."""
    one = federation(**SMALL)
    agree(one)
    one.run()
    request = one.forget(client("2"), rounds=3)
    for _ in range(2):
        one.ledger.decisions.recheck(request.id, by="olga", now=datetime.now(UTC))
    one.run(rounds=3)
    one.run(rounds=4)
    asked = [event for event in one.ledger.events.all(request.id) if event.kind == RECHECK_REQUESTED]
    assert [found["answers"] for found in rechecks(one, request.id)] == [asked[0].sequence]
    assert one.ledger.requests.get(request.id).updated_at == request.updated_at
    one.ledger.decisions.recheck(request.id, by="olga", now=datetime.now(UTC))
    one.run(rounds=4)
    assert len(rechecks(one, request.id)) == 2
    assert rechecks(one, request.id)[1]["rounds"] == rechecks(one, request.id)[0]["rounds"] + 1


def test_a_recheck_has_the_score_of_noise_that_an_owner_planted(federation, tmp_path):
    """The z that its own site wrote down for the model, beside the server's measurements."""
    one = federation(**SMALL, recheck_after_rounds="1")
    agree(one)
    site = one.directory / "clients" / "2"
    examples = load_site(one.settings.task(), 2).train
    np.savez(tmp_path / "train.npz", inputs=examples.inputs.numpy(), targets=examples.targets.numpy())
    plant_in_file(tmp_path / "train.npz", tmp_path / "noisy", site, share=0.5, deviation=0.5, seed=1)
    one.run()
    request = one.forget(client("2"), rounds=4)
    (found,) = rechecks(one, request.id)
    assert found["planted"] == {"2": read_scores(site)[-1].z}


def test_a_request_that_is_not_completed_cannot_be_rechecked(federation):
    """There is nothing to compare with."""
    one = federation(**SMALL)
    one.run()
    request = one.file(client("2"))
    with pytest.raises(IllegalMove) as refused:
        one.ledger.decisions.recheck(request.id, by="olga", now=datetime.now(UTC))
    assert refused.value.code == "not-completed"


@pytest.fixture(scope="module")
def unasked(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """Two deletions at sites that have not agreed to rechecks, of a client and of a class; both are rechecked."""
    settings = {"recheck_after_rounds": "1", "recovery_max_rounds": 1, "attack_samples": 20}
    one = InProcessFederation(tmp_path_factory.mktemp("unasked"), settings)
    one.run()
    both = [one.forget(client("2"), rounds=4), one.forget(Target(Granularity.CLASS, class_label=4), rounds=6)]
    one.run(rounds=7)
    yield SimpleNamespace(one=one, client=both[0].id, of_class=both[1].id)
    one.close()


def test_a_site_that_has_not_agreed_is_not_measured_and_the_recheck_says_so(unasked):
    """Then nothing is known, and nothing is reopened."""
    (found,) = rechecks(unasked.one, unasked.client)
    assert found["now"] is None
    assert "answer-rechecks" in " ".join(found["missing"])
    assert unasked.one.ledger.requests.get(unasked.client).status is Status.COMPLETED


def test_a_class_is_rechecked_by_the_servers_own_records_of_it(unasked):
    """No site has to agree: the server's test records are its own."""
    (found,) = rechecks(unasked.one, unasked.of_class)
    assert set(found["levels"]["now"]) == {"class-test"}
    assert found["levels"]["before"]["class-test"] > found["levels"]["now"]["class-test"]
    assert found["now"] == "reduced"


def test_a_deletion_whose_report_is_gone_says_that_it_cannot_be_compared(federation):
    """What was measured at its completion went with the report."""
    one = federation(**SMALL)
    one.run()
    request = one.forget(client("2"), rounds=3)
    (one.directory / REPORTS / request.id / "report.json").unlink()
    one.ledger.decisions.recheck(request.id, by="olga", now=datetime.now(UTC))
    one.run(rounds=3)
    (found,) = rechecks(one, request.id)
    assert "report" in found["missing"][0]
