"""A task of one's own, whole in this file: own training of a head on a frozen backbone, with pictures in files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from unlearning.tasks import Examples, Site, Task
from unlearning.tasks.losses import classification_measures, cross_entropy

NUM_EXAMPLES = 40


def build_model() -> nn.Module:
    """A frozen random backbone of 4,400 parameters and running statistics below a head of 82."""
    backbone = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 40)
    )
    return nn.Sequential(backbone.requires_grad_(False), nn.ReLU(), nn.Linear(40, 2))


def own_training(model: nn.Module, loader: Any, settings: Any) -> float:
    """What somebody has had before: their own loop."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=settings.learning_rate)
    losses = []
    model.train()
    for _ in range(settings.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


TASK = Task(
    name="own pictures",
    num_classes=2,
    score_name="accuracy",
    build_model=build_model,
    loss=cross_entropy,
    per_example=classification_measures,
    train=own_training,
)


def make_task(settings: Mapping[str, Any]) -> Task:
    return TASK


def pictures(site: int) -> tuple[np.ndarray, np.ndarray]:
    """Bright pictures and dark ones, as bytes."""
    random = np.random.default_rng(site)
    labels = np.arange(NUM_EXAMPLES) % 2
    return (60 + 100 * labels[:, None, None] + random.integers(0, 60, (NUM_EXAMPLES, 4, 4))).astype(
        np.uint8
    ), labels


def load_site(settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
    """The site's files, which are never read whole."""
    site, files = int(node_config["partition-id"]), Path(str(settings["files"]))
    mapped = files / f"{site}.npy"
    if not mapped.exists():
        np.save(mapped, pictures(site)[0])
    inputs = np.load(mapped, mmap_mode="r")
    examples = Examples.from_arrays(inputs, pictures(site)[1])
    return Site(examples, examples.select(np.zeros(0, dtype=np.intp)))


def load_test(settings: Mapping[str, Any]) -> Examples | None:
    return Examples.from_arrays(*pictures(99))
