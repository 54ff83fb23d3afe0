"""An app whose model has as many parameters as the benchmark of secure aggregation asks for (`WIDTH`)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from client import make_client_app
from server import make_server_app
from strategies.built_in import NO_TABLE
from unlearning.tasks import Examples, Site, Task

WIDTH, EXAMPLES = 1000, 128


def build_model() -> nn.Module:
    """Return a network of 75 × WIDTH + 10 parameters."""
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


def make_task(settings: Mapping[str, Any]) -> Task:  # noqa: ARG001 - as every app's
    """Return the task."""
    return Task.classifier("wide", build_model, num_classes=10)


def load_site(settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:  # noqa: ARG001 - as every app's
    """Return random pictures: what is timed does not depend on them."""
    generator = torch.Generator().manual_seed(int(node_config["partition-id"]))
    inputs = torch.randn(EXAMPLES, 64, generator=generator)
    targets = torch.randint(10, (EXAMPLES,), generator=generator)
    examples = Examples(inputs, targets, np.arange(EXAMPLES).astype(str))
    return Site(examples, examples)


app = make_client_app(make_task, load_site, table=NO_TABLE)
server = make_server_app(make_task, table=NO_TABLE)
