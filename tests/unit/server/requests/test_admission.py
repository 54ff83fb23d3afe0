"""What admission lets in, what it refuses, and what it says."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.deletion.queue import to_schedule
from server.ledger import APPROVAL, ClientRecord, Ledger, NewRequest
from server.requests.admission import admit
from tests.ledgers import CLIENT_3, CLIENT_4, NOW, advance, live_at
from tests.raising import raises
from unlearning.errors import (
    InvalidRequest,
    UnknownClient,
    UnknownMethod,
)
from unlearning.requests import (
    DeletionRequest,
    Exclusions,
    Granularity,
    Status,
    Target,
    is_id,
    parse_sample_ids,
    read_sample_ids,
)


@pytest.fixture
def token(sqlite_ledger: Ledger) -> int:
    return sqlite_ledger.acquire_fence("loop", now=NOW)


@pytest.fixture
def ledger(sqlite_ledger: Ledger, token: int) -> Ledger:
    """The ledger of a federation with clients 3, 4 and 5."""
    live_at(sqlite_ledger, token, NOW).register_clients([ClientRecord(name) for name in ("3", "4", "5")])
    return sqlite_ledger


def file(ledger: Ledger, target: Target = CLIENT_3, **changes: Any) -> DeletionRequest:
    """File a request; an operator's where `by_operator` says so."""
    by_operator = changes.pop("by_operator", False)
    values: dict[str, Any] = {"method": "puf-special", "submitted_by": "ada", "idempotency_key": ""}
    return admit(ledger, NewRequest(target=target, **values | changes), now=NOW, by_operator=by_operator)


def forget(ledger: Ledger, token: int, target: Target, **changes: Any) -> None:
    advance(ledger, file(ledger, target, **changes).id, Status.COMPLETED, token)


def samples(*ids: str) -> Target:
    return Target(Granularity.SAMPLE, "3", frozenset(ids))


def test_an_admitted_request_is_in_the_ledger_with_every_parameter(ledger: Ledger) -> None:
    """The method's defaults are written down, so that the request says everything about itself."""
    request = file(ledger, parameters={"unlearning_rate": 1})
    assert ledger.requests.get(request.id).parameters == {
        "unlearning_rate": 1.0,
        "as_published_code": False,
        "flip_at_client": False,
    }


def test_a_request_without_a_method_gets_the_recommended_one_and_the_reason_is_written_down(
    ledger: Ledger,
) -> None:
    """Nothing is known of this federation, so the safest; sent again it is the same request, and has no parameters."""
    request = file(ledger, method="", idempotency_key="k")
    assert request.method == "retrain"
    (event,) = ledger.events.all(request.id)
    assert event.detail["reason"].startswith("retrain: No measurement is near enough")
    assert file(ledger, method="", idempotency_key="k").id == request.id
    with raises(InvalidRequest, "parameters-of-no-method"):
        file(ledger, CLIENT_4, method="", parameters={"rounds": 1})
    with raises(UnknownClient, "no-such-client"):
        file(ledger, Target(Granularity.CLIENT, "9"), method="")


def test_what_is_forgotten_already_gets_the_method_that_forgot_it(ledger: Ledger, token: int) -> None:
    """It is answered by that deletion."""
    forget(ledger, token, CLIENT_3)
    assert file(ledger, samples("1"), method="").method == "puf-special"


def test_without_a_key_two_requests_get_two_keys(ledger: Ledger) -> None:
    """A made-up key never repeats."""
    first, second = file(ledger), file(ledger, CLIENT_4)
    assert first.idempotency_key != second.idempotency_key


def test_before_the_federation_has_started_no_client_is_known(sqlite_ledger: Ledger) -> None:
    """The message says so rather than showing an empty list."""
    for target in (CLIENT_3, Target(Granularity.CLASS, class_label=1)):
        with raises(UnknownClient, "not-started"):
            file(sqlite_ledger, target)


def test_an_unknown_client_is_refused_with_the_known_ones(ledger: Ledger, token: int) -> None:
    """The message lists the clients; a thousand do not fill the screen."""
    with raises(UnknownClient, "no-such-client") as caught:
        file(ledger, Target(Granularity.CLIENT, "9"))
    assert str(caught.value).endswith("Known: 3, 4, 5.")
    live_at(ledger, token, NOW).register_clients([ClientRecord(f"c{n}") for n in range(1000)])
    with raises(UnknownClient, "no-such-client") as caught:
        file(ledger, Target(Granularity.CLIENT, "9"))
    assert str(caught.value).endswith("and 983 more.")


def test_a_request_that_waits_for_a_decision_is_checked_once_and_scheduled_when_it_is_accepted(
    ledger: Ledger, token: int
) -> None:
    """Until something else is forgotten; what is forgotten by then is answered without a decision."""
    live_at(ledger, token, NOW).set_facts({APPROVAL: 1})
    first, second = file(ledger), file(ledger, CLIENT_4)
    forgotten, undecided = Exclusions(), {}
    assert list(to_schedule(ledger, forgotten, undecided, lambda _: {}, NOW)) == []
    assert undecided == {first.id: forgotten, second.id: forgotten}
    ledger.decisions.accept(first.id, by="olga", now=NOW)
    (move,) = to_schedule(ledger, forgotten, undecided, lambda _: {}, NOW)
    assert (move.request_id, move.to) == (first.id, Status.SCHEDULED)
    live_at(ledger, token, NOW).set_facts({APPROVAL: 0})
    forget(ledger, token, CLIENT_4)
    moves = {
        move.request_id: move.to
        for move in to_schedule(ledger, ledger.exclusions(), undecided, lambda _: {}, NOW)
    }
    assert moves[second.id] is Status.COMPLETED


@pytest.mark.parametrize("parameters", [{"unlearning_rate": -1}, {"unlearning_rate": "fast"}, {"rate": 1}])
def test_bad_parameters_are_refused(ledger: Ledger, parameters: dict[str, Any]) -> None:
    """Range, type and name are checked."""
    with pytest.raises(InvalidRequest):
        file(ledger, parameters=parameters)


def test_only_an_operator_goes_beyond_a_safe_range_and_nobody_beyond_a_bound(ledger: Ledger) -> None:
    """A step of 100 times the forgotten update destroys a model."""
    with raises(InvalidRequest, "beyond-safe-range"):
        file(ledger, parameters={"unlearning_rate": 100})
    asked = file(ledger, parameters={"unlearning_rate": 100}, by_operator=True)
    assert asked.parameters["unlearning_rate"] == 100
    with pytest.raises(InvalidRequest):
        file(ledger, parameters={"unlearning_rate": 1e30}, by_operator=True)


@pytest.mark.parametrize(
    ("forgotten", "target"),
    [
        (CLIENT_3, CLIENT_3),
        (CLIENT_3, samples("1")),
        (samples("1", "2"), samples("2")),
        (Target(Granularity.CLASS, class_label=7), Target(Granularity.CLASS, class_label=7)),
    ],
)
def test_what_is_forgotten_already_is_accepted_and_answered_by_the_earlier_request(
    ledger: Ledger, token: int, forgotten: Target, target: Target
) -> None:
    """Its day of receipt and deadline are written down as those of any request."""
    forget(ledger, token, forgotten)
    again = file(ledger, target)
    assert again.status is Status.RECEIVED
    (move,) = to_schedule(ledger, ledger.exclusions(), {}, lambda _: {}, NOW)
    assert (move.request_id, move.to, move.result) == (
        again.id,
        Status.COMPLETED,
        {"answered_by": ("r-000001",)},
    )


def test_a_request_that_was_checked_while_it_waited_for_its_decision_is_scheduled_once_accepted(
    ledger: Ledger, token: int
) -> None:
    """Also where nothing was forgotten since that check, which need not be repeated while it waits."""
    live_at(ledger, token, NOW).set_facts({APPROVAL: 1})
    request, forgotten, undecided = file(ledger), ledger.exclusions(), dict[str, Exclusions]()
    assert list(to_schedule(ledger, forgotten, undecided, lambda _: {}, NOW)) == []
    ledger.decisions.accept(request.id, by="olga", now=NOW)
    (move,) = to_schedule(ledger, forgotten, undecided, lambda _: {}, NOW)
    assert (move.request_id, move.to) == (request.id, Status.SCHEDULED)


def test_a_request_sent_again_gets_its_first_answer_even_after_it_was_carried_out(
    ledger: Ledger, token: int
) -> None:
    """Idempotency goes before all else."""
    forget(ledger, token, CLIENT_3, idempotency_key="k")
    assert file(ledger, idempotency_key="k").status is Status.COMPLETED


@pytest.mark.parametrize(
    "change", [{"idempotency_key": "a\x00b"}, {"submitted_by": ""}, {"submitted_by": "x" * 201}]
)
def test_malformed_names_and_keys_are_refused(ledger: Ledger, change: dict[str, str]) -> None:
    """They go into the ledger's text columns."""
    with raises(InvalidRequest, "malformed-text"):
        file(ledger, **change)


def test_a_refused_request_leaves_nothing_in_the_ledger(ledger: Ledger) -> None:
    """Neither a request nor an event."""
    with pytest.raises(UnknownMethod):
        file(ledger, method="magic")
    assert ledger.requests.select() == []
    assert [event for event in ledger.events.page() if event.request_id] == []


def test_a_list_of_samples_has_one_id_a_line() -> None:
    """Blank lines, comments, blanks around an id and a byte-order mark do not count."""
    assert parse_sample_ids("\ufeff17\n\n# the second visit\n  21 \r\na b\n") == frozenset(
        {"17", "21", "a b"}
    )


@given(st.frozensets(st.text("#, \taé", max_size=3) | st.text(max_size=5)))
def test_no_id_is_lost_in_a_list(texts: frozenset[str]) -> None:
    """Whatever an example may be named, a list names it: `#17` would be a comment, so it is no id."""
    ids = {"17", *filter(is_id, texts)}
    assert parse_sample_ids("\n".join(ids)) == ids


@pytest.mark.parametrize("text", ["", "\n \n", "# only a comment\n"])
def test_a_list_without_an_id_is_refused(text: str) -> None:
    """An empty file is a mistake, not a request to forget nothing."""
    with pytest.raises(InvalidRequest):
        parse_sample_ids(text)


@pytest.mark.parametrize("content", ["müller\n".encode("latin-1"), "17\n".encode("utf-16"), None])
def test_a_file_that_is_no_text_in_utf_8_is_named(tmp_path: Path, content: bytes | None) -> None:
    """As spreadsheets save them; or it is a directory, or not there."""
    path = tmp_path / "ids.txt"
    if content is not None:
        path.write_bytes(content)
    for one in (path, tmp_path):
        with pytest.raises(InvalidRequest, match=str(one)):
            read_sample_ids(one)
    path.write_text("17\né\n", encoding="utf-8-sig")
    assert read_sample_ids(path) == {"17", "é"}


def test_a_repeated_id_is_refused_with_both_lines() -> None:
    """The message says where."""
    with pytest.raises(InvalidRequest, match="line 4 repeats '17' of line 1"):
        parse_sample_ids("17\n# x\n21\n17\n")
