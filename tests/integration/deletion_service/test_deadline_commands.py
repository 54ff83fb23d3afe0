"""Deadlines, holds, refusals and erasable texts on the way from the command line through the service to the ledger."""

import json
import re
from datetime import date, timedelta
from typing import Any

import grpc
import pytest

from server.ledger import APPROVAL, Ledger
from server.service import deletion_pb2 as pb
from server.service.client import DeletionClient
from server.service.grpc_server import RunningServer
from tests.deletion_service import LiveLoop, answer, submit
from tests.integration.deletion_service.conftest import Command
from unlearning.errors import ConflictingRequest, IllegalMove, InvalidRequest
from unlearning.gdpr import Ground, Particulars, one_month_after, today
from unlearning.requests import Granularity, Status, Target

TODAY = today()


def ago(days: int) -> str:
    return (TODAY - timedelta(days=days)).isoformat()


def test_a_request_says_when_it_came_and_is_due(command: Command, ledger: Ledger) -> None:
    """Day, ground, reference and note stand in the ledger, in `status`, `list` and their JSON."""
    given = ("--received-on", ago(3), "--ground", "b", "--reference", "DSR-17", "--note", "by letter [x]")
    assert command("request", "--client", "3", *given).exit_code == 0
    found = ledger.requests.get("r-000001")
    due_on = one_month_after(TODAY - timedelta(days=3))
    assert (found.due_on, found.ground, found.reference) == (due_on, Ground.B, "DSR-17")
    shown = command("status", "r-000001").stdout
    assert f"due on {due_on}, {(due_on - TODAY).days} days left" in shown
    assert "Art. 17(1)(b): consent was withdrawn" in shown
    assert re.search(r"reference\tDSR-17\nnote\tby letter \[x\]\n", shown)
    listed = json.loads(command("list", "--json").stdout)[0]
    assert (listed["received_on"], listed["days_left"]) == (ago(3), (due_on - TODAY).days)
    assert f"{due_on.year}-" in command("list").stdout


def test_an_overdue_request_is_called_so(command: Command) -> None:
    """One that came in long ago is late when it is filed, and says so."""
    command("request", "--client", "3", "--received-on", "2018-05-25")
    assert re.search(r"due on 2018-06-25, OVERDUE by [0-9]+ days", command("status", "r-000001").stdout)
    assert "OVERDUE" in command("list").stdout


def test_every_command_says_what_it_did(command: Command, ledger: Ledger) -> None:
    """One line each, with the reason kept; redacting erases all of them, and the ledger verifies."""
    command("request", "--client", "3", "--note", "of Erika Müller")
    due_on = one_month_after(TODAY) + timedelta(days=20)
    extended = command("extend", "r-000001", "--days", "20", "--reason", "many systems").stdout
    assert extended == f"r-000001\tdue on {due_on}, {(due_on - TODAY).days} days left\n"
    assert command("hold", "r-000001", "--reason", "a lawsuit").stdout == "r-000001\treceived, held\n"
    assert "extended by\t20 days: many systems\nheld\ta lawsuit" in command("status", "r-000001").stdout
    assert "held" in command("list").stdout
    assert command("release", "r-000001").stdout == "r-000001\treceived\n"
    assert command("refuse", "r-000001", "--reason", "Art. 17(3)(b)").stdout == "r-000001\trefused\n"
    assert "refused for\tArt. 17(3)(b)" in command("status", "r-000001").stdout
    watched = command("watch", "r-000001")
    assert watched.exit_code == 1
    for said in ("many systems", "a lawsuit", "answered without deletion (Art. 17(3)(b))"):
        assert said in watched.stdout
    assert command("redact", "r-000001", "--yes").stdout == "r-000001\tredacted; why it was refused is kept\n"
    assert "refused for\tArt. 17(3)(b)" in command("status", "r-000001").stdout
    redact_all = command("redact", "r-000001", "--yes", "--include-refusal")
    assert redact_all.stdout == "r-000001\tredacted\n"
    told = [command(name, "r-000001").stdout for name in ("status", "watch")]
    told.append(command("list", "--json").stdout)
    assert not re.search("Erika|lawsuit|many systems|17\\(3\\)", "".join(told))
    assert command("verify-ledger").exit_code == 0
    assert ledger.events.verify() == ""


def test_a_request_is_held_accepted_and_tried_in_another_way_by_command(
    command: Command, ledger: Ledger, loop: LiveLoop
) -> None:
    """The line says what a second person must do; a retry with another method prints the new request."""
    loop.set_facts({APPROVAL: 2})
    filed = command("request", "--client", "3", "--hold", "a lawsuit", "--method", "natural")
    assert filed.stdout.startswith("r-000001\tawaiting-decision\t")
    assert ledger.requests.get("r-000001").hold_reason == "a lawsuit"
    accepted = command("accept", "r-000001")
    assert accepted.stdout == "r-000001\tawaiting-decision: another person must accept it too\n"
    assert command("accept", "r-000001").exit_code != 0
    command("release", "r-000001")
    loop.move("r-000001", Status.FAILED, reason="No head.")
    assert "flower-unlearn retry r-000001 --method NAME" in command("status", "r-000001").stdout
    again = command("retry", "r-000001", "--method", "puf-regular", "--parameter", "unlearning_rate=2")
    assert again.stdout == "r-000002\tawaiting-decision\n"
    assert ledger.requests.get("r-000002").parameters["unlearning_rate"] == 2
    assert [item.id for item in ledger.requests.select(statuses=[Status.REPLACED])] == ["r-000001"]


def test_amend_says_what_stands_there_now(command: Command, ledger: Ledger) -> None:
    """By whom and what was changed is in the timeline; what is not given stays, and nothing given is refused."""
    command("request", "--client", "3", "--ground", "a", "--reference", "DSR-17", "--note", "by letter")
    done = command("amend", "r-000001", "--reference", "DSR-18", "--ground", "c")
    assert done.stdout.startswith("r-000001\treceived\nground\tArt. 17(1)(c)")
    assert "reference\tDSR-18\nnote\tby letter\n" in done.stdout
    command("cancel", "r-000001")
    assert "amended: reference, ground from a to c" in command("watch", "r-000001").stdout
    for given, message in (
        ((), "Say what to change"),
        (("--ground", "z"), "a letter of Art. 17(1), got 'z'"),
        (("--note", ""), "A note is changed, not emptied"),
        (("--reference", "x" * 201), "The reference may have 200 characters"),
    ):
        refused = command("amend", "r-000001", *given)
        assert refused.exit_code == 2
        assert message in refused.stderr.replace("\n", " ")
    assert command("amend", "r-000009", "--note", "n").exit_code == 3
    assert ledger.events.verify() == ""


def test_redact_asks_first(command: Command, ledger: Ledger) -> None:
    """What is erased does not come back."""
    command("request", "--client", "3", "--note", "n")
    assert command("redact", "r-000001").exit_code == 1
    assert ledger.requests.get("r-000001").note == "n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--received-on", "0000-01-01"), "a day is written YYYY-MM-DD, got '0000-01-01'"),
        (("--received-on", "20261122"), "a day is written YYYY-MM-DD"),
        (("--received-on", "2018-05-24"), "from 2018-05-25 (the Regulation's first day) to today"),
        (("--received-on", "9999-12-31"), "to today, got 9999-12-31"),
        (("--due-on", "9999-12-31"), "one month after it"),
        (("--received-on", ago(2), "--due-on", ago(3)), "due-on: from the day it was received"),
        (("--ground", "g"), "ground: a letter of Art. 17(1), got 'g'"),
        (("--reference", "x" * 201), "The reference may have 200 characters, got 201."),
        (("--reference", "two\nlines"), "The reference must be one line of plain text"),
        (("--note", "x" * 2001), "The note may have 2,000 characters, got 2,001."),
        (("--note", "<script>alert(1)</script>"), "The note must be plain text"),
        (("--note", "a\x1b[2Jb"), "without control characters"),
        (("--note", "a\u202eb"), "without control characters"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    command: Command, ledger: Ledger, arguments: tuple[str, ...], message: str
) -> None:
    """Dates, grounds and texts beyond the limits: exit code 2, and nothing is filed."""
    result = command("request", "--client", "3", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")
    assert ledger.requests.select() == []


def test_a_note_may_be_in_any_script(client: DeletionClient, loop: LiveLoop) -> None:
    """Line feeds, letters beyond ASCII and the joiners that some languages need come through."""
    note = "می\u200cخواهم\nZweite Zeile – ärztlich"
    assert submit(client, particulars=Particulars(note=note)).note == note


def test_a_note_of_ten_megabytes_is_refused_on_both_sides(client: DeletionClient, loop: LiveLoop) -> None:
    """The client's own check says it before anything is sent; the service says it to who does without."""
    filed = submit(client)
    with pytest.raises(InvalidRequest):
        Particulars(note="x" * 10_000_000)
    with pytest.raises(InvalidRequest):
        client.change("hold", filed.id, reason="x" * 10_000_000)
    with pytest.raises(InvalidRequest):
        client.change("refuse", filed.id, reason=" \n ")
    assert not client.get(filed.id).is_held


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("HoldRequest", {"reason": "x" * 1001}),
        ("HoldRequest", {}),
        ("ExtendRequest", {"days": 61, "reason": "x"}),
        ("RedactRequest", {"reason": "x"}),
    ],
)
def test_the_service_checks_for_itself(
    service: RunningServer, client: DeletionClient, loop: LiveLoop, name: str, values: dict[str, Any]
) -> None:
    """A client program of another make, without our checks, is refused likewise."""
    asked = pb.ChangeRequest(request_id=submit(client).id, **values)
    with grpc.insecure_channel(service.address) as channel:
        status, _ = answer(channel, name, asked.SerializeToString())
    assert status is grpc.StatusCode.INVALID_ARGUMENT


def test_a_deadline_is_extended_once(client: DeletionClient, loop: LiveLoop) -> None:
    """The second extension is refused."""
    filed = submit(client)
    client.change("extend", filed.id, days=1, reason="x")
    with pytest.raises(IllegalMove):
        client.change("extend", filed.id, days=1, reason="x")


def test_the_same_key_with_another_reference_is_refused(client: DeletionClient, loop: LiveLoop) -> None:
    """So nothing that was said the second time is lost without a word."""
    first = submit(client, idempotency_key="k")
    assert submit(client, idempotency_key="k") == first
    with pytest.raises(ConflictingRequest):
        submit(client, idempotency_key="k", particulars=Particulars(reference="17"))


def test_a_long_list_of_samples_carries_its_particulars(client: DeletionClient, loop: LiveLoop) -> None:
    """Also where the list goes in parts."""
    samples = Target(Granularity.SAMPLE, "3", frozenset(f"{number:0>100}" for number in range(2000)))
    given = Particulars(received_on=date(2026, 1, 2), reference="17")
    filed = submit(client, samples, particulars=given)
    assert (filed.received_on, filed.reference) == (given.received_on, "17")


def test_events_carry_their_reasons(client: DeletionClient, loop: LiveLoop) -> None:
    """The timeline of a request says why; a request that waits is not moved by the loop while it is held."""
    filed = submit(client)
    client.change("hold", filed.id, reason="a lawsuit", by="ada")
    with pytest.raises(IllegalMove):
        loop.move(filed.id, Status.SCHEDULED)
    client.change("release", filed.id, reason="settled", by="ada")
    client.change("refuse", filed.id, reason="exempt", by="ada")
    events = [item for item in client.watch(filed.id) if hasattr(item, "kind") and hasattr(item, "actor")]
    told = [(event.kind, event.actor, event.text) for event in events if event.text]
    assert told == [
        ("held", "ada", "a lawsuit"),
        ("hold-lifted", "ada", "settled"),
        ("moved", "ada", "exempt"),
    ]
