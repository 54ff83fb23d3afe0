"""The models by name, and the user's own by import string.

A factory is called with the shape of one input, without the batch, and the number of classes. It
returns a module whose initial weights depend on torch's global seed only:

- a classifier takes (n, *input_shape) and returns logits (n, classes); its last module is an
  `nn.Linear`, the head;
- a segmenter takes (n, channels, height, width) and returns logits (n, classes, height, width).

None uses dropout, batch statistics or fused attention: second derivatives exist, and the loss of an
example does not depend on the rest of its batch.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from math import prod
from typing import TypeAlias

import torch
from torch import nn

from unlearning.errors import ConfigurationError, DataError
from unlearning.tasks import mit
from unlearning.tasks.convnets import CNN_POOLED_SIDE, ResUNet, cnn, lenet, resnet18, small_cnn
from unlearning.tasks.vit import ViT

Shape: TypeAlias = tuple[int, ...]
Factory: TypeAlias = Callable[[Shape, int], nn.Module]


class Kind(StrEnum):
    """What a model says about an input: one class for all of it, or one for every pixel."""

    CLASSIFICATION = "classification"
    SEGMENTATION = "segmentation"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model and the inputs that it takes.

    images_only: whether an input must have the shape (channels, height, width).
    smallest_side: the least height and width in pixels.
    side_multiple: height and width must be multiples of this.
    package: what has to be installed beside this project, which has an extra of the same name; empty for nothing.
    smallest_image_side: where the model resizes pictures to squares itself, the least side of these: its factory
        then takes `image_side` as well; 0 where it takes them as they are.
    load_pretrained: puts the checkpoint of a name into a model of this factory; None where there is none.
    """

    factory: Callable[..., nn.Module]
    kind: Kind = Kind.CLASSIFICATION
    images_only: bool = True
    smallest_side: int = 1
    side_multiple: int = 1
    package: str = ""
    smallest_image_side: int = 0
    load_pretrained: Callable[[str, nn.Module], None] | None = None


def logistic(input_shape: Shape, num_classes: int) -> nn.Module:
    """Build multinomial logistic regression: one linear layer; its loss is convex."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), num_classes))


def mlp(input_shape: Shape, num_classes: int) -> nn.Module:
    """Return two hidden layers of 200 ReLU units.

    Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
    Data, the "2NN": 199,210 parameters on 28x28 and 10 classes.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(input_shape), 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, num_classes),
    )


def mlp_head(input_shape: Shape, num_classes: int) -> nn.Module:
    """Return one hidden layer of 256 ReLU units: a head on the features of a frozen network."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(input_shape), 256), nn.ReLU(), nn.Linear(256, num_classes)
    )


MODELS: Mapping[str, ModelInfo] = {
    "logistic": ModelInfo(factory=logistic, images_only=False),
    "mlp": ModelInfo(factory=mlp, images_only=False),
    "mlp-head": ModelInfo(factory=mlp_head, images_only=False),
    "cnn": ModelInfo(factory=cnn, smallest_side=CNN_POOLED_SIDE),
    "small-cnn": ModelInfo(factory=small_cnn, smallest_side=8),
    "lenet": ModelInfo(factory=lenet, smallest_side=12),
    "resnet18": ModelInfo(factory=resnet18, smallest_side=8),
    "vit-lite": ModelInfo(factory=ViT, smallest_side=8, side_multiple=4),
    "mit-b0": ModelInfo(
        factory=mit.MixTransformer,
        package=mit.PACKAGE,
        smallest_image_side=mit.SMALLEST_SIDE,
        load_pretrained=mit.load_pretrained,
    ),
    "res-unet": ModelInfo(factory=ResUNet, kind=Kind.SEGMENTATION, smallest_side=8, side_multiple=4),
}


def is_import_string(name: str) -> bool:
    """Return whether `name` looks like `package.module:factory`, a model of the user's own."""
    module, colon, factory = name.partition(":")
    return bool(colon) and factory.isidentifier() and all(part.isidentifier() for part in module.split("."))


def is_installed(name: str) -> bool:
    """Return whether the built-in model `name` has the package that it needs."""
    package = MODELS[name].package
    return not package or importlib.util.find_spec(package) is not None


def unfit_input(name: str, input_shape: Shape) -> str | None:
    """Return why the built-in model `name` cannot take this input, or None where it can."""
    info = MODELS[name]
    if not info.images_only:
        return None
    shown = "x".join(map(str, input_shape))
    if len(input_shape) != 3:
        return f"the model {name} takes images (channels x height x width), not inputs of shape {shown}"
    sides = input_shape[1:]
    if min(sides) < info.smallest_side or any(side % info.side_multiple for side in sides):
        multiples = f", in multiples of {info.side_multiple}" if info.side_multiple > 1 else ""
        return (
            f"the model {name} takes images of at least {info.smallest_side} pixels a side{multiples}, "
            f"not {shown}"
        )
    return None


def model_builder(
    name: str, input_shape: Shape, num_classes: int, image_side: int = 0
) -> tuple[Callable[[], nn.Module], Kind]:
    """Return a function that builds the untrained model `name`, and the model's kind.

    A model of the user's own is built and run once, on zeros, to learn its kind.

    image_side: what a model that resizes pictures resizes them to; 0 for its own.

    Raises:
        ConfigurationError: there is no such model, or the import string cannot be imported.
        DataError: the user's model does not return logits of a shape in the module's docstring.
    """
    if name in MODELS:
        resizing = {"image_side": image_side} if image_side else {}
        return partial(MODELS[name].factory, input_shape, num_classes, **resizing), MODELS[name].kind
    builder = partial(import_factory(name), input_shape, num_classes)
    return builder, _observed_kind(name, builder, input_shape, num_classes)


def import_factory(name: str) -> Factory:
    """Return the factory that an import string names.

    Raises:
        ConfigurationError: it is no import string, or it leads to nothing callable.
    """
    if not is_import_string(name):
        raise ConfigurationError([unknown_model(name)])
    module, _, attribute = name.partition(":")
    try:
        factory: Factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as exc:
        raise ConfigurationError(
            [
                f"The model {name!r} cannot be imported ({exc}). Install its package on every machine, "
                "or correct the import string package.module:factory."
            ]
        ) from exc
    if not callable(factory):
        raise ConfigurationError(
            [f"The model {name!r} is not callable; name a factory(input_shape, num_classes) -> nn.Module."]
        )
    return factory


def unknown_model(name: str) -> str:
    """Return the sentence that says there is no such model, and which there are."""
    return (
        f"Unknown model {name!r}. The models are: {', '.join(MODELS)}; or your own as package.module:factory."
    )


def _observed_kind(name: str, builder: Callable[[], nn.Module], input_shape: Shape, num_classes: int) -> Kind:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = builder()
        if not isinstance(model, nn.Module):
            raise DataError(f"The factory {name!r} must return an nn.Module, got {type(model).__name__}.")
        outputs = model.eval()(torch.zeros(1, *input_shape))
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if shape == (1, num_classes):
        return Kind.CLASSIFICATION
    if len(input_shape) == 3 and shape == (1, num_classes, *input_shape[1:]):
        return Kind.SEGMENTATION
    raise DataError(
        f"The model {name!r} must return logits of shape (n, {num_classes}) or, for segmentation, "
        f"(n, {num_classes}, height, width) for inputs (n, {', '.join(map(str, input_shape))}); "
        f"for n = 1 it returned {shape}."
    )
