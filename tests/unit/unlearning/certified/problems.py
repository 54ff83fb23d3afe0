"""Small float64 problems for these tests: a quadratic and a logistic one, with their examples, and a federation."""

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.certified.random_federation import RandomFederation
from unlearning.tasks import Task, TaskSettings, make_task
from unlearning.tasks.task import Examples

LOGISTIC = make_task(TaskSettings(dataset="npz", num_classes=3, input_shape="4", dtype="float64"))
DIMENSION = 15


class ScriptedFederation(RandomFederation):
    """A federation whose rounds are done one by one."""

    def do_rounds(self, *participants: tuple[str, ...]) -> None:
        """Do a round among each of these groups of clients."""
        for clients in participants:
            self.number += 1
            self.train(clients)

    def do_random_rounds(self, count: int) -> None:
        """Do so many rounds among clients drawn at random of those that are not forgotten."""
        for _ in range(count):
            there = [client for client in self.data if client not in self.forgotten]
            drawn = tuple(client for client in there if self.generator.random() < 0.7)
            self.do_rounds(drawn or (there[0],))


def _half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs.squeeze(1) - targets).square().mean()


def _measures(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    loss = 0.5 * (outputs.squeeze(1) - targets).square()
    return loss, loss, loss


QUADRATIC = Task(
    name="least squares",
    num_classes=1,
    score_name="accuracy",
    build_model=lambda: nn.Linear(4, 1),
    loss=_half_square,
    per_example=_measures,
    dtype=torch.float64,
)


def blobs(count: int = 24, seed: int = 0) -> Examples:
    """Examples of four numbers and three classes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return Examples(inputs, torch.arange(count) % 3, np.asarray([str(index) for index in range(count)]))


def with_copies(copies: int, count: int = 120) -> Examples:
    """Blobs whose first `copies` examples are one and the same."""
    plain = blobs(count)
    inputs, targets = plain.inputs.clone(), plain.targets.clone()
    inputs[:copies], targets[:copies] = inputs[0], targets[0]
    return Examples(inputs, targets, plain.ids)
