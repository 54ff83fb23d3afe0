"""What several benchmarks compute on: data sets dealt to clients, random examples, tasks around a model."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from unlearning.evaluation import evaluate
from unlearning.methods.registry import METHODS
from unlearning.parameters import Vector
from unlearning.tasks import TaskSettings, load_server_test, load_site, losses
from unlearning.tasks.models import Shape
from unlearning.tasks.task import Examples, Task

NUM_CLASSES = 10


def sites_and_test(settings: TaskSettings) -> tuple[dict[str, Examples], Examples]:
    """Return each client's training examples by its number, and the server's test set, which there must be."""
    sites = {str(number): load_site(settings, number).train for number in range(settings.num_clients)}
    test = load_server_test(settings)
    assert test is not None, f"{settings.dataset} has test data"
    return sites, test


def prepare_for(method: str) -> str:
    """Return the setting `prepare` with which a method can be used; empty where it needs no work in training rounds."""
    return "" if METHODS[method].info.preparation is None else method


def random_examples(count: int, shape: Shape, *, segmentation: bool = False) -> Examples:
    """Return normal numbers and random classes, one an example or one a pixel."""
    generator = torch.Generator().manual_seed(0)
    target_shape = (count, *shape[1:]) if segmentation else (count,)
    return Examples(
        torch.randn(count, *shape, generator=generator),
        torch.randint(NUM_CLASSES, target_shape, generator=generator),
        np.array([str(index) for index in range(count)]),
    )


def task_of(build_model: Callable[[], nn.Module], *, segmentation: bool = False) -> Task:
    """Return a float32 task around a model."""
    return Task(
        name="benchmark",
        num_classes=NUM_CLASSES,
        score_name="dice" if segmentation else "accuracy",
        build_model=build_model,
        loss=losses.cross_entropy_and_dice if segmentation else losses.cross_entropy,
        per_example=losses.segmentation_measures if segmentation else losses.classification_measures,
    )


def accuracy_percent(task: Task, model: Vector, examples: Examples) -> float:
    """Return a model's accuracy in %."""
    return 100 * float(evaluate(task, model, examples).score.mean())
