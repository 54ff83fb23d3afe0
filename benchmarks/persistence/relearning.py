"""Relearn time: after how many rounds on the forgotten data a model knows it as well as the original did.

A model that still holds the data relearns it sooner than one that was trained without it. It is an audit of a method,
for which the forgotten data is trained on again: never of a live deletion, whose data may not be.

Source of the measure: Golatkar et al., Eternal Sunshine of the Spotless Net (CVPR 2020, arXiv 1911.04933), who train
until the loss on the forgotten data is that of the original model; the accuracy is asked for in the same way here.
"""

from dataclasses import dataclass, replace
from typing import Literal

from unlearning.evaluation import evaluate
from unlearning.parameters import Vector
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, train

By = Literal["loss", "score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelearnTime:
    """After how many rounds the mean `loss` and `score` on the forgotten data are the original's again.

    0: they are without any; None: they are not after the most rounds that were tried.
    """

    loss: int | None
    score: int | None


def relearn_time(
    task: Task,
    model: Vector,
    *,
    original: Vector,
    forgotten: Examples,
    training: TrainingSettings,
    most_rounds: int,
) -> RelearnTime:
    """Train a model (d,) on the forgotten examples alone, and count the rounds until it knows them as the original.

    training: of one round, such as a client's; each round has a seed of its own.

    Raises:
        DataError: there is no forgotten example.
    """
    wanted = _known(task, original, forgotten)
    found: dict[By, int | None] = {"loss": None, "score": None}
    for number in range(most_rounds + 1):
        if number:
            settings = replace(training, seed=training.seed + number)
            model = train(task, model, forgotten, settings).parameters
        loss, score = _known(task, model, forgotten)
        if found["loss"] is None and loss <= wanted[0]:
            found["loss"] = number
        if found["score"] is None and score >= wanted[1]:
            found["score"] = number
        if None not in found.values():
            break
    return RelearnTime(**found)


def _known(task: Task, model: Vector, examples: Examples) -> tuple[float, float]:
    """Return the mean loss and score of a model."""
    measures = evaluate(task, model, examples)
    return float(measures.loss.mean()), float(measures.score.mean())
