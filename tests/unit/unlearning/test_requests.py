"""What a deletion request may ask for, and what has been forgotten."""

import json
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlearning.errors import InvalidRequest
from unlearning.requests import (
    LEGAL_MOVES,
    MAX_ID_LENGTH,
    NOTHING,
    OPEN_STATUSES,
    DeletionRequest,
    Exclusions,
    Forget,
    Granularity,
    Status,
    Target,
)
from unlearning.runtime.json_codec import from_plain, to_plain

CLIENT, SAMPLE, CLASS = Granularity.CLIENT, Granularity.SAMPLE, Granularity.CLASS

ids = st.text(alphabet="abc012", min_size=1, max_size=3)
forgets = st.builds(
    Forget,
    everything=st.booleans(),
    sample_ids=st.frozensets(ids, max_size=4),
    classes=st.frozensets(st.integers(0, 9), max_size=3),
)
targets = st.one_of(
    st.builds(Target, st.just(CLIENT), ids),
    st.builds(Target, st.just(SAMPLE), ids, st.frozensets(ids, min_size=1, max_size=4)),
    st.builds(lambda label: Target(CLASS, class_label=label), st.integers(0, 9)),
)


MISFITS = {
    "client-without-name": {"granularity": CLIENT},
    "client-with-empty-name": {"granularity": CLIENT, "client_id": ""},
    "samples-of-nobody": {"granularity": SAMPLE, "sample_ids": frozenset({"a"})},
    "class-of-one-client": {"granularity": CLASS, "client_id": "3", "class_label": 1},
    "no-sample": {"granularity": SAMPLE, "client_id": "3"},
    "client-with-samples": {"granularity": CLIENT, "client_id": "3", "sample_ids": frozenset({"a"})},
    "class-with-samples": {"granularity": CLASS, "class_label": 1, "sample_ids": frozenset({"a"})},
    "class-without-label": {"granularity": CLASS},
    "negative-class": {"granularity": CLASS, "class_label": -1},
    "client-with-class": {"granularity": CLIENT, "client_id": "3", "class_label": 1},
    "leading-blank": {"granularity": CLIENT, "client_id": " 3"},
    "trailing-newline": {"granularity": CLIENT, "client_id": "3\n"},
    "unprintable": {"granularity": CLIENT, "client_id": "a\x00b"},
    "too-long": {"granularity": CLIENT, "client_id": "x" * (MAX_ID_LENGTH + 1)},
    "empty-sample-id": {"granularity": SAMPLE, "client_id": "3", "sample_ids": frozenset({"a", ""})},
    "sample-id-with-blank": {"granularity": SAMPLE, "client_id": "3", "sample_ids": frozenset({"a", "b "})},
}


@pytest.mark.parametrize("fields", MISFITS.values(), ids=MISFITS)
def test_a_target_whose_fields_do_not_fit_is_refused(fields):
    """Each malformed combination is refused when it is made, not when it is carried out."""
    with pytest.raises(InvalidRequest):
        Target(**fields)


def test_too_many_samples_are_refused(monkeypatch):
    """The limit itself passes, one more does not; the longest id passes too."""
    Target(CLIENT, "x" * MAX_ID_LENGTH)
    monkeypatch.setattr("unlearning.requests.MAX_SAMPLE_IDS", 3)
    Target(SAMPLE, "3", frozenset("abc"))
    with pytest.raises(InvalidRequest):
        Target(SAMPLE, "3", frozenset("abcd"))


MANY = frozenset(str(index) for index in range(1200))


TARGETS = {
    "client": (Target(CLIENT, "hospital-0"), Forget(everything=True), "client hospital-0"),
    "one-sample": (
        Target(SAMPLE, "3", frozenset({"a"})),
        Forget(sample_ids=frozenset({"a"})),
        "1 sample of client 3",
    ),
    "samples": (Target(SAMPLE, "3", MANY), Forget(sample_ids=MANY), "1,200 samples of client 3"),
    "class": (Target(CLASS, class_label=0), Forget(classes=frozenset({0})), "class 0 on every client"),
}


@pytest.mark.parametrize(("target", "forget", "phrase"), TARGETS.values(), ids=TARGETS)
def test_a_target_says_what_a_client_must_forget(target, forget, phrase):
    """Everything, the named samples, or the class; in words for people with their number and never their ids."""
    assert target.forget == forget
    assert target.describe() == phrase


@given(targets | forgets | st.lists(targets, max_size=6).map(Exclusions().including))
def test_what_is_forgotten_survives_json(value):
    """There and back through text changes nothing."""
    assert from_plain(type(value), json.loads(json.dumps(to_plain(value)))) == value


@given(forgets, forgets)
def test_a_union_holds_both_parts(one, other):
    """Nothing gets lost in a union, and it has nothing else: as of sets, in any order and grouping."""
    both = one | other
    assert both.everything == (one.everything or other.everything)
    assert both.sample_ids == one.sample_ids.union(other.sample_ids)
    assert both.classes == one.classes.union(other.classes)


@given(forgets)
def test_only_nothing_is_falsy(forget):
    """A truth value of False means that there is nothing to forget."""
    assert bool(forget) == (forget != NOTHING)


def test_equal_values_have_equal_text():
    """A set's order in memory does not reach the JSON."""
    assert to_plain(Forget(sample_ids=frozenset({"b", "a"})))["sample_ids"] == ["a", "b"]


@given(st.lists(targets, max_size=6), targets)
def test_exclusions_only_grow(earlier, target):
    """Whatever was excluded for a client stays so after any further deletion, which the earlier ones do not see."""
    before = Exclusions().including(earlier)
    after = before.including([target])
    assert before == Exclusions().including(earlier)
    for client in {*before.clients, *after.clients, "somebody"}:
        assert before.of(client) | after.of(client) == after.of(client)


@given(st.lists(targets, max_size=6))
def test_exclusions_do_not_depend_on_the_order_of_deletions(some):
    """Serving requests one by one, together or in reverse excludes the same."""
    one_by_one = Exclusions()
    for target in some:
        one_by_one = one_by_one.including([target])
    assert one_by_one == Exclusions().including(some) == Exclusions().including(reversed(some))


def test_a_forgotten_class_is_excluded_on_every_client():
    """Also on clients that no request named."""
    exclusions = Exclusions().including([Target(CLASS, class_label=5)])
    assert exclusions.of("anybody").classes == {5}


def test_only_a_whole_client_is_a_forgotten_client():
    """A client that forgot some samples goes on training."""
    exclusions = Exclusions().including([Target(CLIENT, "3"), Target(SAMPLE, "4", frozenset({"a"}))])
    assert [exclusions.is_forgotten(client) for client in ("3", "4", "5")] == [True, False, False]


def test_every_status_has_its_moves():
    """The table of moves speaks of every status and of nothing else."""
    assert set(LEGAL_MOVES) == set(Status)
    assert set().union(*LEGAL_MOVES.values()) <= set(Status)


@pytest.mark.parametrize("status", [Status.REPLACED, Status.REFUSED, Status.CANCELLED])
def test_a_final_status_has_no_exit(status):
    """What has ended without a deletion is final."""
    assert LEGAL_MOVES[status] == frozenset()


def test_a_completed_request_can_only_be_reopened():
    """And then goes on as one that has failed."""
    assert LEGAL_MOVES[Status.COMPLETED] == {Status.REOPENED}
    assert LEGAL_MOVES[Status.REOPENED] == LEGAL_MOVES[Status.FAILED]


def test_every_status_can_be_reached():
    """From received, some way leads to each other status."""
    reached = {Status.RECEIVED}
    for _ in Status:
        reached |= set().union(*(LEGAL_MOVES[status] for status in reached))
    assert reached == set(Status)


def test_once_the_gate_was_passed_only_completion_remains():
    """The model is committed: no failing, cancelling or starting again; before, it may be held."""
    assert LEGAL_MOVES[Status.RECOVERING] == {Status.VERIFYING, Status.FAILED}
    assert LEGAL_MOVES[Status.VERIFYING] == {Status.COMPLETED}


def test_unlearning_is_entered_from_the_queue_only():
    """No way leads around the second eligibility check."""
    assert [status for status in Status if Status.UNLEARNING in LEGAL_MOVES[status]] == [Status.SCHEDULED]


@pytest.mark.parametrize("status", list(Status))
def test_a_request_is_open_until_it_is_final_or_failed(status):
    """Open means that somebody still has to act without being asked again."""
    now = datetime(2025, 1, 1, tzinfo=UTC)
    request = DeletionRequest(
        id="7",
        idempotency_key="k",
        target=Target(CLIENT, "3"),
        method="puf-special",
        parameters={},
        submitted_by="operator",
        status=status,
        created_at=now,
        updated_at=now,
        received_on=now.date(),
        due_on=date(2025, 2, 1),
    )
    final = {Status.COMPLETED, Status.CANCELLED, Status.REFUSED, Status.REPLACED}
    assert request.is_open == (status not in final | {Status.FAILED, Status.REOPENED})
    assert request.is_answered == (status in final)
    assert request.is_open == (status in OPEN_STATUSES)
