"""Sites are asked which samples they have: before a request is scheduled, and for a plan."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.cli.plan_command import is_asked
from server.ledger.records import HEARTBEAT
from server.ledger.site_questions import KEPT
from server.requests.planning import plan
from server.service import client as client_module
from server.service.client import DeletionClient
from server.service.grpc_server import serve
from strategies.messages import KNOWN, UNLEARN
from tests.acceptance.test_live_deletion import sample_ids
from tests.federation import SMALL, InProcessFederation
from unlearning.methods.registry import METHODS
from unlearning.requests import DeletionRequest, Granularity, KnownSamples, Status, Target
from unlearning.tasks import load_site

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def samples(*ids: str, client: str = "1") -> Target:
    return Target(Granularity.SAMPLE, client, frozenset(ids))


def of_class(one: InProcessFederation, client: int, label: int, count: int = 2) -> list[str]:
    """Return ids of a client's examples of a class."""
    examples = load_site(one.settings.task(), client).train
    mine = examples.ids[examples.targets.numpy() == label].tolist()
    assert len(mine) >= count, "the partition gives the client some"
    return sorted(mine)[:count]


def label_at(one: InProcessFederation, client: int) -> int:
    """Return the class of which a client has most."""
    labels = load_site(one.settings.task(), client).train.targets.tolist()
    return max(set(labels), key=labels.count)


@pytest.fixture(scope="module")
def trained(shared_federation) -> InProcessFederation:
    one: InProcessFederation = shared_federation(**SMALL, rounds=1)
    one.run()
    return one


def asked(one: InProcessFederation, kind: str) -> int:
    """Return how many messages of a kind were sent."""
    return sum(message.metadata.message_type == kind for message in one.grid.sent)


def run(one: InProcessFederation, request: DeletionRequest) -> DeletionRequest:
    one.run(rounds=1)
    return one.ledger.requests.get(request.id)


def test_a_request_for_ids_that_the_site_does_not_have_is_not_begun(trained):
    """Not even for those that it has; the reason counts them, and says how to see which."""
    before = asked(trained, UNLEARN)
    request = run(trained, trained.file(samples(*sample_ids(trained, "1", 2), "nobody", "no-one")))
    assert (request.status, request.retryable, request.attempts) == (Status.FAILED, False, 0)
    assert "2 of the 4 samples" in request.reason
    assert "flower-unlearn plan --client 1 --samples FILE" in request.reason
    assert "another method" not in request.reason
    assert asked(trained, UNLEARN) == before
    assert trained.checkpoint().exclusions.of("1").sample_ids == frozenset()


def test_a_site_that_is_offline_is_not_asked_and_its_request_waits(trained):
    """What it does not have is found when it is asked to unlearn."""
    before = asked(trained, KNOWN)
    request = trained.file(samples("nobody-here", client="2"))
    trained.grid.offline = {trained.node("2")}
    assert run(trained, request).status is Status.SCHEDULED
    assert asked(trained, KNOWN) == before
    trained.grid.offline = set()
    assert run(trained, request).status is Status.FAILED


def test_samples_of_a_forgotten_class_are_answered_by_the_deletion_of_the_class(federation):
    """The server knows no labels: the site says it; samples of the class and others are still a deletion."""
    one = federation(**SMALL, rounds=1)
    one.run()
    label = label_at(one, 1)
    whole = one.forget(Target(Granularity.CLASS, class_label=label), rounds=1)
    first = run(one, one.file(samples(*of_class(one, 1, label))))
    assert (first.status, first.answered_by, first.attempts) == (Status.COMPLETED, (whole.id,), 0)
    others = set(sample_ids(one, "1", 40)) - set(of_class(one, 1, label, 1))
    other = next(item for item in sorted(others) if item not in set(of_class(one, 1, label)))
    both = run(one, one.file(samples(of_class(one, 1, label)[0], other)))
    assert (both.status, both.answered_by, both.attempts) == (Status.COMPLETED, (), 1)


@pytest.fixture
def command(trained: InProcessFederation, monkeypatch) -> Iterator[Callable[..., str]]:
    """Runs `flower-unlearn`; while it waits for the site, the live loop takes a step."""
    running = serve(trained.ledger, trained.directory / "reports", "127.0.0.1:0")
    monkeypatch.setattr("server.cli.plan_command.time.sleep", lambda _: trained.run(rounds=1))

    def invoke(*arguments: str) -> str:
        done = CliRunner(env={"COLUMNS": "500"}).invoke(app, ["--server", running.address, *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    yield invoke
    running.stop(0)


def test_a_plan_names_the_ids_that_the_site_does_not_have(trained, command, tmp_path):
    """As they are in the file; and proposes no method then."""
    file = tmp_path / "samples"
    file.write_text("\n".join([*sample_ids(trained, "1", 1), "patient-7"]))
    said = command("plan", "--client", "1", "--samples", str(file))
    assert "does not have 1 of the 2 samples: patient-7." in said
    assert "puf" not in said


def test_a_plan_names_what_the_site_no_longer_has(trained, command, tmp_path):
    """And recommends a method that works without it."""
    file = tmp_path / "samples"
    file.write_text("\n".join([*sample_ids(trained, "1", 1), "patient-8"]))
    (trained.directory / "clients" / "1" / "removed-samples").write_text("patient-8\n")
    said = command("plan", "--client", "1", "--samples", str(file))
    assert "no longer has 1 of the 2 samples: patient-8." in said
    recommended = said.partition("Recommended: ")[2].split(".")[0]
    assert not METHODS[recommended].info.works_with_the_data
    found = json.loads(command("plan", "--json", "--client", "1", "--samples", str(file)))
    refused = {one["method"] for one in found["methods"] if "no longer has" in one["refusal"]}
    assert refused == {name for name, one in METHODS.items() if one.info.works_with_the_data}


def test_without_a_run_a_plan_says_at_once_that_the_site_cannot_be_asked(trained):
    """The ledger has the site as online, but nothing was heard of it for longer than heartbeats take."""
    target, now = samples("nobody", client="0"), datetime.now(UTC)
    assert is_asked(plan(trained.ledger, target, now=now))
    later = plan(trained.ledger, target, now=now + 2 * HEARTBEAT)
    assert (later.samples.is_online, is_asked(later)) == (False, False)


def test_a_long_list_is_planned_in_parts_and_each_of_its_ids_is_checked(trained, tmp_path, monkeypatch):
    """The unknown ones are counted over all parts, and no method is offered."""
    monkeypatch.setattr(client_module, "_PART_BYTES", 50)
    monkeypatch.setattr(client_module, "_PART_PAUSE_S", 0.0)
    own = sorted(sample_ids(trained, "1", 5))
    target = samples(*own, "zz-1", "zz-2")
    running = serve(trained.ledger, tmp_path, "127.0.0.1:0")
    with DeletionClient(running.address) as caller:
        assert not caller.plan(target).samples.is_answered
        trained.run(rounds=1)
        found = caller.plan(target)
    running.stop(0)
    assert len(client_module._parts([*own, "zz-1", "zz-2"])) > 2
    assert (found.samples.num_samples, found.samples.unknown, found.samples.is_answered) == (
        7,
        ("zz-1", "zz-2"),
        True,
    )
    assert (found.target, found.recommended) == (target.describe(), "")
    assert {item.refusal for item in found.methods} == {found.samples.sentence}


def test_a_plan_says_that_the_site_is_offline_or_has_not_answered(trained):
    """It does not wait for it."""
    answer = plan(trained.ledger, samples("a", client="0"), now=NOW).samples
    assert answer is not None
    assert (answer.is_online, answer.is_answered) == (True, False)
    trained.ledger.live(trained.ledger.acquire_fence("test", now=NOW), lambda: NOW).register_clients(
        [next(one for one in trained.ledger.clients() if one.client_id == "0").__class__("0", online=False)]
    )
    answer = plan(trained.ledger, samples("a", client="0"), now=NOW).samples
    assert answer is not None
    assert (
        answer.sentence
        == "The ids were not checked at client 0: it is offline, or the federation does not run."
    )


def test_questions_and_answers_are_kept_for_minutes_only(sqlite_ledger):
    """They name people of whom nothing may ever be filed."""
    questions = sqlite_ledger.site_questions
    assert questions.ask("3", {"a", "b"}, now=NOW) is None
    [(key, asked_for)] = questions.open().items()
    assert asked_for == ("3", frozenset({"a", "b"}))
    said = KnownSamples(unknown=frozenset({"b"}), forgotten={"a": 4})
    questions.answer({key: said})
    assert questions.open() == {}
    assert questions.ask("3", {"b", "a"}, now=NOW + KEPT) == said
    assert questions.ask("3", {"a", "b"}, now=NOW + KEPT + timedelta(seconds=1)) is None
