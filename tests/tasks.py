"""Tasks and examples small enough to be worked out by hand, and data sets where they are at hand."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from unlearning.tasks.loading import DATA_VARIABLE
from unlearning.tasks.losses import classification_measures, cross_entropy
from unlearning.tasks.task import Examples, Task, numbered
from unlearning.training import initial_parameters, model_with


def tiny_classification(build_model: Callable[[], nn.Module], num_classes: int = 2) -> Task:
    """Classification by a model of the test's own, in float64."""
    return Task(
        name="tiny",
        num_classes=num_classes,
        score_name="accuracy",
        build_model=build_model,
        loss=cross_entropy,
        per_example=classification_measures,
        dtype=torch.float64,
    )


def initial_model(task: Task, seed: int) -> nn.Module:
    """The model that training starts from."""
    return model_with(task, initial_parameters(task, seed))


def noise(count: int, num_inputs: int = 3, num_classes: int = 2) -> Examples:
    """Examples of normal numbers in float64, the same at each call, with the classes in turn."""
    inputs = torch.randn(count, num_inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Examples(inputs, torch.arange(count) % num_classes, numbered(count))


def data_directory(path: Path | str) -> Path:
    """Where data sets lie; skips where `path` is not there."""
    directory = os.environ.get(DATA_VARIABLE, "")
    if not directory or not (Path(directory) / path).exists():
        pytest.skip(f"{DATA_VARIABLE} names no directory with {path}")
    return Path(directory)
