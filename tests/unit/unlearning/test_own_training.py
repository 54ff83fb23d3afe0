"""Training of the user's own in place of the built-in loop: what it is given, and what it may not do."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from tests.raising import raises
from tests.tasks import noise, tiny_classification
from unlearning.errors import AppError
from unlearning.tasks import Examples
from unlearning.training import TrainingSettings, initial_parameters, train

TASK = tiny_classification(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
DATA = noise(10)
SETTINGS = TrainingSettings(epochs=2, batch_size=4, learning_rate=0.3, seed=5)


def with_frozen_trunk() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return model


FROZEN = tiny_classification(with_frozen_trunk)


def own_sgd(model, loader, settings, after_step=None) -> float:
    """The built-in loop, as a user would write it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, maximize=settings.maximize)
    total, seen = 0.0, 0
    for _ in range(settings.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total, seen = total + loss.item() * len(targets), seen + len(targets)
            if after_step is not None and after_step(model):
                return total / seen
    return total / seen


@pytest.mark.parametrize("task", [TASK, FROZEN])
def test_the_loop_written_by_oneself_gives_the_bits_of_the_built_in_one(task):
    """The loader's order is that of the seed, the model starts where the federation's is."""
    start = initial_parameters(task, 1)
    own = train(replace(task, train=own_sgd), start, DATA, SETTINGS)
    built_in = train(task, start, DATA, SETTINGS)
    assert np.array_equal(own.parameters, built_in.parameters)
    assert own.loss == pytest.approx(built_in.loss)
    assert own.num_examples == 10


def test_the_loader_is_one_that_libraries_take():
    """A DataLoader with a length, a batch size and a map-style data set, as Trainers and Opacus want."""
    seen = {}

    def look(model, loader, settings) -> float:
        seen.update(batches=len(loader), size=loader.batch_size, examples=len(loader.dataset))
        seen["one"] = loader.dataset[3]
        return 0.0

    train(replace(TASK, train=look), initial_parameters(TASK, 0), DATA, SETTINGS)
    assert (seen["batches"], seen["size"], seen["examples"]) == (3, 4, 10)
    assert torch.equal(seen["one"][0], DATA.inputs[3])
    assert seen["one"][1] == 1


@pytest.mark.parametrize("mapped", [False, True])
def test_its_data_set_can_be_read_by_loaders_of_the_users_own(mapped):
    """A Trainer makes one of the data set; others split it, draw some of it or none, or collate by themselves."""
    data = Examples.from_arrays(DATA.inputs.numpy(), DATA.targets.numpy(), DATA.ids) if mapped else DATA

    def read(model, loader, settings) -> float:
        part = Subset(loader.dataset, [7, 2, 5])
        by_hand = DataLoader(part, batch_size=3, collate_fn=lambda items: [len(item) for item in items])
        (found,) = DataLoader(part, batch_size=3)
        (same,) = DataLoader(part, batch_size=3, collate_fn=loader.collate_fn)
        for inputs, targets in (found, same):
            assert torch.equal(inputs, DATA.inputs[[7, 2, 5]])
            assert torch.equal(targets, DATA.targets[[7, 2, 5]])
        assert list(by_hand) == [[2, 2, 2]]
        assert len(loader.dataset.__getitems__([])) == 0
        return 0.0

    train(replace(TASK, train=read), initial_parameters(TASK, 0), data.select(np.arange(10)), SETTINGS)


@pytest.mark.parametrize(
    "loss", [0.5, 1, np.float32(0.5), np.float64(0.5), torch.tensor(0.5), torch.tensor([0.5])]
)
def test_its_loss_is_a_number_of_any_library(loss):
    """Python's, NumPy's (a mean of losses is one), or a tensor."""
    task = replace(TASK, train=lambda *_: loss)
    assert train(task, initial_parameters(TASK, 0), DATA, SETTINGS).loss == float(loss)


def test_who_takes_after_step_can_be_watched():
    """Training ends where it says so; who does not take it says which function it is."""
    steps = []

    def stop_at_two(model) -> bool:
        steps.append(model)
        return len(steps) == 2

    start = initial_parameters(TASK, 0)
    train(replace(TASK, train=own_sgd), start, DATA, SETTINGS, after_step=stop_at_two)
    assert len(steps) == 2
    blind = replace(TASK, train=lambda *_: 0.0)
    with raises(AppError, "no-after-step"):
        train(blind, start, DATA, SETTINGS, after_step=stop_at_two)


def change_trunk(model, loader, settings) -> float:
    with torch.no_grad():
        model[0].bias.add_(1)
    return 0.0


def unfreeze(model, loader, settings) -> float:
    model.requires_grad_(True)
    return 0.0


def divide(model, loader, settings) -> float:
    return 1 / 0


@pytest.mark.parametrize(
    ("own", "code"),
    [
        (lambda *_: float("nan"), "diverged"),
        (lambda *_: None, "no-loss"),
        (lambda *_: True, "no-loss"),
        (lambda *_: torch.zeros(2), "no-loss"),
        (change_trunk, "changed-frozen-part"),
        (unfreeze, "changed-requires-grad"),
        (divide, "raised"),
    ],
)
def test_what_it_may_not_do_is_said_in_one_sentence_with_its_name(own, code):
    """Module and function, and what was got."""
    with raises(AppError, code, function=f"{__name__}.{own.__qualname__}"):
        train(replace(FROZEN, train=own), initial_parameters(FROZEN, 0), DATA, SETTINGS)
