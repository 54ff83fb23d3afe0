"""The data sets by name, and what is known about each without reading it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Generator, Tensor

from unlearning.tasks.arrays import Arrays
from unlearning.tasks.heart_disease import HOSPITALS, NUM_INPUTS, read_hospitals, read_own_hospital
from unlearning.tasks.images import (
    NUCLEI_SITES,
    NUM_FEATURES,
    read_cifar,
    read_digits,
    read_features,
    read_nuclei,
    read_torchvision,
)
from unlearning.tasks.models import Kind, Shape
from unlearning.tasks.sources import Scaling
from unlearning.tasks.tabular import NUM_WORDS, TOPICS, read_breast_cancer, read_covertype, read_reuters

PADDING = 4
ARCHIVES, MAPPED_FILES = "npz", "npy"
"""The data sets of the user's own, in memory and memory-mapped; shape, classes and kind come from the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """A data set.

    input_shape, num_classes: of one example.
    train: reads the examples that clients share; called with the data directory.
    test: reads the server's test set; None where each site holds out its own.
    train_own: reads a client's own directory where that is not the npz layout.
    num_sites: how many natural sites there are, 0 for none.
    """

    input_shape: Shape
    num_classes: int
    train: Callable[[Path], Arrays]
    test: Callable[[Path], Arrays] | None = None
    train_own: Callable[[Path], Arrays] | None = None
    kind: Kind = Kind.CLASSIFICATION
    num_sites: int = 0
    needs_directory: bool = True
    scaling: Scaling = field(default_factory=Scaling)
    augment: Callable[[Tensor, Generator], Tensor] | None = None


def crop_and_flip(mean: Sequence[float], std: Sequence[float]) -> Callable[[Tensor, Generator], Tensor]:
    """Pad by 4 black pixels, crop back at a random place, mirror every second picture at random.

    `mean` and `std` are those by which the pictures were standardised: black is not 0 then.
    Source: He et al., Deep Residual Learning for Image Recognition, section 4.2.
    """
    black = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).reshape(-1, 1, 1)
    return partial(_crop_and_flip, black)


def _crop_and_flip(black: Tensor, pictures: Tensor, generator: Generator) -> Tensor:
    n, channels, height, width = pictures.shape
    padded_size = (n, channels, height + 2 * PADDING, width + 2 * PADDING)
    canvas = black.to(pictures.dtype).expand(padded_size).clone()
    canvas[:, :, PADDING : PADDING + height, PADDING : PADDING + width] = pictures
    top = torch.randint(2 * PADDING + 1, (n, 1), generator=generator)
    left = torch.randint(2 * PADDING + 1, (n, 1), generator=generator)
    mirrored = torch.randint(2, (n, 1), generator=generator).bool()
    rows = top + torch.arange(height)
    straight = torch.arange(width)
    columns = left + torch.where(mirrored, straight.flip(0), straight)
    picture = torch.arange(n).reshape(n, 1, 1)
    cropped = canvas.movedim(1, -1)[picture, rows[:, :, None], columns[:, None, :]]
    return cropped.movedim(-1, 1).contiguous()


def _torchvision(class_name: str, input_shape: Shape, num_classes: int, scaling: Scaling) -> DatasetInfo:
    return DatasetInfo(
        input_shape=input_shape,
        num_classes=num_classes,
        train=partial(read_torchvision, class_name, train=True),
        test=partial(read_torchvision, class_name, train=False),
        scaling=scaling,
    )


def _cifar(class_name: str, num_classes: int, scaling: Scaling) -> DatasetInfo:
    return DatasetInfo(
        input_shape=(3, 32, 32),
        num_classes=num_classes,
        train=partial(read_cifar, class_name, train=True),
        test=partial(read_cifar, class_name, train=False),
        scaling=scaling,
        augment=crop_and_flip(scaling.mean, scaling.std),
    )


DATASETS: Mapping[str, DatasetInfo | None] = {
    "digits": DatasetInfo(
        input_shape=(1, 8, 8),
        num_classes=10,
        train=lambda _: read_digits(train=True),
        test=lambda _: read_digits(train=False),
        needs_directory=False,
    ),
    "mnist": _torchvision("MNIST", (1, 28, 28), 10, Scaling((0.1307,), (0.3081,))),
    "fashion-mnist": _torchvision("FashionMNIST", (1, 28, 28), 10, Scaling((0.2860,), (0.3530,))),
    "cifar10": _cifar("CIFAR10", 10, Scaling((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
    "cifar100": _cifar("CIFAR100", 100, Scaling((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))),
    "cifar10-features": DatasetInfo(
        input_shape=(NUM_FEATURES,),
        num_classes=10,
        train=partial(read_features, train=True),
        test=partial(read_features, train=False),
        scaling=Scaling((0.5,), (1.0,)),
    ),
    "nuclei": DatasetInfo(
        input_shape=(3, 128, 128),
        num_classes=2,
        train=read_nuclei,
        kind=Kind.SEGMENTATION,
        num_sites=NUCLEI_SITES,
        # Dark fluorescence and bright stained tissue have no common mean: map 0..1 to −1..1.
        scaling=Scaling((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    ),
    "heart-disease": DatasetInfo(
        input_shape=(NUM_INPUTS,),
        num_classes=2,
        train=lru_cache(maxsize=1)(read_hospitals),
        train_own=read_own_hospital,
        num_sites=len(HOSPITALS),
    ),
    "breast-cancer": DatasetInfo(
        input_shape=(30,),
        num_classes=2,
        train=lambda _: read_breast_cancer(train=True),
        test=lambda _: read_breast_cancer(train=False),
        needs_directory=False,
    ),
    "covertype": DatasetInfo(
        input_shape=(54,),
        num_classes=7,
        train=partial(read_covertype, train=True),
        test=partial(read_covertype, train=False),
    ),
    "reuters-r8": DatasetInfo(
        input_shape=(NUM_WORDS,),
        num_classes=len(TOPICS),
        train=partial(read_reuters, train=True),
        test=partial(read_reuters, train=False),
    ),
    ARCHIVES: None,
    MAPPED_FILES: None,
}
