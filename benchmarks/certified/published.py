"""The figures that Qiao et al. published, from `published.yaml`, and their convolutional network."""

from pathlib import Path
from typing import Any

import yaml
from torch import nn

LOGISTIC, CONVOLUTIONAL = "logistic", "benchmarks.certified.published:published_cnn"

PUBLISHED: dict[tuple[str, str], dict[str, Any]] = {
    (one["dataset"], LOGISTIC if one["model"] == "logistic" else CONVOLUTIONAL): one
    for one in yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
}
"""`rows` (a method's figures at 20 % deleted) and what section 5.1 says of 30 %, by data set and model."""


def published_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return two 5x5 convolutions of 10 and 20 channels and a hidden layer of 50: 21,840 parameters on
    1x28x28.

    The paper names no layers here; 21,840 is the size that its storage figures belong to (a Hessian of 1.78 GiB).
    """
    channels, height, width = input_shape
    flat = 20 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(flat, 50),
        nn.ReLU(),
        nn.Linear(50, num_classes),
    )
