"""What the library refuses before it trains: each absurd value by its class and code, where the caller gives it."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.contract.test_task_kinds import BUILT_IN, KINDS, TRAINING, data_of
from tests.raising import raises, refuses
from unlearning.errors import (
    AppError,
    DataError,
    InvalidRequest,
    MethodFailed,
    ModelRefused,
    TrainingFailed,
    UnknownClient,
    UnknownMethod,
    UnsupportedRequest,
    UpdateRefused,
)
from unlearning.evaluation import evaluate, predict
from unlearning.local import Learnt, begin, learn, problem_of, retained, unlearn
from unlearning.methods.registry import method_named
from unlearning.methods.retrain import Natural
from unlearning.requests import Granularity, Target
from unlearning.tasks.checks import check_examples
from unlearning.tasks.set_metrics import macro_f1, roc_auc
from unlearning.tasks.task import Examples, Task

DATA = data_of("built-in training")
START = begin(BUILT_IN, TRAINING)
A, B, C = (Target(Granularity.CLIENT, name) for name in "abc")


def refuse_to_train(*_: Any) -> float:
    raise AssertionError("It was trained.")


UNTRAINED = replace(BUILT_IN, train=refuse_to_train)
"""A task that must not come as far as training."""


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: replace(BUILT_IN, build_model=None), "build-model"),
        (lambda: replace(BUILT_IN, build_model=nn.Linear(2, 2)), "build-model"),
        (lambda: replace(BUILT_IN, set_metrics="macro_f1"), "set-metrics"),
        (lambda: replace(BUILT_IN, set_metrics=(partial(roc_auc), partial(macro_f1))), "set-metrics"),
        (lambda: replace(BUILT_IN, build_model=lambda: None), ""),
        (lambda: replace(BUILT_IN, build_model=nn.Linear), ""),  # without its widths
        (lambda: "digits", "no-task"),
    ],
)
def test_a_task_without_a_model_is_refused(make: Callable[[], Any], code: str) -> None:
    """Where it is made, or before anything is trained."""
    with raises(AppError, code):
        begin(make(), TRAINING)


@pytest.mark.parametrize("rounds", [0, -3, 1.5, math.nan, "many", True])
def test_rounds_are_a_whole_number_of_one_or_more(rounds: Any) -> None:
    with refuses("rounds"):
        learn(UNTRAINED, DATA, START, rounds=rounds)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("epochs", -1),
        ("batch_size", 0),
        ("batch_size", 2.5),
        ("learning_rate", 0),
        ("learning_rate", -0.1),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("momentum", 1.0),
        ("weight_decay", -1.0),
        ("clip_norm", -1.0),
        ("optimizer", "rmsprop"),
        ("seed", 2**80),
    ],
)
def test_training_has_the_bounds_of_a_run(name: str, value: Any) -> None:
    """Where it is begun with, put into what was learnt, or given to the layer below."""
    training = replace(TRAINING, **{name: value})
    for use in (
        lambda: begin(BUILT_IN, training),
        lambda: replace(START, training=training),
        lambda: problem_of(method_named("natural"), BUILT_IN, [A], DATA, training),
    ):
        with refuses(name):
            use()


def with_a(**changes: Any) -> dict[str, Any]:
    """The sites, with something else of client a's."""
    a = DATA["a"]
    given = {"inputs": a.inputs, "targets": a.targets, "ids": a.ids, **changes}
    return {**DATA, "a": Examples(given["inputs"], given["targets"], given["ids"])}


def spoiled(value: float) -> torch.Tensor:
    inputs = DATA["a"].inputs.clone()
    inputs[3, 1] = value
    return inputs


SITES: dict[str, tuple[Any, str]] = {
    "a list": (list(DATA.values()), "no-sites"),
    "no examples": ({**DATA, "a": (1, 2)}, "no-sites"),
    "an integer client": ({0: DATA["a"]}, "malformed-id"),
    "a blank client": ({" ": DATA["a"]}, "malformed-id"),
    "integer ids": (with_a(ids=np.arange(7)), "malformed-id"),
    "a list of integers": (with_a(ids=list(range(7))), "malformed-id"),
    "ids in pairs": (with_a(ids=np.array([["a", "b"]] * 7)), "malformed-id"),
    "an empty id": (with_a(ids=np.array(["", *"abcdef"])), "malformed-id"),
    "an id like a comment": (with_a(ids=np.array(["#1", *"abcdef"])), "malformed-id"),
    "an id twice": (with_a(ids=np.array(["twin", "twin", *"abcde"])), "repeated-id"),
    "NaN": (with_a(inputs=spoiled(math.nan)), "not-finite"),
    "infinity": (with_a(inputs=spoiled(-math.inf)), "not-finite"),
    "float labels": (with_a(targets=torch.ones(7)), "no-classes"),
    "one-hot labels": (with_a(targets=torch.eye(3)[torch.arange(7) % 3]), "no-classes"),
    "a label too many": (with_a(targets=torch.arange(7) % 4), "no-classes"),
    "a negative label": (with_a(targets=torch.arange(7) % 3 - 1), "no-classes"),
    "a label per value": (with_a(targets=torch.zeros(7, 2, dtype=torch.int64)), "no-classes"),
    "another width": (with_a(inputs=torch.zeros(7, 5)), "raised"),
}


@pytest.mark.parametrize(("sites", "code"), SITES.values(), ids=SITES.keys())
def test_sites_are_checked_before_anything_is_trained(sites: Any, code: str) -> None:
    """In training and in a deletion."""
    error = AppError if code in ("no-classes", "raised") else DataError
    with raises(error, code):
        learn(UNTRAINED, sites, START)
    with raises(error, code):
        unlearn("natural", BUILT_IN, START, sites, [B])


@pytest.mark.parametrize("as_given", [list, tuple, lambda ids: np.array(ids, object)])
def test_ids_are_texts_in_whatever_form_they_come(as_given: Any) -> None:
    """As lists have them, and pandas: its columns are arrays of objects."""
    a, given = DATA["a"], as_given(DATA["a"].ids.tolist())
    for found in (
        Examples(a.inputs, a.targets, given),
        Examples.from_arrays(a.inputs.numpy(), a.targets.numpy(), given),
        Examples.from_dataset(TensorDataset(a.inputs, a.targets), given),
    ):
        check_examples(found, "a site")
        assert found.ids.dtype.kind == "U"
        assert found.select(np.array([3])).ids.tolist() == [a.ids[3]]


def test_a_site_without_examples_is_accepted() -> None:
    """Its ids may be NumPy's empty array of numbers, as in the app that `flower-unlearn new` writes."""
    empty = Examples(torch.zeros(0, 2, dtype=torch.float64), torch.zeros(0, dtype=torch.int64), np.array([]))
    check_examples(empty, "The test set")
    assert "d" not in learn(BUILT_IN, {**DATA, "d": empty}, START).num_examples


def test_training_that_diverges_ends_with_the_client() -> None:
    """Inputs so large that only their sum overflows are finite, and are trained on."""
    inputs = torch.full((7, 2), 1e38)
    with raises(TrainingFailed, "not-finite"):
        learn(replace(BUILT_IN, dtype=torch.float32), with_a(inputs=inputs), START)


@pytest.mark.parametrize("name", ["fedosd", "gradient-ascent", "puf-special", "retrain"])
def test_an_answer_that_diverges_ends_a_deletion_with_its_client(name: str) -> None:
    """As a federation refuses it: FedOSD's least squares had no solution, others a model that was thrown away."""
    inputs = torch.full((7, 2), 1e38)
    sites = (
        {**DATA, "b": with_a(inputs=inputs)["a"]} if name in ("fedosd", "retrain") else with_a(inputs=inputs)
    )
    with raises(MethodFailed, "diverged"):
        unlearn(name, replace(BUILT_IN, dtype=torch.float32), START, sites, [A])


def test_fewer_targets_than_inputs_make_no_examples() -> None:
    with raises(DataError):
        with_a(targets=torch.zeros(5))


DELETIONS: dict[str, tuple[type[Any], str, Callable[[], Any]]] = {
    "no such method": (UnknownMethod, "", lambda: unlearn("forget", BUILT_IN, START, DATA, [A])),
    "a class": (UnknownMethod, "", lambda: unlearn(Natural, BUILT_IN, START, DATA, [A])),
    "no parameter": (
        InvalidRequest,
        "unfit-parameter",
        lambda: unlearn("natural", BUILT_IN, START, DATA, [A], rate=1),
    ),
    "no target": (InvalidRequest, "no-targets", lambda: unlearn("natural", BUILT_IN, START, DATA, [])),
    "one target": (InvalidRequest, "no-targets", lambda: unlearn("natural", BUILT_IN, START, DATA, A)),
    "one to retain": (InvalidRequest, "no-targets", lambda: retained(DATA, A)),
    "a name": (InvalidRequest, "no-targets", lambda: unlearn("natural", BUILT_IN, START, DATA, ["a"])),
    "two at once": (
        UnsupportedRequest,
        "one-at-a-time",
        lambda: unlearn("mode", BUILT_IN, START, DATA, [A, B]),
    ),
    "no such client": (
        UnknownClient,
        "",
        lambda: unlearn("natural", BUILT_IN, START, DATA, [Target(Granularity.CLIENT, "d")]),
    ),
    "no such sample": (
        DataError,
        "unknown-samples",
        lambda: unlearn(
            "natural", BUILT_IN, START, DATA, [Target(Granularity.SAMPLE, "a", frozenset({"b-1"}))]
        ),
    ),
    "no such class": (
        InvalidRequest,
        "",
        lambda: unlearn("natural", BUILT_IN, START, DATA, [Target(Granularity.CLASS, class_label=3)]),
    ),
    "a class of no one": (
        DataError,
        "nothing-to-forget",
        lambda: unlearn(
            "natural",
            BUILT_IN,
            START,
            {"a": DATA["a"].select(np.array([0, 3]))},
            [Target(Granularity.CLASS, class_label=1)],
        ),
    ),
    "another model": (
        UpdateRefused,
        "wrong-length",
        lambda: unlearn("natural", KINDS["frozen backbone"], START, DATA, [A]),
    ),
}


@pytest.mark.parametrize(("error", "code", "deletion"), DELETIONS.values(), ids=DELETIONS.keys())
def test_a_deletion_that_makes_no_sense_is_refused(error, code: str, deletion: Callable[[], Any]) -> None:
    with raises(error, code):
        deletion()


@pytest.mark.parametrize(
    ("parameters", "error", "code"),
    [
        (np.full(9, np.nan), UpdateRefused, "not-finite"),
        ([0.0] * 9, DataError, "no-vector"),
        (torch.zeros(9), DataError, "no-vector"),
        (np.arange(9), DataError, "no-vector"),
    ],
)
def test_a_model_is_a_vector_of_finite_numbers(parameters: Any, error, code: str) -> None:
    with raises(error, code):
        Learnt(parameters=parameters, training=TRAINING)


def test_a_ruined_model_is_refused_as_a_federation_refuses_it() -> None:
    """A rate of the method's that its own bounds allow, times a training rate that they do not see."""
    far = replace(START, training=replace(TRAINING, learning_rate=1e6, epochs=5))
    with raises(ModelRefused, "norm-exploded"):
        unlearn("puf-special", BUILT_IN, far, DATA, [A])


@pytest.mark.parametrize("measure", [evaluate, predict])
def test_measuring_what_the_model_does_not_take_is_refused(measure: Callable[..., Any]) -> None:
    other = with_a(inputs=torch.zeros(7, 5, dtype=torch.float64))["a"]
    with raises(DataError, "wrong-shape"):
        measure(BUILT_IN, START.parameters, other)
    with raises(DataError, "batch-size"):
        measure(BUILT_IN, START.parameters, DATA["a"], batch_size=-1)


def backbone_with_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4).requires_grad_(False), nn.BatchNorm1d(4), nn.Linear(4, 3))


@pytest.mark.parametrize(
    "task",
    [
        KINDS["frozen backbone"],
        replace(BUILT_IN, build_model=lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3))),
        replace(BUILT_IN, build_model=backbone_with_statistics),
    ],
    ids=["frozen", "buffers", "both"],
)
def test_a_state_dict_makes_a_module_that_computes_the_same(task: Task) -> None:
    """The frozen part and running statistics are in it."""
    training = replace(TRAINING, batch_size=6)
    learnt = learn(task, {"c": DATA["c"]}, begin(task, training))
    found = unlearn("not", task, learn(task, {"b": DATA["c"]}, learnt), {"b": DATA["c"]}, [B])
    for state, parameters in (
        (learnt.state_dict(task), learnt.parameters),
        (found.state_dict(task), found.parameters),
    ):
        module = task.build_model().to(task.dtype).eval()
        module.load_state_dict(state)
        outputs = module(DATA["a"].inputs).detach().numpy()
        np.testing.assert_array_equal(outputs, predict(task, parameters, DATA["a"]))


def test_shards_have_a_state_dict_of_what_they_learn_together() -> None:
    learnt = learn(BUILT_IN, DATA, begin(BUILT_IN, TRAINING, "sisa shards=2"))
    together = learnt.learns(BUILT_IN)
    module = together.build_model().to(together.dtype).eval()
    module.load_state_dict(learnt.state_dict(BUILT_IN))
    np.testing.assert_array_equal(
        module(DATA["a"].inputs).detach().numpy(), predict(together, learnt.parameters, DATA["a"])
    )
