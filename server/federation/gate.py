"""The gate: what a model must be before it becomes the federation's.

    right after every exchange of a method    it is finite, and its norm has not exploded
    after recovery                            its score on what is retained is not far below the score before
    after every ordinary round                it is finite, and its score on the server's test set has not collapsed

Scores are compared on the server's test examples without the forgotten classes, which lose by design; recovery ends by
the same scores. A server without test examples asks the clients for the score on what they retain, and compares the
median of those that answered both times: what a minority of them says cannot move it beyond what the others say.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from server.federation.observing import ModelObservations, ServerTestSet
from server.federation.state import ActiveDeletion
from unlearning.buffers import check_variances, without_buffers
from unlearning.errors import ModelRefused, UpdateRefused
from unlearning.parameters import Vector
from unlearning.tasks.task import Task

TEST_SET = ""
"""Among scores, the name of the server's test set; no client's id is empty."""

LARGEST_GROWTH = 100.0
"""So many times the norm before: no method here has more than doubled it, and 1e30 overflows in the next round."""


def check_unlearned(task: Task, parameters: Vector, before: Vector) -> None:
    """Refuse what a method has made of the model if it is not finite, its norm has exploded or a variance is negative.

    Raises:
        ModelRefused: with both norms, or how many values are wrong.
    """
    bad = parameters.size - int(np.isfinite(parameters).sum())
    if bad:
        raise ModelRefused(
            f"The method gave a model of which {bad:,} of {parameters.size:,} values are not finite. The model is as "
            "it was. File a request with other parameters or another method."
        )
    try:
        check_variances(task, parameters)
    except UpdateRefused as exc:
        raise ModelRefused(
            f"The method gave a model that cannot be used: {exc} The model is as it was."
        ) from exc
    norm, norm_before = (
        float(np.linalg.norm(without_buffers(task, vector).astype(np.float64)))
        for vector in (parameters, before)
    )
    if norm_before > 0 and norm > LARGEST_GROWTH * norm_before:
        raise ModelRefused(
            f"The method gave a model of norm {norm:.4g}, before it was {norm_before:.4g}; over {LARGEST_GROWTH:g} "
            "times is no step of unlearning. The model is as it was. File a request with other parameters or another "
            "method."
        )


def retained_scores(
    test_set: ServerTestSet, parameters: Vector, classes: frozenset[int], observed: ModelObservations
) -> dict[str, float]:
    """Return the model's score on what is retained: on the server's test set, or without one by client.

    Nothing where nobody has a score, or it is not a finite number. classes: the forgotten ones, which lose by design.
    """
    if test_set.examples is not None:
        score = test_set.score(parameters, without=classes)
        return {} if score is None else {TEST_SET: score}
    scores = {client: one.mean_score for client, one in observed.retained_by_client.items()}
    return {client: score for client, score in scores.items() if score is not None}


def name_of_test_score(score_name: str, classes: frozenset[int]) -> str:
    """Return what people call the score on the test set, of which the forgotten classes are left out."""
    return f"test {score_name}" + (" without the forgotten classes" if classes else "")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the gate says of a recovered model: one sentence, and how many points it lost (None: not known)."""

    passes: bool
    text: str
    lost: float | None = None


def judge(deletion: ActiveDeletion, *, max_score_loss: float, score_name: str) -> Judgement:
    """Judge whether the recovered model, measured last as `deletion.scores`, may become the federation's."""
    allowed = deletion.accepted_loss or max_score_loss
    rule = (
        f"{deletion.accepted_by} accepted up to {allowed:g}"
        if deletion.accepted_loss
        else f"max-score-loss allows {allowed:g}"
    )
    if not allowed:
        return Judgement(True, "the score was not judged: max-score-loss is 0")
    if not deletion.scores_before:
        return Judgement(True, f"the score was not judged: nobody had a {score_name} of the model before")
    if not deletion.scores:
        return Judgement(
            False, f"nobody has a {score_name} of the recovered model that is a number; {rule}", 100.0
        )
    before, after = _paired_medians(deletion.scores_before, deletion.scores)
    lost = 100 * (before - after)
    where = "the test set" if TEST_SET in deletion.scores_before else "what the clients retain"
    text = f"{score_name} on {where} {before:.4f} before, {after:.4f} after recovery: {lost:.1f} points lost, {rule}"
    return Judgement(lost <= allowed, text, lost)


def refusal(request_id: str, verdict: Judgement) -> ModelRefused:
    """Return what is said where the gate holds a deletion's model."""
    points = min(100, math.ceil(verdict.lost or 0))
    return ModelRefused(
        f"The unlearned model was not committed: {verdict.text}. The model is as it was before the deletion, and "
        "nothing is forgotten. File a request with another method or other parameters, or accept the loss: "
        f"flower-unlearn retry {request_id} --accept-score-loss {points}"
    )


def round_problem(test_set: ServerTestSet, before: Vector, after: Vector, max_score_loss: float) -> str:
    """Say why the model of an ordinary round is not committed; empty if it is."""
    bad = after.size - int(np.isfinite(after).sum())
    if bad:
        return f"{bad:,} of the {after.size:,} values of the averaged model are not finite"
    if not max_score_loss or test_set.examples is None:
        return ""
    score_before = test_set.score(before)
    score = test_set.score(after)
    if score_before is None or (score is not None and 100 * (score_before - score) <= max_score_loss):
        return ""
    shown = "not a number" if score is None else f"{score:.4f}"
    return (
        f"test {test_set.task.score_name} {score_before:.4f} before the round, {shown} after it: max-round-score-loss "
        f"allows {max_score_loss:g} points"
    )


def _paired_medians(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float]:
    """Return the medians over who has a score of both models; over all where nobody has."""
    both = set(before) & set(after)
    return (
        median(before[name] for name in both or before),
        median(after[name] for name in both or after),
    )
