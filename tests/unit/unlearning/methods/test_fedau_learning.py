"""FedAU during learning: the client's two heads against gradients by hand, the server's mix, and the refusals."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.tasks import tiny_classification
from unlearning.errors import MethodFailed
from unlearning.local import answer
from unlearning.methods.fedau_learning import AuxiliaryHead
from unlearning.methods.method import PreparedStore, Problem, Reply, UnlearningState
from unlearning.methods.preparation import LocalRound
from unlearning.methods.registry import METHODS
from unlearning.requests import Forget, Granularity, Target
from unlearning.runtime.stores import MemoryStore
from unlearning.tasks.task import Examples, Task
from unlearning.training import Trained, TrainingSettings, initial_parameters, train

METHOD = METHODS["fedau-learning"]
TRAINING = TrainingSettings(epochs=1, batch_size=100, learning_rate=0.3)
RATE = 0.3


# positions in the flat vector: trunk 0-3, head weight 4-9, head bias 10-12
TASK = tiny_classification(lambda: nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 3)), num_classes=3)
MODEL = initial_parameters(TASK, 0)
DATA = Examples(
    torch.tensor([[1.0, 2.0], [-1.0, 0.5], [0.3, -2.0]], dtype=torch.float64),
    torch.tensor([0, 1, 2]),
    np.array(["x", "y", "z"]),
)


def options(**values) -> AuxiliaryHead:
    return AuxiliaryHead.model_validate(values)


def ordinary() -> Trained:
    return train(TASK, MODEL, DATA, TRAINING)


def one_round(store: MemoryStore, number: int = 1, client: str = "u", task: Task = TASK, **values) -> Trained:
    """A client's part of a round that starts from the model of seed 0."""
    work = LocalRound(
        client_id=client,
        number=number,
        task=task,
        model=MODEL,
        examples=DATA,
        training=TRAINING,
        store=store,
    )
    return options(**values).train(work, ordinary)


def store_with(head: np.ndarray, number: int = 1, **values) -> MemoryStore:
    store = MemoryStore()
    store.save(options(**values).key, number, {"head": head})
    return store


def kept_head(store: MemoryStore, number: int) -> np.ndarray:
    (key,) = store.list_keys()
    return np.asarray(store.load(key, number)["head"])


def one_hot(labels: torch.Tensor) -> np.ndarray:
    return np.eye(3)[labels.numpy()]


def step_by_hand(model: np.ndarray, head: np.ndarray, labels: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """One step of gradient descent on CE(head, y) + CE(aux, y_aux): trunk and head, and the auxiliary head."""
    inputs, trunk = DATA.inputs.numpy(), model[:4].reshape(2, 2)
    features = inputs @ trunk.T
    trunk_slope, new_heads = np.zeros((2, 2)), []
    for flat, targets in ((model[4:], DATA.targets), (head, labels)):
        weight, bias = flat[:6].reshape(3, 2), flat[6:]
        logits = features @ weight.T + bias
        softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        slope = (softmax - one_hot(targets)) / len(inputs)
        trunk_slope += (slope @ weight).T @ inputs
        new_heads.append(flat - RATE * np.concatenate([(slope.T @ features).ravel(), slope.sum(axis=0)]))
    return np.concatenate([(trunk - RATE * trunk_slope).ravel(), new_heads[0]]), new_heads[1]


SAVED = np.arange(9.0) / 10


@pytest.mark.parametrize(
    ("values", "start", "labels"),
    [
        ({"gamma": 0.25}, 0.75 * MODEL[4:] + 0.25 * SAVED, options().labels(DATA, 3)),
        ({"class": 1}, SAVED, torch.tensor([1, 1, 1])),
    ],
    ids=["client", "class"],
)
def test_a_round_is_one_step_on_the_sum_of_both_losses(values, start, labels):
    """Trunk, head and auxiliary head after one full batch, with the mix γ of saved and global head before.

    For a class the auxiliary head is not mixed, and y_aux is the class for every example.
    """
    store = store_with(SAVED, **values)
    trained = one_round(store, number=2, **values)
    expected, expected_head = step_by_hand(MODEL, start, labels)
    np.testing.assert_allclose(trained.parameters, expected, atol=1e-12)
    np.testing.assert_allclose(kept_head(store, 2), expected_head, atol=1e-12)


class Tokens(nn.Module):
    """`TASK`'s model as transformers with a causal head are: the head is applied to each token, and one is pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(2, 2, bias=False), nn.Linear(2, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = self.trunk(inputs)
        return self.head(torch.stack([torch.ones_like(features), features], dim=1))[:, -1]


class Flattened(Tokens):
    """The same with tokens and examples in one dimension while the head is applied."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = self.trunk(inputs)
        return self.head(torch.cat([features, features], dim=0))[: len(inputs)]


class Twice(Tokens):
    """The same with a head that is called once per token, and another token last."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = self.trunk(inputs)
        first, _ = self.head(features), self.head(torch.ones_like(features))
        return first


@pytest.mark.parametrize("build", [Tokens, Flattened, Twice])
def test_a_head_on_tokens_has_the_second_one_pooled_as_it_is(build):
    """As in GPT-2 and Llama: their rounds failed, or took the last token's features for the example's."""
    task, store = tiny_classification(build, num_classes=3), store_with(SAVED, gamma=0.25)
    trained = one_round(store, number=2, task=task, gamma=0.25)
    start = 0.75 * MODEL[4:] + 0.25 * SAVED
    expected, expected_head = step_by_hand(MODEL, start, options().labels(DATA, 3))
    np.testing.assert_allclose(trained.parameters, expected, atol=1e-12)
    np.testing.assert_allclose(kept_head(store, 2), expected_head, atol=1e-12)


def test_only_trunk_and_head_are_sent_and_their_loss_reported():
    """The vector is the model's; the loss is CE(head, y) before the step."""
    trained = one_round(MemoryStore())
    assert trained.parameters.size == 13
    assert trained.loss == pytest.approx(ordinary().loss, abs=1e-12)


def test_a_client_that_does_not_leave_trains_as_ever():
    """Same bits, and nothing is kept."""
    store = MemoryStore()
    trained = one_round(store, client="v", clients="u,w")
    assert np.array_equal(trained.parameters, ordinary().parameters)
    assert store.list_keys() == []


def test_a_round_that_is_done_again_gives_the_same_head():
    """It starts from the entry of the round before, not from its own."""
    store = store_with(np.arange(9.0))
    one_round(store, number=2)
    first = kept_head(store, 2)
    one_round(store, number=2)
    assert np.array_equal(kept_head(store, 2), first)


def test_a_head_that_was_trained_for_something_else_is_erased():
    """After the setting has named another class, the head of the first would subtract the wrong one."""
    store = MemoryStore()
    one_round(store, number=1, **{"class": 1})
    one_round(store, number=2, **{"class": 2})
    assert store.list_keys() == [options(**{"class": 2}).key]
    assert store.list_keys() != [options(**{"class": 1}).key]


def test_wrong_labels_are_wrong_and_stay_the_same():
    """Every example, whatever its order; another seed gives others."""
    many = Examples(
        torch.zeros(300, 2), torch.arange(300) % 3, np.array([f"id-{number}" for number in range(300)])
    )
    labels = options().labels(many, 3)
    assert not (labels == many.targets).any()
    assert set(labels.tolist()) == {0, 1, 2}
    backwards = many.select(np.arange(300)[::-1].copy())
    assert torch.equal(options().labels(backwards, 3), labels.flip(0))
    assert not torch.equal(options(seed=1).labels(many, 3), labels)


def test_with_samples_named_the_others_keep_their_labels():
    """y_aux = y for kept examples."""
    labels = options(samples="y").labels(DATA, 3)
    assert labels[0] == 0
    assert labels[1] != 1
    assert labels[2] == 2


def problem(forgets: dict[str, Forget], prepared: AuxiliaryHead) -> Problem:
    return Problem(
        task=TASK,
        targets=forgets,
        retained=("r",),
        schedule=lambda _: TRAINING,
        training=TRAINING,
        parameters=METHOD.Parameters(),
        kept=PreparedStore(preparation=prepared, store=MemoryStore(), next_store=MemoryStore()),
    )


def answered(head: np.ndarray, num_examples: int = 3, *, has_head: bool = True) -> Reply:
    return Reply(vector=head, num_examples=num_examples, values={"has_head": has_head})


def ended(given: Problem, replies: dict[str, Reply]) -> UnlearningState:
    return METHOD.aggregate(given, METHOD.begin(given, MODEL), replies)


EVERYTHING, CLASS = Forget(everything=True), Forget(classes=frozenset({1}))
ONE, TWO = np.arange(9.0), np.full(9, 2.0)


def test_clients_mix_the_mean_auxiliary_head_with_nine_tenths():
    """W' = 0.1 · W_head + 0.9 · (W_1 + W_2)/2; the trunk stays."""
    asked = problem({"u": EVERYTHING, "v": EVERYTHING}, options())
    state = ended(asked, {"u": answered(ONE), "v": answered(TWO)})
    assert state.finished
    np.testing.assert_array_equal(state.parameters[:4], MODEL[:4])
    np.testing.assert_allclose(state.parameters[4:], 0.1 * MODEL[4:] + 0.9 * (ONE + TWO) / 2, atol=1e-12)


def test_a_class_is_subtracted_whole():
    """W' = W_head − mean W_aux, also of a client that holds none of the class; one without a head is left out."""
    asked = problem(dict.fromkeys("uvw", CLASS), options(**{"class": 1}))
    replies = {"u": answered(ONE), "v": answered(TWO, 0), "w": answered(np.zeros(9), has_head=False)}
    state = ended(asked, replies)
    np.testing.assert_allclose(state.parameters[4:], MODEL[4:] - (ONE + TWO) / 2, atol=1e-12)


def test_a_target_without_a_head_fails_for_good():
    """It does not train while it waits to be forgotten."""
    with pytest.raises(MethodFailed) as caught:
        ended(problem({"u": EVERYTHING}, options()), {"u": answered(np.zeros(9), has_head=False)})
    assert not caught.value.retryable


def test_the_client_answers_its_newest_head():
    """And how many examples are to be forgotten."""
    store = store_with(ONE, 1)
    store.save(options().key, 2, {"head": TWO})
    asked = problem({"u": EVERYTHING}, options())
    instructions = METHOD.configure(asked, METHOD.begin(asked, MODEL))
    found = answer(METHOD, asked, instructions, {"u": DATA}, {"u": store})["u"]
    assert (found.vector.tolist(), found.num_examples) == (TWO.tolist(), 3)
    assert found.values == {"has_head": True}


@pytest.mark.parametrize(
    ("prepared", "target", "needed"),
    [
        ({"clients": "3,4"}, Target(Granularity.CLIENT, "5"), "clients=3,4,5"),
        ({"clients": "3"}, Target(Granularity.SAMPLE, "3", frozenset({"x"})), "samples=ID"),
        ({"samples": "x,y"}, Target(Granularity.SAMPLE, "3", frozenset({"x", "z"})), "samples=ID"),
        ({"samples": "x", "clients": "4"}, Target(Granularity.SAMPLE, "3", frozenset({"x"})), "clients=3,4"),
        ({"class": 1}, Target(Granularity.CLASS, class_label=2), "class=2"),
        ({"class": 1}, Target(Granularity.CLIENT, "3"), "clients=3"),
        ({"samples": "x,y"}, Target(Granularity.CLIENT, "3"), "clients=3"),
        ({}, Target(Granularity.CLASS, class_label=1), "class=1"),
    ],
)
def test_what_was_not_prepared_is_refused_with_the_setting(prepared, target, needed):
    """On admission and, should it get past it, by the method itself."""
    assert f'prepare = "fedau-learning {needed}' in options(**prepared).refusal(target)
    asked = problem({target.client_id or "u": target.forget}, options(**prepared))
    with pytest.raises(MethodFailed) as caught:
        METHOD.begin(asked, MODEL)
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("prepared", "target"),
    [
        ({}, Target(Granularity.CLIENT, "5")),
        ({"clients": "all"}, Target(Granularity.CLIENT, "5")),
        ({"clients": "3,4"}, Target(Granularity.CLIENT, "4")),
        ({"samples": "x,y"}, Target(Granularity.SAMPLE, "3", frozenset({"x"}))),
        ({"class": 1}, Target(Granularity.CLASS, class_label=1)),
    ],
)
def test_what_was_prepared_is_served(prepared, target):
    """No reason against it."""
    assert options(**prepared).refusal(target) == ""


def test_samples_and_a_class_at_once_are_refused():
    """One auxiliary head has one purpose."""
    with pytest.raises(ValidationError):
        options(samples="x", **{"class": 1})
