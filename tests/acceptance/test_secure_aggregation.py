"""Rounds and deletions of which the server learns sums only, in a whole federation in this process."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict

from server.requests.planning import plan
from server.service.method_descriptions import describe_methods
from server.state_directory.files import KEPT
from strategies.in_process_grid import InProcessGrid
from strategies.joint_exchange import MEASURE_TOO
from strategies.messages import (
    MEASURE,
    SECURE,
    SESSION,
    TRAIN,
    UNLEARN,
    WHOAMI,
    round_of,
    told_values,
    with_content,
    with_values,
)
from tests.cases import LONG, slow_but
from tests.deletion_service import free_port
from tests.federation import SMALL, InProcessFederation
from tests.key_files import write_keys
from tests.sessions import ThreadedGrid
from unlearning.errors import ConfigurationError, UnsupportedRequest
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity, Status, Target

SECURE_RUN: Mapping[str, Any] = {
    **SMALL,
    "num_clients": 4,
    "secure_aggregation": True,
    "threshold": 0.5,
    "attack_samples": 1000,
    "rounds": 1,
}
WORK = {TRAIN, UNLEARN, MEASURE}


class RecordingGrid(InProcessGrid):
    """Keeps what clients answered to work, and lets a test stop the server at a stage."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.answers: list[tuple[str, Message]] = []
        self.stop_at = ""

    def _answer(self, message: Message) -> Message:
        kind = message.metadata.message_type
        secure = told_values(message.content).get(SECURE) or {}
        if self.stop_at and self.stop_at == secure.get("stage", "mask" if secure else ""):
            raise KeyboardInterrupt  # as a kill: nothing is written any more
        reply = super()._answer(message)
        if kind in WORK:
            self.answers.append((kind, reply))
        return reply


class DyingGrid(RecordingGrid):
    """Its server does two rounds of secure aggregation and dies in the next, when all have answered."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.unmasked: set[int] = set()

    def _answer(self, message: Message) -> Message:
        secure = told_values(message.content).get(SECURE) or {}
        if secure.get("stage") == "unmask":
            self.unmasked.add(round_of(message))
            if len(self.unmasked) > 2:
                raise KeyboardInterrupt
        return super()._answer(message)


class CuttingGrid(RecordingGrid):
    """Client 2 masks less than it was asked for."""

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        arrays = reply.content.array_records.get("arrays")
        if message.metadata.dst_node_id != 1003 or not arrays:
            return reply
        short = ArrayRecord({"vector": Array(arrays["vector"].numpy()[:-1])})
        return Message(RecordDict({**reply.content, "arrays": short}), reply_to=message)


class SessionGrid(RecordingGrid, ThreadedGrid):
    """Carries sessions in threads of this process."""


class SecureFederation(InProcessFederation):
    """Clients with keys and rosters of their own."""

    kind_of_grid = RecordingGrid
    grid: RecordingGrid

    def new_grid(self) -> InProcessGrid:
        grid = super().new_grid()
        roster = self.directory / "roster"
        roster.mkdir(exist_ok=True)
        for context in grid.contexts.values():
            name = str(context.node_config["client-id"])
            path = self.directory / f"key-{name}.pem"
            if not path.exists():
                write_keys(path, roster / f"{name}.pem")
            context.node_config |= {"secure-key": str(path), "secure-roster": str(roster)}
        return grid


@contextmanager
def federation(directory: Path, **settings: Any) -> Iterator[SecureFederation]:
    made = SecureFederation(directory, {**SECURE_RUN, **settings})
    try:
        yield made
    finally:
        made.close()


def test_a_round_of_sums_is_the_plain_round(tmp_path: Path) -> None:
    """The same model up to fixed point, and nothing but masked vectors has come."""
    with (
        federation(tmp_path / "secure") as secure,
        federation(tmp_path / "plain", secure_aggregation=False) as plain,
    ):
        np.testing.assert_allclose(secure.run().parameters, plain.run().parameters, atol=1e-6)
        for kind, reply in secure.grid.answers:
            assert kind == TRAIN
            assert set(reply.content) == {"arrays", "config"}
            assert reply.content.array_records["arrays"]["vector"].dtype == "uint64"
            assert set(told_values(reply.content)) == {"protocol-version"}
        assert first_round(secure)["secure"] == {"in_sum": 4, "clipped": 0}


def test_a_round_of_sums_names_the_client_whose_answer_cannot_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others' sum is revealed without it."""
    monkeypatch.setattr(SecureFederation, "kind_of_grid", CuttingGrid)
    with federation(tmp_path) as run:
        run.run()
        found = first_round(run)
    assert found["secure"]["in_sum"] == 3
    assert list(found["refused"]) == list(found["failed"]) == ["2"]
    assert found["refused"]["2"] in found["failed"]["2"]


def test_a_share_of_the_clients_is_as_many_as_a_sum_needs(tmp_path: Path) -> None:
    """A quarter of four would be one, and no round would ever be revealed."""
    with federation(tmp_path, fraction=0.25) as run:
        run.run()
        assert first_round(run)["secure"]["in_sum"] == 3


@pytest.mark.parametrize(
    ("method", "target"),
    [
        pytest.param("puf-regular", Target(Granularity.CLIENT, "1"), marks=pytest.mark.slow),
        ("puf-regular", Target(Granularity.SAMPLE, "1", sample_ids=frozenset({"chosen later"}))),
        pytest.param("retrain", Target(Granularity.CLIENT, "1"), marks=pytest.mark.slow),
        pytest.param("not", Target(Granularity.CLIENT, "1"), marks=pytest.mark.slow),
        pytest.param("natural", Target(Granularity.CLIENT, "1"), marks=pytest.mark.slow),
        pytest.param("newton-cg", Target(Granularity.CLIENT, "1"), marks=pytest.mark.slow),
    ],
)
def test_a_deletion_of_sums_is_the_plain_deletion(tmp_path: Path, method: str, target: Target) -> None:
    """Unlearned, measured and recovered; the report has the same figures up to fixed point and bins."""
    found = []
    for name, is_secure in (("secure", True), ("plain", False)):
        with federation(tmp_path / name, secure_aggregation=is_secure) as run:
            run.run()
            wanted = some_samples(run) if target.granularity is Granularity.SAMPLE else target
            well_conditioned = {"damping": 0.05} if method == "newton-cg" else {}
            done = run.forget(wanted, method, rounds=1, **well_conditioned)
            state = run.checkpoint()
            assert state is not None
            found.append((state.parameters, run.report(done.id)["measurements"]))
            assert not is_secure or all(
                set(reply.content) == {"arrays", "config"} for _, reply in run.grid.answers
            )
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-4)
    for secure, plain in zip(found[0][1], found[1][1], strict=True):
        for name in ("retained", "forgotten"):
            assert secure[name]["num_examples"] == plain[name]["num_examples"]
            assert secure[name]["loss"] == pytest.approx(plain[name]["loss"], abs=1e-3)
        assert secure["attacks"]["yeom"] == pytest.approx(plain["attacks"]["yeom"], abs=0.1)


RIDGE = {"prepare": "exact-ridge l2=0.5", "rounds": 2, "recovery_max_rounds": 0}


@pytest.mark.parametrize("what", ["client", pytest.param("samples", marks=pytest.mark.slow)])
def test_exact_ridge_of_sums_is_exact_ridge(tmp_path: Path, what: str) -> None:
    """The same head before the deletion, after it and after one more round; no sums are kept at the server."""
    found = []
    for name, is_secure in (("secure", True), ("plain", False)):
        with federation(tmp_path / name, secure_aggregation=is_secure, **RIDGE) as run:
            heads = [run.run().parameters]
            wanted = some_samples(run) if what == "samples" else Target(Granularity.CLIENT, "1")
            done = run.forget(wanted, "exact-ridge", rounds=2)
            heads.append(run.checkpoint().parameters)
            heads.append(run.run(rounds=3).parameters)
            found.append(heads)
            findings = run.report(done.id)["unlearning"]["findings"]
            assert 0 < findings["bound on ‖θ − θ*‖"] < 1e-4
            assert findings["clients asked"] == (
                (3 if what == "client" else 4) if is_secure else what == "samples"
            )
            assert any(path.is_file() for path in run.directory.glob(f"{KEPT}/exact-ridge/**/*")) != is_secure
            if is_secure:
                assert all(set(reply.content) == {"arrays", "config"} for _, reply in run.grid.answers)
    for secure, plain in zip(*found, strict=True):
        assert np.linalg.norm(secure - plain) < 1e-6 * np.linalg.norm(plain)
    assert np.linalg.norm(found[0][0] - found[0][1]) > 1e-3 * np.linalg.norm(found[0][0])


def test_a_sum_of_data_without_a_client_is_refused_by_the_sites(tmp_path: Path) -> None:
    """Beside the sum of the round before it would show what that client holds; the model stays."""
    with federation(tmp_path, **RIDGE) as run:
        run.run()
        before = run.checkpoint().parameters
        run.grid.broken = {run.node("2")}  # shares its secrets, and never masks
        run.run(rounds=3)
        metrics = list(run.ledger.all_rounds())[-1].metrics
        assert "secure" not in metrics
        assert "show what they hold" in metrics["failed"]["0"]
        np.testing.assert_array_equal(run.checkpoint().parameters, before)
        run.grid.broken = set()
        run.run(rounds=4)
        assert list(run.ledger.all_rounds())[-1].metrics["secure"]["in_sum"] == 4


def test_a_deletion_by_sums_of_data_waits_for_every_client(tmp_path: Path) -> None:
    """No site is asked for a sum that would show the absent one's; with all there the deletion is carried out."""
    with federation(tmp_path, **RIDGE) as run:
        run.run()
        request = run.file(Target(Granularity.CLIENT, "1"), "exact-ridge")
        run.grid.offline, seen = {run.node("2")}, len(run.grid.answers)
        run.run(rounds=3)
        assert run.ledger.requests.get(request.id).status is not Status.COMPLETED
        assert UNLEARN not in {kind for kind, _ in run.grid.answers[seen:]}
        run.grid.offline = set()
        run.run(rounds=4)
        assert run.ledger.requests.get(request.id).status is Status.COMPLETED


def test_records_that_wait_for_a_common_deletion_are_shown_by_no_round_before_it(tmp_path: Path) -> None:
    """A round of sums of data without them would give them away one request at a time."""
    with federation(tmp_path, **RIDGE, min_deletions_together=2) as run:
        before = run.run().parameters
        ids = sorted(some_samples(run).forget.sample_ids)
        first, second = (Target(Granularity.SAMPLE, "1", sample_ids=frozenset({one})) for one in ids[:2])
        filed = [run.file(first, "exact-ridge")]
        np.testing.assert_array_equal(run.run(rounds=4).parameters, before)
        newest = list(run.ledger.all_rounds())[-1].metrics
        assert "secure" not in newest
        assert "wait for their deletion" in newest["failed"]["1"]
        filed.append(run.file(second, "exact-ridge"))
        run.run(rounds=6)
        done = [run.ledger.requests.get(one.id) for one in filed]
        assert [one.status for one in done] == [Status.COMPLETED] * 2
        assert list(run.ledger.all_rounds())[-1].metrics["secure"]["in_sum"] == 4


def first_round(run: SecureFederation) -> Mapping[str, Any]:
    return next(iter(run.ledger.all_rounds())).metrics


def some_samples(run: SecureFederation) -> Target:
    path = run.directory / "clients" / "1" / "sample-ids"
    return Target(Granularity.SAMPLE, "1", sample_ids=frozenset(path.read_text().split()[:6]))


def test_methods_that_need_single_answers_are_refused_with_an_alternative(tmp_path: Path) -> None:
    """At admission; and settings that keep single updates, before the run."""
    with federation(tmp_path) as run:
        run.run()
        with pytest.raises(UnsupportedRequest, check=lambda exc: exc.code == "needs-single-answers"):
            run.file(Target(Granularity.CLIENT, "1"), "puf-special")
        with pytest.raises(UnsupportedRequest, check=lambda exc: exc.code == "needs-single-answers"):
            run.file(some_samples(run), "newton-cg", remove_only=True)
        run.file(Target(Granularity.CLASS, class_label=1), "newton-cg", remove_only=True)
    with pytest.raises(ConfigurationError, match="prepare"), federation(tmp_path / "b", prepare="pga"):
        pass
    some = {**RIDGE, "fraction": 0.5}
    with pytest.raises(ConfigurationError, match="fraction"), federation(tmp_path / "c", **some):
        pass


def test_the_plan_and_the_list_of_methods_say_for_which_sums_suffice(tmp_path: Path) -> None:
    """The plan recommends one of them; `methods` names the need of every other."""
    with federation(tmp_path) as run:
        run.run()
        found = plan(run.ledger, Target(Granularity.CLIENT, "1"), now=datetime.now(UTC))
    sums = {name for name, method in METHODS.items() if method.info.sums_suffice}
    refused = {item.method for item in found.methods if "sees sums only" in item.refusal}
    assert refused == set(METHODS) - sums
    assert found.recommended in sums
    described = {item.name for item in describe_methods(None) if "single clients' answers" in str(item.needs)}
    assert described == refused


def test_the_plan_says_that_too_few_would_stay(tmp_path: Path) -> None:
    """Four clients with min-cohort 4: one can be forgotten when a fifth has joined; samples, at any time."""
    with federation(tmp_path, min_cohort=4) as run:
        run.run()
        whole, samples = (
            plan(run.ledger, target, now=datetime.now(UTC))
            for target in (
                Target(Granularity.CLIENT, "1"),
                Target(Granularity.SAMPLE, "1", sample_ids=frozenset({"1-0"})),
            )
        )
    assert not whole.recommended
    refusals = {item.refusal for item in whole.methods if METHODS[item.method].info.sums_suffice}
    too_few = "secure aggregation has 3 of the 4 clients that it needs (min-cohort). Have 1 more join first."
    assert f"Without client 1, {too_few}" in refusals
    assert samples.recommended


@pytest.mark.parametrize("stage", ["share", "mask", "confirm", "unmask"])
def test_a_round_in_which_the_server_died_is_never_answered_again(tmp_path: Path, stage: str) -> None:
    """Its work is asked for under the next number, and takes no training round away."""
    with federation(tmp_path) as run:
        run.grid.stop_at = stage
        with pytest.raises(KeyboardInterrupt):
            run.run(rounds=2)
        run.grid.stop_at = ""
        seen = len(run.grid.answers)
        run.run(rounds=2)
        rounds = {one.round: one.metrics["secure"]["in_sum"] for one in run.ledger.all_rounds()}
    assert rounds == {2: 4, 3: 4}
    assert seen == (4 if stage in ("confirm", "unmask") else 0)
    assert len(run.grid.answers) == seen + 8


@pytest.mark.parametrize(
    ("method", "parameters"),
    slow_but(("newton-cg",), [("newton-cg", {"iterations": 2}), ("retrain", {}), ("puf-regular", {})], LONG),
)
def test_a_server_that_dies_in_every_third_round_completes_a_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, parameters: dict[str, int]
) -> None:
    """In one attempt: what was asked when it died is asked again under a number that no site has answered."""
    monkeypatch.setattr(SecureFederation, "kind_of_grid", DyingGrid)
    with federation(tmp_path, rounds=2, recovery_max_rounds=1) as run:
        run.run(rounds=1)
        request = run.file(Target(Granularity.CLIENT, "1"), method, **parameters)
        starts = 1
        while starts < 20:
            try:
                run.run()
                break
            except KeyboardInterrupt:
                starts += 1
                run.new_grid()
        done = run.ledger.requests.get(request.id)
        training = [one for one in run.ledger.all_rounds() if one.kind == "training"]
    assert starts >= 3
    assert (done.status, done.attempts) == (Status.COMPLETED, 1), done.reason
    assert [one.metrics["secure"]["in_sum"] for one in training] == [4, 3]


def test_a_client_that_is_gone_in_the_middle_of_a_round_is_left_out(tmp_path: Path) -> None:
    """Its masks are taken out with shares of its mask key."""
    with federation(tmp_path) as run:
        run.grid.broken = {run.node("2")}  # answers queries only, so it shares its secrets and never masks
        run.run()
        metrics = first_round(run)
        assert metrics["secure"]["in_sum"] == 3
        assert "2" in metrics["failed"]


def test_too_few_clients_give_up_the_round_and_reveal_nothing(tmp_path: Path) -> None:
    """No client has sent a vector, as each looked at the list of participants itself."""
    with federation(tmp_path, rounds=2) as run:
        run.grid.offline = {run.node("2"), run.node("3")}
        with pytest.raises(Exception, match="are needed"):
            run.run()
        assert not run.grid.answers


def test_a_site_that_demands_it_answers_nothing_in_the_clear(tmp_path: Path) -> None:
    """Neither work nor questions after its samples."""
    with federation(tmp_path, secure_aggregation=False) as run:
        run.grid.contexts[run.node("1")].node_config["require-secure-aggregation"] = True
        run.run()
        assert "require-secure-aggregation" in first_round(run)["failed"]["1"]
        answers = [reply for _, reply in run.grid.answers if reply.metadata.src_node_id == run.node("1")]
        assert all(not reply.content.array_records for reply in answers)


def test_a_site_without_keys_takes_no_part(tmp_path: Path) -> None:
    """It says what to configure."""
    with federation(tmp_path) as run:
        del run.grid.contexts[run.node("1")].node_config["secure-key"]
        run.run()
        metrics = first_round(run)
        assert metrics["secure"]["in_sum"] == 3
        assert "secure-key" in metrics["failed"]["1"]


def test_over_sessions_it_is_the_same_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One code path for both ways that messages go: every stage is carried by the streams."""
    monkeypatch.setattr(SecureFederation, "kind_of_grid", SessionGrid)
    with federation(tmp_path / "a", transport="session", session_address=f"127.0.0.1:{free_port()}") as run:
        over_sessions = run.run()
        kinds = {message.metadata.message_type for message in run.grid.sent}
    with federation(tmp_path / "b") as run:
        np.testing.assert_array_equal(over_sessions.parameters, run.run().parameters)
    assert kinds == {WHOAMI, SESSION}


@pytest.mark.slow
def test_a_solve_of_sums_over_sessions_is_the_one_over_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: each of its many exchanges is a round of secure aggregation of its own."""
    found = []
    for kind in (SessionGrid, RecordingGrid):
        monkeypatch.setattr(SecureFederation, "kind_of_grid", kind)
        address = {"session_address": f"127.0.0.1:{free_port()}"} if kind is SessionGrid else {}
        with federation(tmp_path / kind.__name__, **address) as run:
            run.run()
            quick = {"damping": 0.05, "iterations": 3, "precondition": False}
            run.forget(Target(Granularity.CLIENT, "1"), "newton-cg", rounds=1, **quick)
            state = run.checkpoint()
            assert state is not None
            found.append(state.parameters)
            kinds = [message.metadata.message_type for message in run.grid.sent]
            assert (SESSION in kinds) == (kind is SessionGrid)
            assert (UNLEARN in kinds) == (kind is RecordingGrid)
    np.testing.assert_array_equal(*found)


def test_work_under_masks_carries_no_measurement_in_the_clear(tmp_path: Path) -> None:
    """A server that asks for both in one message gets neither."""
    with federation(tmp_path) as run:
        run.run()
        message = next(
            one
            for one in run.grid.sent
            if SECURE in told_values(one.content) and one.metadata.message_type == TRAIN
        )
        both = with_values(message.content, {MEASURE_TOO: {"forget": {}, "samples": 5}})
        run.grid.push_messages([with_content(message, both)])
        _, reply = run.grid.answers[-1]
        assert not reply.content.array_records
        assert "do not go together" in told_values(reply.content)["error"]


def test_the_report_says_that_only_sums_were_seen(tmp_path: Path) -> None:
    """With the sizes of cohorts and the threshold."""
    with federation(tmp_path) as run:
        run.run()
        done = run.forget(Target(Granularity.CLIENT, "1"), "not", rounds=1)
        report = run.report(done.id)
        assert any(
            "sums only, over 3 to 3 clients" in text and "50%" in text for text in report["not_measured"]
        )
        assert report["measurements"][0]["forgotten"]["num_examples"] > 0


@pytest.mark.slow
def test_a_deletion_of_sums_is_attacked_again(tmp_path: Path) -> None:
    """After one and after two further rounds, where every site has agreed to answer."""
    settings = {"recheck_after_rounds": "1, 2", "recovery_max_rounds": 1, "max_score_loss": 0}
    with federation(tmp_path, **settings) as run:
        for context in run.grid.contexts.values():
            context.node_config["answer-rechecks"] = True
        run.run()
        done = run.forget(Target(Granularity.CLIENT, "1"), "puf-regular", rounds=2)
        run.run(rounds=4)
        found = [one.detail["recheck"] for one in run.ledger.events.all(done.id) if "recheck" in one.detail]
        assert [one["due"] for one in found] == [1, 2]
        for one in found:
            assert one["now"]
            assert set(one["levels"]) == {"before", "completion", "now"}
            assert 0 < one["levels"]["now"]["auc"] < 1
