"""A federation that goes on with other settings: rounds keep what they had, or the run says what to set."""

import errno
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from server.federation.earlier_settings import SettingsSince, going_on
from server.ledger import schema
from server.state_directory.files import SETTINGS_FILE
from strategies.sessions import endpoint
from strategies.settings.groups import TrainingSchedule
from strategies.settings.run_config import FIELDS, RunSettings
from tests.cases import LONG
from tests.federation import SMALL, InProcessFederation, client
from tests.raising import raises, refuses
from unlearning.errors import SessionError
from unlearning.methods.registry import METHODS
from unlearning.tasks.settings import TaskSettings

ONE = {**SMALL, "num_clients": 4, "recovery_max_rounds": 0, "rounds": 2}
OTHER_TRAINING: dict[str, Any] = {
    "local_epochs": 2,
    "batch_size": 7,
    "optimizer": "adam",
    "learning_rate": 0.05,
    "momentum": 0.5,
    "weight_decay": 0.1,
    "augment": True,
    "learning_rate_decay": 0.5,
}
ORDINARY_ONLY = "keep_optimizer"
"""SISA refuses it, and rounds that FedEraser repeats start again (tests/unit/unlearning/test_optimizers.py)."""
OTHER_TASK: dict[str, Any] = {
    "dataset": "heart-disease",
    "model": "mlp",
    "partition": "dirichlet",
    "alpha": 0.3,
    "dtype": "float64",
    "num_classes": 10,
    "input_shape": "1x8x8",
    "max_examples": 140,
    "image_side": 64,
    "pretrained": "somewhere",
    "seed": 9,
    "num_clients": 5,
}
MAY_CHANGE = {"data_dir": "/nowhere", "max_test_examples": 30}
SHARDS, VECTORS = (
    "sisa shards=3 slices=2 slice_rounds=2 vote=mean",
    "hf-online weighting=fixed max_gib=2; pga",
)


def restarted(one: InProcessFederation, **changes: Any) -> InProcessFederation:
    """The same state directory, with other settings from now on."""
    one.run_config |= {name.replace("_", "-"): value for name, value in changes.items()}
    one.new_grid()
    return one


def test_every_setting_of_training_and_task_is_in_one_of_the_lists():
    """A new one is changed here, too."""
    of_training = {
        (FIELDS[item.name].alias or item.name).replace("-", "_") for item in fields(TrainingSchedule)
    }
    assert of_training == {*OTHER_TRAINING, ORDINARY_ONLY}
    assert {item.name for item in fields(TaskSettings)} == OTHER_TASK.keys() | MAY_CHANGE.keys()


def unlearned_after(federation, method: str, name: str, **changes: Any) -> np.ndarray:
    """The model after two rounds, a restart with changes, and a deletion."""
    one = federation(name=name, prepare=f"{method}", **ONE)
    one.run()
    restarted(one, **changes).forget(client("2"), method)
    return one.checkpoint().parameters


@pytest.fixture(scope="module")
def unchanged(shared_federation) -> Callable[[str], np.ndarray]:
    """The model after a deletion by a method in a federation whose settings never changed."""
    return cache(lambda method: unlearned_after(shared_federation, method, f"unchanged-{method}"))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(tuple(OTHER_TRAINING), id="all"),
        *(pytest.param((name,), id=name, marks=LONG) for name in OTHER_TRAINING),
    ],
)
@pytest.mark.parametrize("method", ["sisa", "federaser"])
def test_a_method_repeats_rounds_with_the_settings_that_they_had(
    federation, unchanged: Callable[[str], np.ndarray], method: str, changed: tuple[str, ...]
):
    """The unlearned model is, to the bit, that of a federation whose settings never changed."""
    changes = {name: OTHER_TRAINING[name] for name in changed}
    found = unlearned_after(federation, method, "changed", **changes)
    np.testing.assert_array_equal(found, unchanged(method))


@pytest.mark.slow
@pytest.mark.long
def test_sisa_gives_the_bits_of_retraining_through_a_change_of_settings(federation):
    """Rounds before and after it are repeated, each as it was; the schedule's decay counts from round 1."""
    one, without = (federation(name=name, prepare="sisa shards=1", **ONE) for name in ("with", "without"))
    for each in (one, without):
        if each is without:
            each.grid.offline.add(each.node("2"))
        each.run()
        restarted(each, **OTHER_TRAINING)
        if each is without:
            each.grid.offline.add(each.node("2"))
        each.run(rounds=4)
    one.forget(client("2"), "sisa", rounds=4)
    np.testing.assert_array_equal(one.checkpoint().parameters, without.checkpoint().parameters)


def settings_of(**changes: Any) -> SettingsSince:
    settings = RunSettings(**{"prepare": VECTORS, **changes})
    return SettingsSince.of(settings, settings.to_run_config(), 3)


EARLIER = (replace(settings_of(), first_round=1),)
KEPT = {"hf-online": 0, "pga": 0, "sisa": 0}


@pytest.mark.parametrize("name", OTHER_TASK)
def test_a_change_of_what_is_learnt_is_refused_while_something_is_kept(name: str):
    """In a sentence that names the setting, its value, and who has kept something."""
    now = settings_of(**{name: OTHER_TASK[name]})
    with refuses(name.replace("_", "-")) as caught:
        going_on(EARLIER, now, KEPT)
    assert all(part in str(caught.value) for part in (repr(OTHER_TASK[name]), "hf-online", "pga"))
    assert going_on(EARLIER, now, {}) == (*EARLIER, now)
    assert going_on((replace(EARLIER[0], first_round=3),), now, KEPT) == (now,)  # no round was trained


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("shards=2", "prepare: sisa: shards"),
        ("slices=3", "prepare: sisa: slices"),
        ("slice_rounds=5", "prepare: sisa: slice_rounds"),
        ("weighting=renormalised", "prepare: hf-online: weighting"),
        ("vote=majority", ""),
        ("max_gib=1", ""),
    ],
)
def test_an_option_that_says_how_rounds_are_kept_is_fixed(option: str, words: str):
    """Where a client's slice begins, or whose weights vectors are for; room and votes may change."""
    name = option.partition("=")[0]
    text = next(text for text in (SHARDS, VECTORS) if f"{name}=" in text)
    before = (replace(settings_of(prepare=text), first_round=1),)
    now = settings_of(prepare=re.sub(rf"{name}=\w+", option, text))
    if not words:
        assert going_on(before, now, KEPT) == before
        return
    with refuses(words):
        going_on(before, now, KEPT)


@pytest.mark.parametrize("name", MAY_CHANGE)
def test_where_data_lies_and_what_the_server_measures_on_may_change(name: str):
    """They move no round."""
    assert going_on(EARLIER, settings_of(**{name: MAY_CHANGE[name]}), KEPT) == EARLIER


def test_fixed_options_are_options():
    """Of every method of the registry."""
    for method in METHODS.values():
        if method.info.preparation is not None:
            assert method.info.preparation.fixed <= method.info.preparation.model_fields.keys()


def test_a_setting_of_an_own_app_is_fixed_too():
    """The server cannot know what it decides."""
    settings = RunSettings(prepare="pga")
    before, now = (
        SettingsSince.of(settings, {"hospital.depth": depth, "rounds": depth}, number)
        for number, depth in ((1, 2), (5, 3))
    )
    with refuses("hospital.depth"):
        going_on((before,), now, {"pga": 0})


def test_a_refused_run_leaves_the_state_directory_as_it_was(federation):
    """Its settings too, by which the model is read; without the preparation the change is taken."""
    one = federation(prepare="pga", **ONE)
    one.run()
    kept = (one.directory / SETTINGS_FILE).read_bytes()
    with refuses("seed"):
        restarted(one, seed=9).run()
    assert (one.directory / SETTINGS_FILE).read_bytes() == kept
    restarted(one, prepare="").run(rounds=3)
    assert [since.first_round for since in one.checkpoint().settings] == [1, 3]


@pytest.mark.parametrize("changes", [{"model": "mlp"}, {"dtype": "float64"}], ids=str)
def test_a_model_of_another_size_or_type_is_refused_before_the_first_round(federation, changes):
    """Every answer would be refused in every round, by name, for ever."""
    one = federation(**SMALL, rounds=1)
    one.run()
    with refuses("state-dir"):
        restarted(one, **changes, rounds=2).run()
    assert restarted(one, model="logistic", dtype="float32").run(rounds=2).round == 2


@pytest.mark.slow
def test_a_certificate_of_noise_speaks_of_all_rounds(federation):
    """A weight decay that came with a restart makes no earlier loss strongly convex."""
    one = federation(**{**ONE, "dtype": "float64"}, prepare="hf-online")
    one.run()
    noise = {"epsilon": 1.0, "delta": 1e-5, "sensitivity": 0.01}
    done = restarted(one, weight_decay=0.1).forget(client("2"), "hf-online", **noise)
    assert "There is no L2 term" in one.report(done.id)["unlearning"]["findings"]["noise"]


NOISE = {"privacy_noise_multiplier": 4.0, "privacy_clip_norm": 1.0}


def check_takes_no_fence(
    one: InProcessFederation, refusing: AbstractContextManager[object], **changes: Any
) -> None:
    """With these changes a run is refused, and the run that goes on does so."""

    def fence() -> int:
        with one.ledger.database.reading() as connection:
            return connection.scalar(sa.select(schema.fence.c.token))

    before, token = dict(one.run_config), fence()
    with refusing:
        restarted(one, **changes).run(rounds=2)
    assert fence() == token
    one.run_config = before


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("state-dir", {"federation": "lungs"}),
        ("state-dir", {"model": "mlp"}),
        ("state-dir", {"dtype": "float64"}),
        ("seed", {"seed": 9}),
        ("privacy", {"privacy": "client", **NOISE, "prepare": ""}),
        ("privacy", {"privacy": "samples", **NOISE, "prepare": ""}),
    ],
    ids=str,
)
def test_a_run_that_cannot_go_on_does_not_end_the_one_that_does(federation, named, changes):
    """Submitted by hand with a mistake in it, or of a file that names another's directory."""
    one = federation(**{**ONE, "num_clients": 2}, prepare="federaser")
    one.run(rounds=1)
    check_takes_no_fence(one, refuses(named), **changes)
    assert restarted(one).run(rounds=2).round == 2


def test_a_run_without_noise_or_budget_does_not_end_the_one_that_has_it(federation):
    """Of a federation with privacy; with the budget that it had it goes on."""
    private = {"privacy": "client", "privacy_epsilon": 50.0, "privacy_at_budget": "stop"}
    one = federation(**{**ONE, "num_clients": 2}, **NOISE, **private)
    one.run(rounds=1)
    check_takes_no_fence(one, refuses("privacy"), privacy="none")
    check_takes_no_fence(one, refuses("privacy-epsilon"), privacy_epsilon=1e-3)
    assert restarted(one).run(rounds=2).round == 2


def test_sessions_at_an_address_of_another_machine_do_not_end_the_run_that_works(federation, monkeypatch):
    """As where `session-address` is what a router gives on, and `session-bind` is not set."""
    one = federation(**{**ONE, "num_clients": 2})
    one.run(rounds=1)
    elsewhere = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    monkeypatch.setattr(endpoint, "bind_error", lambda _: elsewhere)
    refusing = raises(SessionError, "bad-address")
    check_takes_no_fence(one, refusing, transport="session", session_address="127.0.0.1:9")
