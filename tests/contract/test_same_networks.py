"""One network that is made in two ways is one network to all methods: pre-trained parts are loaded, ties count once."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unlearning
from benchmarks.bench.batched_training import train_many
from tests.cases import LONG, slow_but
from tests.contract.test_task_kinds import TARGETS, TRAINING, data_of, prepared_for
from tests.tasks import initial_model, tiny_classification
from unlearning.certified.linear_head import linear_head
from unlearning.certified.tangents import train_with_tangents
from unlearning.errors import AppError, ConfigurationError, NumericalError, UnsupportedRequest
from unlearning.evaluation import evaluate
from unlearning.local import begin, learn, unlearn
from unlearning.methods import noisy_fine_tuning
from unlearning.methods.costs import training_flops
from unlearning.methods.registry import METHODS
from unlearning.parameters import Vector, at_home, flatten, layout, load, parts_of, state_to_save
from unlearning.tasks.task import Task
from unlearning.training import initial_parameters, structure, train
from unlearning.verification.gaussian_poison import plant, scores

DATA = data_of("built-in training")


@dataclass(frozen=True)
class SameNetwork:
    """The task as it may be written, the task that says the same more simply, and which methods refuse the first."""

    task: Task
    plain: Task
    refused: tuple[str, ...] = ()


def frozen_backbone() -> nn.Sequential:
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    return nn.Sequential(backbone.requires_grad_(False), nn.Linear(4, 3))


def backbone_from_a_checkpoint(model: nn.Module) -> None:
    """Fails on anything but the model of the builder, as a checkpoint of named tensors would."""
    assert isinstance(model, nn.Sequential)
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))


def pretrained_backbone() -> nn.Module:
    model = frozen_backbone()
    backbone_from_a_checkpoint(model)
    return model


class Transposed(nn.Module):
    """A decoder that has an encoder's weight."""

    def __init__(self, encoder: nn.Linear) -> None:
        super().__init__()
        self.weight = encoder.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(inputs, self.weight.T)


class AutoEncoder(nn.Module):
    """Two weights, each used two or three times: by modules of their own that are tied, or as one parameter."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        outer, inner, again, last = (nn.Linear(*shape) for shape in ((2, 4), (4, 4), (4, 4), (4, 3)))
        if tied:
            self.decoder = Transposed(outer)  # first, so the vector has the weight under this name
        self.outer, self.inner = outer, inner
        outer.bias = inner.bias = again.bias = None
        if tied:
            again.weight = inner.weight
            self.again, self.once_more = again, outer
        self.last, self.tied = last, tied

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(torch.tanh(self.outer(inputs))))
        if self.tied:
            return self.last(torch.tanh(self.once_more(self.decoder(torch.relu(self.again(hidden))))))
        decoded = torch.relu(self.inner(hidden)) @ self.outer.weight
        return self.last(torch.tanh(self.outer(decoded)))


def tied_head() -> nn.Module:
    """The head's weights are those of the layer below it; in the other form that layer is the head, used twice."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[4].weight, model[4].bias = model[2].weight, model[2].bias
    return model


def head_used_twice() -> nn.Module:
    first, second, _ = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 3)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), second)


class Masked(nn.Module):
    """One of four shares is left out by a mask, as in causal attention: of infinity, in the state or beside it."""

    def __init__(self, *, in_state: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 3)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, -torch.inf, 0.0]), persistent=in_state)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.softmax(self.first(inputs) + self.mask, dim=1))


def task_with(build_model, **changes) -> Task:
    return replace(tiny_classification(build_model, num_classes=3), **changes)


NETWORKS: Mapping[str, SameNetwork] = {
    "pre-trained frozen part": SameNetwork(
        task_with(frozen_backbone, load_pretrained=backbone_from_a_checkpoint), task_with(pretrained_backbone)
    ),
    "tied weights": SameNetwork(
        task_with(partial(AutoEncoder, tied=True)), task_with(partial(AutoEncoder, tied=False))
    ),
    "a constant mask": SameNetwork(
        task_with(partial(Masked, in_state=True)), task_with(partial(Masked, in_state=False))
    ),
    "tied head": SameNetwork(task_with(tied_head), task_with(head_used_twice), ("fedau", "fedau-learning")),
}


def unlearned(name: str, task: Task, start: Vector) -> Vector:
    method = METHODS[name]
    target = next(target for target in TARGETS if target.granularity in method.info.granularities)
    learnt = begin(task, TRAINING, prepared_for(method))
    learnt = learn(task, DATA, replace(learnt, parameters=start) if name != "sisa" else learnt, rounds=2)
    return unlearn(method, task, learnt, DATA, [target]).parameters


ANYWHERE = sorted(name for name in METHODS if not METHODS[name].info.rests_on_training)
CASES = [(name, kind) for kind, same in NETWORKS.items() for name in same.refused or ANYWHERE]
"""Where a network is refused by some, its ties are those that the others meet in the network before it."""


@pytest.mark.parametrize(("name", "kind"), slow_but(("fedau", "hf-kcu", "puf-special", "sisa"), CASES, LONG))
def test_a_method_gives_the_same_model_for_one_network(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To rounding, for gradients are summed in another order; or it is refused for want of the layer that it needs."""
    monkeypatch.setattr(
        noisy_fine_tuning, "add_noise", lambda clean, *_: clean
    )  # other noise for other rounding
    same = NETWORKS[kind]
    start = initial_parameters(same.plain, 0)
    try:
        expected = unlearned(name, same.plain, start)
    except (UnsupportedRequest, ConfigurationError):
        with pytest.raises((UnsupportedRequest, ConfigurationError)):
            unlearned(name, same.task, start)
        return
    if name in same.refused:
        with pytest.raises((UnsupportedRequest, ConfigurationError)):
            unlearned(name, same.task, start)
        return
    np.testing.assert_allclose(unlearned(name, same.task, start), expected, rtol=1e-9, atol=1e-12)


FROZEN = NETWORKS["pre-trained frozen part"]
TIED = NETWORKS["tied weights"]


def test_planted_noise_is_scored_on_the_pre_trained_network() -> None:
    """The data owner's verdict is of the network that the federation has, not of one with a random frozen part."""
    start = initial_parameters(FROZEN.plain, 0)
    noisy, planted = plant(DATA["c"], 0.5, 0.3, np.random.default_rng(0))
    model = train(FROZEN.plain, start, noisy, TRAINING).parameters
    np.testing.assert_array_equal(scores(FROZEN.task, model, planted), scores(FROZEN.plain, model, planted))


@pytest.mark.parametrize("same", NETWORKS.values(), ids=NETWORKS)
def test_whatever_computes_with_a_network_has_its_weights(same: SameNetwork) -> None:
    """Many trained at once, tangents, measures and operations."""
    starts = np.stack([initial_parameters(same.plain, seed) for seed in (0, 1)])
    found = [
        (
            train_many(task, starts, DATA["c"], [TRAINING, TRAINING]),
            train_with_tangents(task, starts[0], DATA["c"], TRAINING, starts)[1],
            evaluate(task, starts[0], DATA["c"]).loss,
            training_flops(task, DATA["c"]),
        )
        for task in (same.task, same.plain)
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_many_trained_at_once_go_where_each_goes_alone_on_a_pre_trained_network() -> None:
    """To rounding; a random frozen part would lead elsewhere."""
    start = initial_parameters(FROZEN.task, 0)
    together = train_many(FROZEN.task, start[None], DATA["c"], [TRAINING])[0]
    np.testing.assert_allclose(
        together, train(FROZEN.task, start, DATA["c"], TRAINING).parameters, rtol=1e-10
    )


def test_a_structure_has_no_weights_to_compute_with() -> None:
    """Names, shapes and ties only: reading a number of it is an error, never a random one."""
    for same in NETWORKS.values():
        model, whole = structure(same.task), initial_model(same.task, 0)
        assert layout(model) == layout(whole)
        assert list(at_home(model)) == list(at_home(whole))
        with pytest.raises(NotImplementedError):
            flatten(model)


def test_a_structure_leaves_a_builders_own_modules_alone() -> None:
    """A builder may give the same layers at each call."""
    layer = nn.Linear(2, 3)
    structure(task_with(lambda: nn.Sequential(layer)))
    assert not layer.weight.is_meta


@pytest.mark.slow
def test_one_place_makes_networks() -> None:
    """A second one would forget the pre-trained part: `build_model` is called in `unlearning.training` alone."""
    root = Path(unlearning.__file__).parents[1]
    folders = ("unlearning", "strategies", "client", "server", "benchmarks", "examples")
    calls = [
        path.relative_to(root).as_posix()
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
        if "tests" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".build_model", "_untrained")))
        or (isinstance(node, ast.ImportFrom) and "_untrained" in [name.name for name in node.names])
    ]
    assert set(calls) == {"unlearning/training.py"}


def test_tied_weights_are_in_the_vector_once() -> None:
    """Under the first of their names; writing a vector reaches every use."""
    model = initial_model(TIED.task, 0)
    assert [slot.name for slot in layout(model)] == [
        "decoder.weight",
        "inner.weight",
        "last.weight",
        "last.bias",
    ]
    load(model, np.arange(float(flatten(model).size)))
    assert model.outer.weight is model.once_more.weight is model.decoder.weight
    assert model.again.weight[0].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("layers", ["", "outer.weight", "outer.weight,once_more.weight,decoder.weight"])
def test_not_negates_a_tied_weight_once_by_whichever_name(layers: str) -> None:
    """Two names of one tensor would turn it back."""
    start = initial_parameters(TIED.task, 0)
    learnt = replace(begin(TIED.task, TRAINING), parameters=start)
    found = unlearn("not", TIED.task, learnt, DATA, [TARGETS[0]], layers=layers).parameters
    np.testing.assert_array_equal(found, np.concatenate([-start[:8], start[8:]]))


def test_a_saved_model_with_tied_weights_has_the_hash_of_its_vector() -> None:
    """The file has every name; what was certified is the vector."""
    state = state_to_save(initial_model(TIED.task, 0))
    goes, stays = parts_of(state)
    assert (
        np.concatenate([one.flatten() for one in goes.values()]).tolist()
        == initial_parameters(TIED.task, 0).tolist()
    )
    assert not stays
    state["again.weight"] = state["again.weight"] + 1  # loaded last, this copy would be the model's
    assert "again.weight" in parts_of(state)[0]


def test_a_saved_model_with_a_mask_has_the_hash_of_its_vector() -> None:
    """The file is whole, and loads into the user's own network; nothing counts as frozen."""
    task = NETWORKS["a constant mask"].task
    state = state_to_save(initial_model(task, 0))
    goes, stays = parts_of(state)
    assert "mask" in state
    assert not stays
    assert list(goes) == ["first.weight", "first.bias", "last.weight", "last.bias"]
    Masked(in_state=True).double().load_state_dict(state)


def test_parameters_that_share_memory_and_are_two_are_refused() -> None:
    """On a GPU they would be two, and on another machine one."""

    def half_tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
        model[0].weight = nn.Parameter(model[1].weight.detach()[:2].T)
        return model

    with pytest.raises(AppError):
        initial_parameters(task_with(half_tied), 0)


def test_a_layer_that_is_used_below_the_last_one_too_is_no_linear_head() -> None:
    """The loss of a layer on its own outputs is not convex, and the constants are not those of logistic regression."""
    square = nn.Linear(3, 3)
    for model in (nn.Sequential(square, nn.Tanh(), square), tied_head()[2:]):
        with pytest.raises(NumericalError):
            linear_head(task_with(lambda model=model: model))
