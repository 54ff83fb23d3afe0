"""What a kind of user app is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unlearning.tasks import Examples, Task

SETTINGS: Mapping[str, Any] = {
    "num-clients": 3,
    "rounds": 4,
    "local-epochs": 3,
    "learning-rate": 0.1,
    "batch-size": 16,
    "recovery-max-rounds": 3,
    "seed": 7,
}
"""Of every kind, where it does not say otherwise."""

TEST_SITE = 99
"""The seed of what the server measures on."""

NUM_CLASSES = 3


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A user's app.

    what: it in a few words.
    task: makes its task.
    examples: makes a site's examples from its number; `TEST_SITE` is the server's.
    settings: of the run, beside `SETTINGS`.
    client, server: more arguments of `make_client_app` and `make_server_app`.
    method: by which client 1 is deleted.
    retrains: whether retraining is possible there, to compare with.
    refused: words of the sentence with which the app is refused; "" where it works.
    """

    what: str
    task: Callable[[], Task]
    examples: Callable[[int], Examples]
    settings: Mapping[str, Any] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    method: str = "puf-special"
    retrains: bool = True
    refused: str = ""


def classifier(build_model: Callable[[], nn.Module], **changes: Any) -> Callable[[], Task]:
    """Return what makes a task of three classes."""
    return lambda: Task.classifier("user-app", build_model, **{"num_classes": NUM_CLASSES, **changes})


def ids(count: int) -> np.ndarray[Any, np.dtype[np.str_]]:
    """Return the ids of a site's examples."""
    return np.array([f"example-{number}" for number in range(count)])


def labelled(
    site: int, make_inputs: Callable[[Tensor, torch.Generator], Tensor], count: int = 90
) -> Examples:
    """Return a site's examples, whose inputs are made from their labels; site 1 has a third of its labels wrong."""
    generator = torch.Generator().manual_seed(site)
    labels = torch.arange(count) % NUM_CLASSES
    inputs = make_inputs(labels, generator)
    wrong = (torch.arange(count) % 9 < 3) & (site == 1)
    return Examples(inputs, torch.where(wrong, (labels + 1) % NUM_CLASSES, labels), ids(count))


def centres(width: int) -> Tensor:
    """Return the centre of each class (classes, width), the same everywhere."""
    return torch.randn(NUM_CLASSES, width, generator=torch.Generator().manual_seed(1234))


def vectors(width: int = 8, spread: float = 1.0) -> Callable[[int], Examples]:
    """Return what makes sites of vectors (n, width) around their class's centre."""
    return lambda site: labelled(
        site,
        lambda labels, made: (
            centres(width)[labels] + spread * torch.randn(len(labels), width, generator=made)
        ),
    )


def pictures(channels: int, side: int) -> Callable[[int], Examples]:
    """Return what makes sites of pictures (n, channels, side, side)."""

    def make(labels: Tensor, made: torch.Generator) -> Tensor:
        noise = torch.randn(len(labels), channels, side, side, generator=made)
        means = centres(channels * side * side)[labels].reshape(noise.shape)
        return 0.7 * means + noise

    return lambda site: labelled(site, make)


def sequences(length: int, width: int) -> Callable[[int], Examples]:
    """Return what makes sites of sequences (n, length, width)."""

    def make(labels: Tensor, made: torch.Generator) -> Tensor:
        steps = centres(width)[labels].unsqueeze(1).expand(-1, length, -1)
        return steps + torch.randn(len(labels), length, width, generator=made)

    return lambda site: labelled(site, make)


def tokens(length: int = 8, vocabulary: int = 30) -> Callable[[int], Examples]:
    """Return what makes sites of token ids (n, length), int64: each class has words that it likes."""

    def make(labels: Tensor, made: torch.Generator) -> Tensor:
        anything = torch.randint(0, vocabulary, (len(labels), length), generator=made)
        liked = 10 * labels.unsqueeze(1) + torch.randint(0, 5, (len(labels), length), generator=made)
        return torch.where(torch.rand(len(labels), length, generator=made) < 0.5, liked, anything)

    return lambda site: labelled(site, make)


def with_targets(
    examples: Callable[[int], Examples], change: Callable[[Tensor], Tensor]
) -> Callable[[int], Examples]:
    """Return the same sites with other targets, made from the labels."""

    def made(site: int) -> Examples:
        found = examples(site)
        return found.with_targets(change(found.targets))

    return made
