"""What every unlearning method must keep to, run against each one in the registry."""

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from tests.preparing import task_for, trained_with
from torch import nn

from unlearning.archive import pack, unpack
from unlearning.errors import InvalidRequest, UnknownMethod, UnsupportedRequest
from unlearning.local import answer, exchange, problem_of
from unlearning.methods.method import (
    Method,
    MethodInfo,
    Need,
    PreparedStore,
    Problem,
    UnlearningState,
)
from unlearning.methods.registry import METHODS, check_supports, method_named, validated_parameters
from unlearning.plain import to_plain
from unlearning.requests import Forget, Granularity, Target
from unlearning.stores import MemoryStore
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, initial_parameters

MAX_EXCHANGES = 100

TASK = Task(
    name="three points of the plane",
    num_classes=3,
    score_name="accuracy",
    build_model=lambda: nn.Linear(2, 3),
    loss=nn.functional.cross_entropy,
    per_example=lambda outputs, targets: (
        nn.functional.cross_entropy(outputs, targets, reduction="none"),
        (outputs.argmax(dim=1) == targets).double(),
        outputs.softmax(dim=1).gather(1, targets[:, None])[:, 0],
    ),
)
TRAINING = TrainingSettings(epochs=1, batch_size=4, learning_rate=0.1, seed=0)

TARGETS = {
    Granularity.CLIENT: Target(Granularity.CLIENT, "a"),
    Granularity.SAMPLE: Target(Granularity.SAMPLE, "a", frozenset({"a-1", "a-4"})),
    Granularity.CLASS: Target(Granularity.CLASS, class_label=2),
}


SAMPLES = ("a-0", "a-1", "a-2", "a-4")


def target_of(problem: Problem) -> Target:
    """The one of `TARGETS` that the problem is about."""
    forget = problem.targets["a"]
    return TARGETS[
        Granularity.CLIENT
        if forget.everything
        else Granularity.CLASS
        if forget.classes
        else Granularity.SAMPLE
    ]


@pytest.fixture(params=sorted(METHODS))
def method(request) -> Method:
    return METHODS[request.param]


@pytest.fixture(params=list(Granularity))
def granularity(request) -> Granularity:
    return request.param


def client_data() -> dict[str, Examples]:
    generator = torch.Generator().manual_seed(0)
    data = {}
    for client, count in (("a", 7), ("b", 9), ("c", 12)):
        labels = torch.arange(count) % 3
        centres = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [0.0, -1.0]])[labels]
        inputs = centres + 0.1 * torch.randn(count, 2, generator=generator)
        data[client] = Examples(inputs, labels, np.array([f"{client}-{index}" for index in range(count)]))
    return data


def problem_for(method: Method, granularity: Granularity) -> Problem:
    """The deletion to carry out, after three training rounds with what the method prepares in them."""
    target = TARGETS[granularity]
    _, kept = prepared(method, target)
    problem = problem_of(method, task_for(method, TASK), [target], client_data(), TRAINING)
    return replace(problem, rounds_trained=3, kept=kept)


def prepared(method: Method, target: Target) -> tuple[dict[str, MemoryStore], PreparedStore | None]:
    """What three training rounds leave at the clients and the server, prepared for this target."""
    preparation, options = method.info.preparation, None
    if preparation is not None and preparation.refusal(preparation.Options(), target):
        named = {"class": target.class_label} if target.class_label is not None else None
        options = preparation.Options.model_validate(named or {"samples": ",".join(SAMPLES)})
    _, stores, kept = trained_with(
        method, task_for(method, TASK), client_data(), TRAINING, rounds=3, options=options
    )
    return stores, kept


def run(method: Method, problem: Problem, between=lambda state: state, data=None) -> UnlearningState:
    """Drive the method to its end; `between` is what happens to the state between two exchanges."""
    data, (stores, _) = data or client_data(), prepared(method, target_of(problem))
    if problem.kept is not None:
        problem = replace(problem, kept=replace(problem.kept, next_store=MemoryStore()))
    state = between(method.begin(problem, initial_parameters(problem.task, seed=0)))
    while not state.finished:
        assert state.exchanges < MAX_EXCHANGES
        state = between(exchange(method, problem, state, data, stores))
    return state


def through_a_checkpoint(state: UnlearningState) -> UnlearningState:
    """The state as it comes back from a file; all of its numbers are finite."""
    json.dumps(to_plain(state), allow_nan=False)
    return unpack(UnlearningState, pack(state), older=dict)


def equal(one, other) -> bool:
    """Equality that looks into dataclasses, mappings, arrays and tensors."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, MemoryStore):
        return equal(vars(one), vars(other))
    if isinstance(one, partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    if isinstance(one, PreparedStore):  # its next store is there to be written to
        return equal(one.store, other.store)
    if is_dataclass(one):
        return all(equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return bool(one == other)


def skip_unsupported(method: Method, granularity: Granularity) -> None:
    if granularity not in method.info.granularities:
        pytest.skip("the method refuses this granularity, which another test checks")


def test_every_supported_deletion_runs_to_its_end(method, granularity):
    """A bounded number of exchanges, and out comes a finite model of the same shape and dtype."""
    skip_unsupported(method, granularity)
    problem = problem_for(method, granularity)
    state, start = run(method, problem), initial_parameters(problem.task, seed=0)
    assert (state.parameters.shape, state.parameters.dtype) == (start.shape, start.dtype)
    assert np.isfinite(state.parameters).all()


def test_a_client_without_the_forgotten_class_stops_nothing(method):
    """With skewed labels some clients hold no example of a class; the others' examples still go."""
    skip_unsupported(method, Granularity.CLASS)
    data = client_data()
    data["a"] = data["a"].select(data["a"].targets.numpy() != 2)
    state = run(method, problem_for(method, Granularity.CLASS), data=data)
    assert np.isfinite(state.parameters).all()


def test_unlearning_changes_the_model(method, granularity):
    """A method whose result is the model it was given has forgotten nothing."""
    if method.info.name == "natural":
        pytest.skip("Natural is the baseline that leaves the model as it is")
    skip_unsupported(method, granularity)
    problem = problem_for(method, granularity)
    state = run(method, problem)
    assert not np.array_equal(state.parameters, initial_parameters(problem.task, seed=0))


def test_the_same_run_gives_the_same_bits(method, granularity):
    """Nothing is kept between runs and no hidden randomness is used."""
    skip_unsupported(method, granularity)
    problem = problem_for(method, granularity)
    assert equal(run(method, problem), run(method, problem))


def test_a_run_interrupted_between_exchanges_ends_in_the_same_model(method, granularity):
    """The state alone, written as JSON and .npz and read back each time, is enough to go on."""
    skip_unsupported(method, granularity)
    problem = problem_for(method, granularity)
    assert equal(run(method, problem, between=through_a_checkpoint), run(method, problem))


def test_no_function_changes_its_arguments(method, granularity):
    """Problem, state, instructions, sites and replies are as they were after each call."""
    skip_unsupported(method, granularity)
    problem, data = problem_for(method, granularity), client_data()
    start = initial_parameters(problem.task, seed=0)
    given = copy.deepcopy((problem, data, start))
    stores, _ = prepared(method, target_of(problem))
    state = method.begin(problem, start)
    while not state.finished:
        state_before = copy.deepcopy(state)
        instructions = method.configure(problem, state)
        instructions_before = copy.deepcopy(dict(instructions))
        replies = answer(method, problem.task, instructions, data, stores)
        replies_before = copy.deepcopy(replies)
        following = method.aggregate(problem, state, replies)
        assert equal(state, state_before)
        assert equal(dict(instructions), instructions_before)
        assert equal(replies, replies_before)
        state = following
    for now, before in zip((problem, data, start), given, strict=True):
        assert equal(now, before)


def test_only_clients_of_the_problem_are_asked(method, granularity):
    """A method may not reach out to a client that is neither target nor retained participant."""
    skip_unsupported(method, granularity)
    problem = problem_for(method, granularity)
    state = method.begin(problem, initial_parameters(problem.task, seed=0))
    if not state.finished:
        asked = set(method.configure(problem, state))
        assert asked
        assert asked <= set(problem.targets) | set(problem.retained)


def test_every_exchange_is_counted(method):
    """The count of exchanges grows by one each time; progress and checkpoints rely on it."""
    counts: list[int] = []

    def note(state: UnlearningState) -> UnlearningState:
        counts.append(state.exchanges)
        return state

    run(method, problem_for(method, min(method.info.granularities)), between=note)
    assert counts == list(range(len(counts)))


def test_an_unsupported_granularity_is_refused(method, granularity):
    """What the method cannot serve is refused by what it states about itself, and nothing else is."""
    target = TARGETS[granularity]
    if granularity in method.info.granularities:
        check_supports(method, target)
    else:
        with pytest.raises(UnsupportedRequest, match=granularity):
            check_supports(method, target)


def test_the_refusal_follows_the_stated_granularities(method):
    """A method that states client level only is refused for samples, with its title in the message."""

    class ClientsOnly:
        info = replace(method.info, granularities=frozenset({Granularity.CLIENT}))

    check_supports(ClientsOnly(), TARGETS[Granularity.CLIENT])
    with pytest.raises(UnsupportedRequest, match=rf"{re.escape(method.info.title)} .*2 samples of client a"):
        check_supports(ClientsOnly(), TARGETS[Granularity.SAMPLE])


def test_a_method_states_everything_about_itself(method):
    """Name, title, source, at least one granularity, and needs from the list of needs."""
    info = method.info
    assert isinstance(info, MethodInfo)
    assert info.name
    assert info.title
    assert len(info.source) > 10
    assert info.granularities
    assert info.granularities <= set(Granularity)
    assert info.needs <= set(Need)
    assert isinstance(info.several_at_once, bool)


def test_the_registry_knows_a_method_by_its_own_name():
    """Key and stated name agree, and titles are unique."""
    assert {name: METHODS[name].info.name for name in METHODS} == {name: name for name in METHODS}
    assert len({method.info.title for method in METHODS.values()}) == len(METHODS)
    assert all(method_named(name) is METHODS[name] for name in METHODS)


def test_an_unknown_method_is_refused_with_the_list():
    """The message lists the methods there are."""
    with pytest.raises(UnknownMethod, match=", ".join(sorted(METHODS))):
        method_named("amnesia")


def test_unknown_parameters_are_refused(method):
    """A misspelt parameter is an error and never silently ignored."""
    with pytest.raises(InvalidRequest, match="no_such_parameter"):
        validated_parameters(method, {"no_such_parameter": 1})
    assert method.Parameters.model_json_schema()["additionalProperties"] is False


def test_parameters_have_defaults_and_cannot_be_changed(method):
    """A request without parameters is complete; the validated ones are frozen."""
    parameters = validated_parameters(method, {})
    assert validated_parameters(method, parameters.model_dump(mode="json")) == parameters
    assert type(parameters).model_config["frozen"]


def test_the_forgotten_data_decide_the_result(method):
    """Methods that ask the requester must give another model for other samples to forget."""
    if Need.REQUESTER_ONLINE not in method.info.needs:
        pytest.skip("the requester's examples do not enter this method")
    if Granularity.SAMPLE not in method.info.granularities:
        pytest.skip("the method refuses this granularity, which another test checks")
    if method.info.name == "fedau-learning":
        pytest.skip("its auxiliary head has learnt before what is to be forgotten, all of it together")
    problem = problem_for(method, Granularity.SAMPLE)
    other = replace(problem, targets={"a": Forget(sample_ids=frozenset({"a-0", "a-2"}))})
    assert not equal(run(method, problem), run(method, other))
