"""Every method on every kind of task: it runs to its end, or it says why it does not (docs/reference-tasks.md)."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tasks import tiny_classification
from unlearning.errors import ConfigurationError, UnsupportedRequest
from unlearning.local import begin, learn, unlearn
from unlearning.methods.eligibility import FederationProfile, check_eligible, unfit_preparations
from unlearning.methods.method import Method, Need
from unlearning.methods.registry import METHODS, preparations
from unlearning.parameters import Vector
from unlearning.requests import Granularity, Target
from unlearning.tasks.losses import binary_measures
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings

ANYWHERE = sorted(name for name in METHODS if not METHODS[name].info.rests_on_training)
"""Others belong to a federation that trains in their way, which decides what tasks it takes."""
BUILT_IN = tiny_classification(lambda: nn.Linear(2, 3), num_classes=3)
TRAINING = TrainingSettings(epochs=1, batch_size=4, learning_rate=0.1, seed=0)
TARGETS = (
    Target(Granularity.CLIENT, "a"),
    Target(Granularity.SAMPLE, "a", frozenset({"a-1"})),
    Target(Granularity.CLASS, class_label=1),
)


def step_by_step(model, loader, settings, after_step=None) -> float:
    """Own training that can be watched."""
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, maximize=settings.maximize)
    total = 0.0
    for _ in range(settings.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.multi_margin_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.item()
            if after_step is not None and after_step(model):
                return total
    return total


def own(model, loader, settings) -> float:
    """Own training that cannot."""
    return step_by_step(model, loader, settings)


def not_its_loss(*_: Any) -> Any:
    raise AssertionError("Own training descends another loss; this one's derivatives mean nothing.")


def on_frozen_backbone() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 3))


class ByName(nn.Module):
    """`BUILT_IN`'s model for inputs in two parts; it returns what a model of transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.layer(torch.cat([left, right], dim=1)), attentions=None)


def own_binary_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs, targets)


def of_labels(build_model: Callable[[], nn.Module]) -> Task:
    """Labels that may be there or not, each with a logit: what has no class."""
    return replace(
        BUILT_IN,
        name="labels",
        num_classes=0,
        score_name="share of labels",
        build_model=build_model,
        loss=own_binary_cross_entropy,
        per_example=binary_measures,
    )


KINDS: Mapping[str, Task] = {
    "built-in training": BUILT_IN,
    "own training": replace(BUILT_IN, train=own, loss=not_its_loss),
    "own training with `after_step`": replace(BUILT_IN, train=step_by_step, loss=not_its_loss),
    "frozen backbone": replace(BUILT_IN, build_model=on_frozen_backbone),
    "Dataset": BUILT_IN,
    "inputs by name": replace(BUILT_IN, build_model=ByName),
    "one logit": of_labels(lambda: nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))),
    "several labels": of_labels(lambda: nn.Linear(2, 3)),
}


def data_of(kind: str) -> dict[str, Examples]:
    generator = torch.Generator().manual_seed(0)
    data = {}
    for client, count in (("a", 7), ("b", 9), ("c", 12)):
        labels = torch.arange(count) % 3
        centres = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [0.0, -1.0]], dtype=torch.float64)[labels]
        inputs = centres + 0.1 * torch.randn(count, 2, generator=generator, dtype=torch.float64)
        ids = np.array([f"{client}-{index}" for index in range(count)])
        hot = nn.functional.one_hot(labels, 3).double()
        targets = {"one logit": hot[:, 0], "several labels": hot}.get(kind, labels)
        parts = {"left": inputs[:, :1], "right": inputs[:, 1:]}
        data[client] = (
            Examples.from_dataset(TensorDataset(inputs, labels), ids)
            if kind == "Dataset"
            else Examples(parts if kind == "inputs by name" else inputs, targets, ids)
        )
    return data


def target_of(method: Method) -> Target:
    return next(target for target in TARGETS if target.granularity in method.info.granularities)


def prepared_for(method: Method) -> str:
    return method.info.name if method.info.preparation is not None else ""


def unlearned(method: Method, kind: str) -> tuple[Vector, Vector]:
    """The model before and after a whole deletion, with two training rounds in which the method prepares."""
    task, data = KINDS[kind], data_of(kind)
    learnt = learn(task, data, begin(task, TRAINING, prepared_for(method)), rounds=2)
    found = unlearn(method, task, learnt, data, [target_of(method)], noise_key=bytes(32))
    return learnt.parameters, found.parameters


def refusal(method: Method, kind: str) -> str:
    """Why a federation of such a task refuses the method, at the door or in `prepare`; empty where it serves."""
    name = prepared_for(method)
    known = FederationProfile.of(KINDS[kind], prepare=name, prepared_since={name: 0} if name else {})
    try:
        check_eligible(method, target_of(method), known, preparations(name))
    except UnsupportedRequest as exc:
        return str(exc)
    preparation = method.info.preparation
    if preparation is None:
        return ""
    return " ".join(preparation().problems(KINDS[kind], len(data_of(kind))))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ANYWHERE)
def test_a_method_runs_on_a_kind_of_task_or_says_why_not(name, kind):
    """What is not refused at the door ends in a finite model of the trained parameters' length."""
    method = METHODS[name]
    said = refusal(method, kind)
    if said:
        with pytest.raises((UnsupportedRequest, ConfigurationError)) as caught:
            unlearned(method, kind)
        is_label = kind in ("one logit", "several labels")  # of the two refusals `prepare`'s comes first
        assert is_label or said.rpartition(". ")[0] in str(caught.value)
    if said and KINDS[kind].train is None:
        assert said.startswith((f"prepare: {name}: ", method.info.title))
        return
    if said:
        assert said.startswith(method.info.title)
        assert "trains by its own function " in said
        assert "test_task_kinds." in said
        if method.info.preparation is not None:
            assert unfit_preparations(KINDS[kind], [method])[0].startswith(
                f"prepare: {name}: {method.info.title}"
            )
        return
    assert unfit_preparations(KINDS[kind], [method]) == []
    before, after = unlearned(method, kind)
    assert np.isfinite(after).all()
    assert after.shape == before.shape
    if kind in ("Dataset", "inputs by name"):
        assert np.array_equal(after, unlearned(method, "built-in training")[1])
    if kind == "frozen backbone" and name != "sisa":
        assert after.size == 15


DOCUMENT = Path(__file__).parents[2] / "docs" / "reference-tasks.md"


def table() -> str:
    """One row per method, one column per kind; a need is in the place of a yes."""
    shown = {Need.LOSS_DERIVATIVES: "no: derivatives", Need.STEPS: "no: steps"}
    why = dict.fromkeys(("one logit", "several labels"), "no: classes")
    rows = [f"| method | {' | '.join(KINDS)} |", f"|---{'|---' * len(KINDS)}|"]
    for name in ANYWHERE:
        method = METHODS[name]
        need = next((text for need, text in shown.items() if need in method.info.needs), "")
        cells = [
            "yes"
            if not refusal(method, kind)
            else why.get(kind, need if task.train is not None else "no: its model")
            for kind, task in KINDS.items()
        ]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def test_the_table_of_the_documentation_is_what_is_refused():
    """`make docs` writes it."""
    assert table() in DOCUMENT.read_text(encoding="utf-8"), f"make docs\n{table()}"


if __name__ == "__main__":
    page = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(re.sub(r"(?m)^\| method \|.*\n(\|.*\n)+", f"{table()}\n", page), encoding="utf-8")
