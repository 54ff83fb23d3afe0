"""The models: sizes, shapes, gradients and second derivatives."""

from collections.abc import Mapping
from math import prod

import pytest
import torch
from torch import Tensor, nn

from tests.cases import LONG, slow_but
from unlearning.errors import ConfigurationError, DataError
from unlearning.tasks import TaskSettings, losses, make_task
from unlearning.tasks.models import MODELS, Kind, Shape, model_builder, unfit_input
from unlearning.tasks.vit import Attention

NAMES = [name for name, info in MODELS.items() if not info.package]
"""Those that are always there; test_mit.py has the other."""
TINY: Mapping[str, Shape] = dict.fromkeys(NAMES, (1, 8, 8)) | {
    "lenet": (1, 28, 28),
    "resnet18": (3, 8, 8),
    "res-unet": (3, 8, 8),
}


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def tiny(name: str) -> tuple[nn.Module, Tensor]:
    """A float64 model and its loss on two examples."""
    torch.manual_seed(0)
    info, shape = MODELS[name], TINY[name]
    model = info.factory(shape, 3).double()
    inputs = torch.randn(2, *shape, dtype=torch.float64)
    if info.kind is Kind.SEGMENTATION:
        targets = torch.randint(3, (2, *shape[1:]))
        return model, losses.cross_entropy_and_dice(model(inputs), targets)
    return model, losses.cross_entropy(model(inputs), torch.tensor([0, 2]))


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("logistic", (1, 28, 28), 7_850),
        ("mlp", (1, 28, 28), 199_210),
        ("cnn", (1, 28, 28), 188_234),
        ("cnn", (1, 8, 8), 188_234),
        ("small-cnn", (3, 32, 32), 94_762),
        ("lenet", (1, 28, 28), 61_706),
        ("resnet18", (3, 32, 32), 11_173_962),
    ],
)
def test_a_model_has_its_published_size(name: str, shape: Shape, count: int) -> None:
    """Costs and comparisons with the papers rest on these numbers."""
    assert num_parameters(MODELS[name].factory(shape, 10)) == count


def test_resnet18_is_the_one_of_the_paper() -> None:
    """62 tensors; every norm is a GroupNorm of 2 groups; no convolution has a bias; no max-pooling."""
    modules = list(MODELS["resnet18"].factory((3, 32, 32), 10).modules())
    norms = [module for module in modules if isinstance(module, nn.GroupNorm)]
    convolutions = [module for module in modules if isinstance(module, nn.Conv2d)]
    assert len(list(modules[0].parameters())) == 62
    assert {(norm.num_groups, norm.eps) for norm in norms} == {(2, 1e-5)}
    assert len(norms) == len(convolutions) == 20
    assert all(convolution.bias is None for convolution in convolutions)
    assert not any(isinstance(module, nn.MaxPool2d | nn.BatchNorm2d) for module in modules)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (name, shape)
        for name in NAMES
        for shape in ((1, 8, 8), (1, 28, 28), (3, 32, 32))
        if unfit_input(name, shape) is None
    ],
)
def test_a_model_returns_logits_of_the_promised_shape(name: str, shape: Shape) -> None:
    """(n, classes), or one logit vector a pixel, for every input that the model takes."""
    logits = MODELS[name].factory(shape, 7)(torch.zeros(2, *shape))
    pixels = shape[1:] if MODELS[name].kind is Kind.SEGMENTATION else ()
    assert logits.shape == (2, 7, *pixels)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_a_gradient(name: str) -> None:
    """No tensor is left out of the forward pass."""
    model, loss = tiny(name)
    loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        if "query_key_value.bias" not in key:  # the key's part has gradient 0 by symmetry of softmax
            assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", slow_but({*NAMES} - {"resnet18"}, NAMES, LONG))
def test_double_backward_gives_a_symmetric_hessian(name: str) -> None:
    """u·Hv = v·Hu and not 0: curvature methods work on every model."""
    model, loss = tiny(name)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    u = [torch.randn_like(parameter) for parameter in parameters]
    v = [torch.randn_like(parameter) for parameter in parameters]

    def product(direction: list[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            gradients, parameters, direction, retain_graph=True, materialize_grads=True
        )

    u_h_v = sum(torch.sum(a * b) for a, b in zip(u, product(v), strict=True))
    v_h_u = sum(torch.sum(a * b) for a, b in zip(v, product(u), strict=True))
    assert isinstance(u_h_v, Tensor)
    assert u_h_v.abs() > 1e-6
    torch.testing.assert_close(u_h_v, v_h_u, rtol=1e-8, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_initial_weights_depend_on_the_seed_only(name: str) -> None:
    """Machines that build the model apart from each other start from the same one."""

    def initial(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return [parameter.detach() for parameter in MODELS[name].factory(TINY[name], 3).parameters()]

    first, again, other = initial(1), initial(1), initial(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", [name for name in NAMES if MODELS[name].kind is Kind.CLASSIFICATION])
def test_a_classifier_ends_in_its_linear_head(name: str) -> None:
    """Methods that work on the head find it as the last module."""
    head = list(MODELS[name].factory(TINY[name], 3).modules())[-1]
    assert isinstance(head, nn.Linear)
    assert head.out_features == 3


def test_attention_is_torchs_own() -> None:
    """Written out for its second derivative, it has the values of `nn.MultiheadAttention`."""
    torch.manual_seed(0)
    attention = Attention(8, 2).double()
    reference = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    reference.in_proj_weight = attention.query_key_value.weight
    reference.in_proj_bias = attention.query_key_value.bias
    reference.out_proj.load_state_dict(attention.output.state_dict())
    tokens = torch.randn(3, 5, 8, dtype=torch.float64)
    expected, _ = reference(tokens, tokens, tokens)
    torch.testing.assert_close(attention(tokens), expected, rtol=0, atol=1e-14)


def own_classifier(input_shape: Shape, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), num_classes))


def own_segmenter(input_shape: Shape, num_classes: int) -> nn.Module:
    return nn.Conv2d(input_shape[0], num_classes, 1)


def own_regressor(input_shape: Shape, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), num_classes + 1))


@pytest.mark.parametrize(
    ("factory", "kind"), [("own_classifier", Kind.CLASSIFICATION), ("own_segmenter", Kind.SEGMENTATION)]
)
def test_a_users_own_model_is_found_and_its_kind_seen(factory: str, kind: Kind) -> None:
    """An import string is enough to bring a model."""
    builder, seen = model_builder(f"{__name__}:{factory}", (3, 4, 4), 2)
    assert seen is kind
    assert isinstance(builder(), nn.Module)


def test_a_users_own_model_with_other_outputs_is_refused() -> None:
    """The message says which shape was expected and which came."""
    with pytest.raises(DataError):
        model_builder(f"{__name__}:own_regressor", (3, 4, 4), 2)


def test_looking_at_a_users_own_model_leaves_the_random_state_alone() -> None:
    """Building it once more to see its kind does not change what is drawn after."""
    before = torch.get_rng_state()
    model_builder(f"{__name__}:own_classifier", (3, 4, 4), 2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "name", ["resnet99", "no.such.package:model", f"{__name__}:missing", f"{__name__}:TINY"]
)
def test_a_model_that_is_not_there_is_refused_by_name(name: str) -> None:
    """Unknown name, package, attribute, or something that is no factory."""
    with pytest.raises(ConfigurationError):
        model_builder(name, (3, 4, 4), 2)


def test_a_model_whose_package_is_missing_is_refused_with_the_command_that_installs_it(monkeypatch) -> None:
    """On admission, before anything is loaded."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert [name for name, info in MODELS.items() if info.package] == ["mit-b0"]
    with pytest.raises(ConfigurationError):
        make_task(TaskSettings(model="mit-b0", seed=12345))
