"""Frozen parameters and the buffers beside them stay at home: nothing of them is in the vector."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.raising import raises
from tests.tasks import initial_model, noise, tiny_classification
from unlearning.certified.tangents import train_with_tangents
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.errors import AppError, MethodFailed
from unlearning.evaluation import evaluate
from unlearning.methods.classifier_head import head_slots
from unlearning.methods.weight_negation import first_layer
from unlearning.parameters import at_home, flatten, layout, load, parts_of, state_to_save
from unlearning.tasks.ensemble import part, shard_task
from unlearning.tasks.task import Examples
from unlearning.training import (
    TrainingSettings,
    check_frozen_part,
    frozen_part,
    initial_parameters,
    model_with,
    train,
)

DATA = noise(11)
SETTINGS = TrainingSettings(epochs=2, batch_size=4, learning_rate=0.3, weight_decay=0.1, momentum=0.5, seed=5)


def frozen_backbone() -> nn.Module:
    """A random backbone with running statistics, frozen, below a linear head."""
    backbone = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh())
    return nn.Sequential(backbone.requires_grad_(False), nn.Linear(5, 2))


TASK = tiny_classification(frozen_backbone)


def features() -> Examples:
    """What the backbone makes of the data, by torch alone."""
    with torch.no_grad():
        made = initial_model(TASK, seed=0)[0].eval()(DATA.inputs)
    return Examples(made, DATA.targets, DATA.ids)


HEAD = tiny_classification(lambda: nn.Linear(5, 2))


def test_only_what_is_trained_travels():
    """The head's weight and bias, whatever is below it."""
    model = initial_model(TASK, seed=3)
    assert [slot.name for slot in layout(model)] == ["1.weight", "1.bias"]
    assert flatten(model).tolist() == [*model[1].weight.reshape(-1).tolist(), *model[1].bias.tolist()]
    load(model, np.arange(12.0))
    assert model[1].bias.tolist() == [10, 11]
    assert "0.1.num_batches_tracked" in at_home(model)


def test_a_model_without_frozen_parameters_travels_whole():
    """Running statistics too, as ever; nothing stays at home."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    names = [slot.name for slot in layout(model)]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    assert at_home(model) == {}
    assert frozen_part(HEAD) == ""


def test_training_a_head_on_a_frozen_backbone_is_logistic_regression_on_its_features():
    """Weight decay and momentum too; the backbone of seed 0 is below whatever head."""
    start = initial_parameters(TASK, 7)
    trained = train(TASK, start, DATA, SETTINGS)
    expected = train(HEAD, start, features(), SETTINGS)
    np.testing.assert_allclose(trained.parameters, expected.parameters, rtol=1e-12)
    np.testing.assert_allclose(
        evaluate(TASK, start, DATA).loss, evaluate(HEAD, start, features()).loss, rtol=1e-12
    )


def test_curvature_and_tangents_are_those_of_the_head():
    """Running statistics that are held are constants, through which derivatives go."""
    start = initial_parameters(TASK, 7)
    found = CurvatureProduct(TASK, start, DATA, kind=CurvatureKind.HESSIAN)(start)
    expected = CurvatureProduct(HEAD, start, features(), kind=CurvatureKind.HESSIAN)(start)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    tangents = np.random.default_rng(0).standard_normal((2, 12))
    _, carried = train_with_tangents(TASK, start, DATA, SETTINGS, tangents)
    _, wanted = train_with_tangents(HEAD, start, features(), SETTINGS, tangents)
    np.testing.assert_allclose(carried, wanted, rtol=1e-10)


def test_running_statistics_are_not_moved_by_training():
    """In training mode too the layer normalises by what it brought along."""
    model = model_with(TASK, initial_parameters(TASK, 0)).train()
    before = {name: tensor.clone() for name, tensor in at_home(model).items()}
    model(DATA.inputs)
    assert all(torch.equal(tensor, before[name]) for name, tensor in at_home(model).items())
    assert model.training
    assert not model[0][1].training


def load_pretrained(model: nn.Module) -> None:
    with torch.no_grad():
        model[0][0].weight.fill_(0.25)
        model[1].weight.fill_(0.5)


def test_a_machine_with_another_frozen_part_is_refused():
    """By the hash of names, shapes and bytes; who names none is not asked."""
    other = replace(TASK, load_pretrained=load_pretrained)
    check_frozen_part(TASK, frozen_part(TASK))
    check_frozen_part(TASK, "")
    assert len({frozen_part(TASK), frozen_part(other), ""}) == 3
    with raises(AppError, "other-frozen-part", here=frozen_part(other), server=frozen_part(TASK)):
        check_frozen_part(other, frozen_part(TASK))


def test_pre_trained_weights_of_the_frozen_part_are_read_where_the_model_runs():
    """A client has the backbone from the task, not from the server."""
    task = replace(TASK, load_pretrained=load_pretrained)
    start = initial_parameters(task, 0)
    model = model_with(task, start)
    assert (model[0][0].weight == 0.25).all()
    assert (start[:10] == 0.5).all()


def test_an_ensemble_of_frozen_backbones_has_one():
    """Each shard's head, and the votes; the backbone is the single model's and lies in memory once."""
    ensemble = shard_task(TASK, 3)
    vector = initial_parameters(ensemble, 4)
    assert vector.size == 3 + 3 * 12
    model = model_with(ensemble, vector)
    assert len({member[0][0].weight.data_ptr() for member in model.shards}) == 1
    assert torch.equal(model.shards[2][0][0].weight, initial_model(TASK, seed=0)[0][0].weight)
    vector[:3] = [0, 1, 0]
    alone = evaluate(TASK, vector[part(vector, 1, 3)], DATA).loss
    mean = shard_task(TASK, 3, vote="mean")
    np.testing.assert_allclose(evaluate(mean, vector, DATA).loss, alone, rtol=1e-12)


def test_a_saved_model_is_whole_and_says_what_travels():
    """Somebody else loads it as it is; a certificate's check knows which part was hashed."""
    model = model_with(TASK, initial_parameters(TASK, 0))
    state = state_to_save(model)
    goes, stays = parts_of(state)
    assert list(goes) == ["1.weight", "1.bias"]
    assert stays.keys() == at_home(model).keys()
    initial_model(TASK, seed=1).load_state_dict(state)
    assert list(parts_of(state_to_save(initial_model(HEAD, seed=0)))[0]) == ["weight", "bias"]


def test_methods_look_for_layers_among_what_is_trained():
    """NoT negates a layer that recovery can mend; FedAU has no use for a head that is frozen."""
    assert first_layer(initial_model(TASK, seed=0)) == ("1.weight",)
    assert [slot.name for slot in head_slots(TASK)] == ["1.weight", "1.bias"]

    def frozen_head() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
        model[1].requires_grad_(False)
        return model

    with pytest.raises(MethodFailed):
        head_slots(tiny_classification(frozen_head))


def test_a_model_of_which_nothing_is_trained_is_refused():
    """In a sentence that names the task."""
    with raises(AppError, "nothing-trained"):
        initial_parameters(tiny_classification(lambda: nn.Linear(3, 2).requires_grad_(False)), 0)
