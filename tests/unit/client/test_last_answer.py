"""A site gives its last answer once more where the server lost it, and keeps none of what is forgotten."""

import errno
from collections.abc import Callable
from dataclasses import asdict
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from client import answering, handlers, last_answer
from client.handlers import handle_measure, handle_notice, handle_train
from client.memory import LAST_ANSWER
from client.site_work import SiteLoader
from strategies import built_in
from strategies.joint_exchange import MEASURE_TOO
from strategies.messages import (
    MEASURE,
    NOTICE,
    TRAIN,
    compose,
    model_record,
    values_of,
)
from strategies.settings.run_config import RunSettings
from tests.federation import DEFAULTS
from unlearning.requests import NOTHING, Forget
from unlearning.runtime.json_codec import to_plain
from unlearning.tasks import load_site, make_task
from unlearning.training import initial_parameters

SETTINGS = RunSettings.from_run_config(DEFAULTS)
MODEL = initial_parameters(make_task(SETTINGS.task()), 0)
SITES = SiteLoader(built_in.SOURCE, built_in.load_site)
IDS = load_site(SETTINGS.task(), 1).train.ids[:3].tolist()


@pytest.fixture(autouse=True)
def in_a_run(federation: Callable[..., Any]) -> None:
    """Flower makes messages in a run only."""
    federation(num_clients=2)


@pytest.fixture
def trainings(monkeypatch) -> list[int]:
    """Each round that is really trained."""
    seen: list[int] = []
    original = handlers._train_locally

    def train(local, *given):
        seen.append(local.server_round)
        return original(local, *given)

    monkeypatch.setattr(handlers, "_train_locally", train)
    return seen


def context_of(state_dir: Path | None) -> Context:
    config = {"partition-id": 1, "num-partitions": 4, "client-id": "1"}
    if state_dir is not None:
        config["state-dir"] = str(state_dir)
    return Context(
        run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config=SETTINGS.to_run_config()
    )


def training(number: int = 3, **also: Any) -> Message:
    values = {"training": asdict(SETTINGS.training(number)), **also}
    return compose(1, TRAIN, number, values, model_record(MODEL))


def measuring(forget: Forget = NOTHING) -> dict[str, Any]:
    return {"forget": to_plain(forget), "samples": 5}


def content_of(answer: RecordDict) -> list[tuple[str, Any]]:
    """The bytes of an answer, by record."""
    return [
        (name, {key: getattr(one, "data", one) for key, one in record.items()})
        for name, record in answer.items()
    ]


def test_what_is_asked_once_more_is_answered_with_the_same_bytes(tmp_path, trainings):
    """Also by another process; nothing is trained twice, and the measurement beside it is the same."""
    asked = training(**{MEASURE_TOO: measuring()})
    first = handle_train(asked, context_of(tmp_path), SITES)
    again = handle_train(training(**{MEASURE_TOO: measuring()}), context_of(tmp_path), SITES)
    assert content_of(first) == content_of(again)
    assert trainings == [3]


@pytest.mark.parametrize(
    "other",
    [
        lambda: training(4),
        lambda: training(3, withheld=to_plain(Forget(classes=frozenset({1})))),
        lambda: compose(1, TRAIN, 3, {"training": asdict(SETTINGS.training(3))}, model_record(MODEL + 1)),
    ],
    ids=["round", "what is left out", "model"],
)
def test_anything_else_is_done_anew(tmp_path, trainings, other):
    """An answer is to what was asked and to nothing else, and only the last one is there."""
    handle_train(training(), context_of(tmp_path), SITES)
    handle_train(other(), context_of(tmp_path), SITES)
    handle_train(training(), context_of(tmp_path), SITES)
    assert len(trainings) == 3


@pytest.mark.parametrize("kind", [MEASURE, NOTICE])
def test_the_next_message_of_any_kind_ends_it(tmp_path, kind):
    """The server has gone on, so it has the answer or does without."""
    handle_train(training(), context_of(tmp_path), SITES)
    assert (tmp_path / LAST_ANSWER).stat().st_mode & 0o777 == 0o600
    handler = handle_measure if kind == MEASURE else handle_notice
    handler(compose(1, kind, 3, measuring(), model_record(MODEL)), context_of(tmp_path), SITES)
    assert not (tmp_path / LAST_ANSWER).exists()


def test_no_answer_that_knows_what_is_forgotten_remains(tmp_path, trainings):
    """Canary: the bytes of the model that was trained on it are in no file once the site is told; nor half of them."""
    answer = handle_train(training(), context_of(tmp_path), SITES)
    canary = bytes(answer["arrays"]["vector"].data)[-256:]
    (tmp_path / f"{LAST_ANSWER}.part").write_bytes(canary)  # what a process that was killed has left

    def holders() -> list[str]:
        return [path.name for path in tmp_path.rglob("*") if path.is_file() and canary in path.read_bytes()]

    assert sorted(holders()) == [LAST_ANSWER, f"{LAST_ANSWER}.part"]
    told = {"excluded": to_plain(Forget(sample_ids=frozenset(IDS)))}
    handle_train(training(**told), context_of(tmp_path), SITES)
    assert holders() == []
    again = handle_train(training(**told), context_of(tmp_path), SITES)
    assert trainings == [3, 3]
    assert canary not in bytes(again["arrays"]["vector"].data)


def test_an_answer_with_figures_of_what_is_forgotten_for_good_is_not_kept(tmp_path):
    """A deletion may ask once more what is known of it; that stays in no file."""
    forget = Forget(sample_ids=frozenset(IDS))
    asked = training(excluded=to_plain(forget), **{MEASURE_TOO: measuring(forget)})
    assert any(
        name.startswith("measured.forgotten")
        for name in handle_train(asked, context_of(tmp_path), SITES)["arrays"]
    )
    assert not (tmp_path / LAST_ANSWER).exists()


def test_what_could_not_be_done_is_tried_again(tmp_path, trainings, monkeypatch):
    """A failure is no answer to be kept, also where the measurement beside it was one."""
    asked = {"withheld": to_plain(Forget(everything=True)), MEASURE_TOO: measuring()}
    answer = handle_train(training(**asked), context_of(tmp_path), SITES)
    assert "no example left" in values_of(answer)["failed"]["error"]
    assert not (tmp_path / LAST_ANSWER).exists()


@pytest.mark.parametrize("damage", [lambda old: old[:-1], lambda _old: b"", lambda old: old[:70] + old[71:]])
def test_a_damaged_file_is_no_answer(tmp_path, trainings, damage):
    """After a power cut the answer is computed again."""
    first = handle_train(training(), context_of(tmp_path), SITES)
    damaged = damage((tmp_path / LAST_ANSWER).read_bytes())
    (tmp_path / LAST_ANSWER).unlink()  # from which the first answer is read
    (tmp_path / LAST_ANSWER).write_bytes(damaged)
    again = handle_train(training(), context_of(tmp_path), SITES)
    assert bytes(first["arrays"]["vector"].data) == bytes(again["arrays"]["vector"].data)
    assert trainings == [3, 3]


def test_an_answer_from_before_the_machine_started_is_no_answer(tmp_path, trainings, monkeypatch):
    """The file is not flushed, so a power cut may have left zeros in the place of numbers."""
    handle_train(training(), context_of(tmp_path), SITES)
    monkeypatch.setattr(last_answer, "_boot", lambda: "another start")
    handle_train(training(), context_of(tmp_path), SITES)
    assert trainings == [3, 3]


def test_what_is_sent_is_the_file_and_no_copy_of_it(tmp_path):
    """Large answers are once on the disk and not in memory."""
    answer = handle_train(training(), context_of(tmp_path), SITES)
    assert isinstance(answer["arrays"]["vector"].numbers.base.base, mmap)


def test_a_full_disk_keeps_no_answer_from_being_sent(tmp_path, trainings, monkeypatch):
    """It cannot be given again, that is all; nothing half-written stays."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(last_answer, "bytes_of", full)
    monkeypatch.setattr(answering, "key_of", lambda *_: "a key")
    answer = handle_train(training(), context_of(tmp_path), SITES)
    assert "error" not in values_of(answer)
    assert [path.name for path in tmp_path.glob(f"{LAST_ANSWER}*")] == []


def test_a_client_without_a_directory_does_the_same_again(trainings):
    """Seeds depend on the round, so it is the same model."""
    first, again = (handle_train(training(), context_of(None), SITES) for _ in range(2))
    assert bytes(first["arrays"]["vector"].data) == bytes(again["arrays"]["vector"].data)
    assert trainings == [3, 3]
