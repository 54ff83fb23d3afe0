"""Models that are made of a template are those that their builder makes, or no template is made of it."""

import gc
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch
import torchvision
from torch import nn

from unlearning.parameters import flatten, load
from unlearning.structures import from_template, template
from unlearning.tasks.task import Task
from unlearning.training import initial_parameters, model_with, task_of, untrained_parameters


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 5)
        self.out = nn.Linear(5, 7, bias=False)
        self.out.weight = self.words.weight
        self.sizes = [7, 5]

    def forward(self, inputs):
        self.sizes.append(len(inputs))
        return self.out(self.words(inputs).mean(dim=1))


class Positions(nn.Module):
    """Has a constant that no state has, and a count in its state."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 3)
        self.register_buffer("places", torch.randn(6), persistent=False)
        self.register_buffer("count", torch.tensor(3))

    def forward(self, inputs):
        return self.line(inputs + self.places)


class Holding(nn.Module):
    """Computes by what `held` makes of its layer, beside the layer's registered place."""

    def __init__(self, held):
        super().__init__()
        self.line = nn.Linear(6, 3)
        self.held = held(self.line)

    def forward(self, inputs):
        return self.held[0](inputs)


class Aliased(nn.Module):
    """Has a buffer that looks at its weights."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 3)
        self.register_buffer("seen", self.line.weight.detach(), persistent=False)

    def forward(self, inputs):
        return inputs @ self.seen.T


def hooked():
    model = nn.Sequential(nn.Linear(6, 3))
    scale = nn.Parameter(torch.ones(3))
    model.register_parameter("scale", scale)
    model.register_forward_hook(lambda *given: given[-1] * scale)
    return model


ROWS = torch.linspace(-1, 1, 24).reshape(4, 6)
PLAIN = {
    "layers": (lambda: nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 3)), ROWS),
    "tied": (Tied, torch.arange(12).reshape(4, 3) % 7),
    "constant": (Positions, ROWS),
    "normalised": (lambda: nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 3)), ROWS),
    "pictures": (
        partial(torchvision.models.resnet18, num_classes=3),
        torch.linspace(0, 1, 6144).reshape(2, 3, 32, 32),
    ),
    "attention": (
        lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True),
        ROWS.reshape(2, 2, 6),
    ),
    "strided": (lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), torch.ones(1, 3, 5, 5)),
    "evaluated": (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).eval(), ROWS),
}
OTHERS = {
    "closure": (partial(Holding, lambda line: [lambda inputs: line(inputs)]), ROWS),
    "method": (partial(Holding, lambda line: [line.forward]), ROWS),
    "list of layers": (partial(Holding, lambda line: [line]), ROWS),
    "alias": (Aliased, ROWS),
    "hook": (hooked, ROWS),
    "spectral norm": (lambda: nn.utils.spectral_norm(nn.Linear(6, 3)), ROWS),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), ROWS),
    "recurrent": (lambda: nn.LSTM(6, 3), ROWS),
}


def built(build, seed=0):
    torch.manual_seed(seed)
    return build()


def outputs(model, rows):
    found = model(rows)
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
def test_a_model_with_parameters_is_the_one_that_is_built(name):
    build, rows = {**PLAIN, **OTHERS}[name]
    task = Task.classifier(name, build, num_classes=3)
    own = initial_parameters(task, seed=5)

    for _ in range(2):
        found, expected = model_with(task, own), built(build)
        load(expected, own)
        assert [*found.state_dict()] == [*expected.state_dict()]
        assert {key: (value.stride(), value.dtype) for key, value in found.state_dict().items()} == {
            key: (value.stride(), value.dtype) for key, value in expected.state_dict().items()
        }
        assert [type(one).__name__ for one in found.modules()] == [
            type(one).__name__ for one in expected.modules()
        ]
        assert [one.training for one in found.modules()] == [one.training for one in expected.modules()]
        assert torch.equal(outputs(found, rows), outputs(expected, rows))
        with torch.no_grad():
            for one in found.state_dict().values():
                one.add_(1)  # of this model alone
    assert (flatten(model_with(task, own)) == own).all()


@pytest.mark.parametrize("name", [*PLAIN])
def test_a_plain_model_is_built_once(name):
    build, _ = PLAIN[name]
    calls = []
    task = Task.classifier(name, lambda: calls.append(name) or build(), num_classes=3)
    own = untrained_parameters(task, seed=1)
    calls.clear()

    models = [model_with(task, own) for _ in range(3)]

    assert calls == [name]
    places = [one.data_ptr() for model in models for one in model.state_dict().values() if one.numel()]
    assert len({*places}) == len(places) or name == "tied"


@pytest.mark.parametrize("name", [*OTHERS])
def test_a_model_that_may_refer_to_its_own_modules_has_no_template(name):
    assert template(built(OTHERS[name][0])) is None


def test_a_frozen_model_has_no_template():
    model = nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3))
    model[0].requires_grad_(False)

    assert template(model) is None


@pytest.mark.parametrize(("local_layers", "builds"), [(("1.",), 3), ((), 0)])
def test_a_task_that_a_message_brings_is_built_once_at_most(local_layers, builds):
    """Each message has its own where layers are local: the site's values of them come with it."""
    calls = []
    build = lambda: calls.append(1) or nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3))  # noqa: E731
    task = replace(Task.classifier("local", build, num_classes=3), local_layers=local_layers)
    own = initial_parameters(task, seed=0)
    model_with(task, own)
    calls.clear()

    for _ in range(3):
        model_with(replace(task, load_pretrained=lambda _: None), own)

    assert len(calls) == builds


def test_what_a_model_changes_of_itself_is_not_in_the_next():
    made = template(built(Tied))
    first, second = from_template(made), from_template(made)

    outputs(first, PLAIN["tied"][1])

    assert first.sizes == [7, 5, 4]
    assert second.sizes == [7, 5]
    assert from_template(made).out.weight is not second.out.weight
    assert second.out.weight is second.words.weight


def test_a_template_holds_no_weights():
    made = template(built(Positions))

    assert {name for name, one in made.named_parameters() if one.is_meta} == {"line.weight", "line.bias"}
    assert not made.places.is_meta


def test_a_task_of_this_very_model_has_it_each_time():
    task = Task.classifier("layers", PLAIN["layers"][0], num_classes=3)
    own = initial_parameters(task, seed=0)
    model = model_with(task, own)

    assert model_with(task_of(task, model), own) is model


def test_a_model_is_gone_with_its_last_reference():
    task = Task.classifier("pictures", PLAIN["pictures"][0], num_classes=3)
    own = initial_parameters(task, seed=0)
    gc.collect()
    gc.disable()
    try:
        references = [weakref.ref(one) for one in model_with(task, own).parameters()]
        held = sum(one() is not None for one in references)
    finally:
        gc.enable()

    assert held == 0
