"""The plan for a long list of samples, from those for its parts."""

from dataclasses import replace

from server.requests.plan_data import Plan, PlannedMethod, SampleCheck, joined
from unlearning.requests import Granularity, Target

TARGET = Target(Granularity.SAMPLE, "1", frozenset({"a", "b", "c"}))


def part(samples: SampleCheck | None, refusal: str = "") -> Plan:
    """Return a plan for a part of the list; retraining can serve it."""
    methods = (
        PlannedMethod(method="retrain", title="Retrain"),
        PlannedMethod(method="pga", title="PGA", refusal=refusal),
    )
    return Plan(
        target="a part",
        recommended="retrain",
        why="",
        cannot_show="",
        recovery_max_rounds=1,
        recovery_bytes=1,
        recovery_flops=None,
        round_seconds=None,
        methods=methods,
        samples=samples,
    )


def check(count: int, **given: object) -> SampleCheck:
    return SampleCheck(client="1", num_samples=count, **{"is_answered": True, **given})  # type: ignore[arg-type]


def test_counts_are_added_and_the_list_is_checked_when_each_part_is():
    whole = joined([part(check(2, num_forgotten=1)), part(check(3, num_forgotten=1))], TARGET)
    assert whole.samples == check(5, num_forgotten=2)
    assert whole.target == TARGET.describe()
    assert [bool(one.refusal) for one in whole.methods] == [False, False]
    waits = joined([part(check(2)), part(check(3, is_answered=False))], TARGET).samples
    assert waits == check(5, is_answered=False)
    away = joined([part(check(2)), part(check(3, is_online=False))], TARGET).samples
    assert away == check(5, is_online=False)


def test_an_unknown_id_in_any_part_refuses_the_whole():
    """By every method, with the sentence that names all of them."""
    whole = joined([part(check(2)), part(check(3, unknown=("x",))), part(check(1, unknown=("y",)))], TARGET)
    assert whole.samples == check(6, unknown=("x", "y"))
    assert {one.refusal for one in whole.methods} == {check(6, unknown=("x", "y")).sentence}


def test_what_the_client_no_longer_has_refuses_what_needs_it():
    """The sentence counts all parts; other refusals stay."""
    gone = check(3, removed=("x",))
    methods = (
        PlannedMethod(method="retrain", title="Retrain"),
        PlannedMethod(method="pga", title="PGA", refusal=gone.sentence),
        PlannedMethod(method="sisa", title="SISA", refusal="It is not prepared for."),
    )
    whole = joined(
        [part(check(2)), replace(part(gone), methods=methods), part(check(1, removed=("y",)))], TARGET
    )
    assert whole.samples == check(6, removed=("x", "y"))
    sentence = check(6, removed=("x", "y")).sentence
    assert [one.refusal for one in whole.methods] == ["", sentence, "It is not prepared for."]
    worse = joined([part(gone), part(check(1, unknown=("z",)))], TARGET)
    assert all(one.refusal for one in worse.methods)


def test_rows_that_have_moved_refuse_the_whole():
    """The client's own sentence says what to do."""
    whole = joined([part(check(2)), part(check(3, moved="number 7 is another one."))], TARGET)
    assert whole.samples == check(5, moved="number 7 is another one.")
    assert {one.refusal for one in whole.methods} == {"Client 1 says: number 7 is another one."}


def test_one_part_and_parts_without_a_check_are_as_they_were():
    only = part(check(2))
    assert joined([only], TARGET) is only
    unchecked = part(None)
    assert joined([unchecked, part(None)], TARGET) is unchecked
