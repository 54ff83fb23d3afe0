"""The gate: what a model must be before it becomes the federation's.

    right after every exchange of a method    it is finite, and its norm has not exploded (`unlearned_model`)
    after recovery                            its score on what is retained is not far below the score before
    after every ordinary round                it is finite, and its score on the server's test set is not far below the
                                              best of the last committed rounds

Scores are compared on the server's test examples without the forgotten classes, which lose by design; recovery ends by
the same scores. A server without test examples asks the clients for the score on what they retain, and compares the
median of those that answered both times: what a minority of them says cannot move it beyond what the others say.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from server.federation.observing import ModelObservations, ServerTestSet
from server.federation.state import ActiveDeletion, FederationState
from unlearning.errors import ModelRefused
from unlearning.parameters import Vector, count_not_finite

TEST_SET = ""
"""Among scores, the name of the server's test set; no client's id is empty."""

COMPARED_ROUNDS = 10
"""How many committed rounds a round is compared with: a slow decline may be no larger than a fast one."""


def retained_scores(
    test_set: ServerTestSet, parameters: Vector, classes: frozenset[int], observed: ModelObservations
) -> dict[str, float]:
    """Return the model's score on what is retained: on the server's test set, or without one by client.

    Nothing where there is no score, or it is not a finite number. classes: the forgotten ones, which lose by design.
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


NOT_COMPARED = Judgement(
    True, "the score was not judged: what depends on the model before would void the guarantee of the noise"
)
UNCHANGED = Judgement(True, "the score was not judged: the model is the same")


def judge(deletion: ActiveDeletion, *, max_score_loss: float, score_name: str) -> Judgement:
    """Judge whether the recovered model, measured last as `deletion.scores`, may become the federation's."""
    allowed = deletion.accepted_loss or max_score_loss
    rule = (
        f"{deletion.accepted_by} accepted up to {allowed:g}"
        if deletion.accepted_loss
        else f"up to {allowed:g} are allowed (max-score-loss)"
    )
    if not allowed:
        return Judgement(True, "the score was not judged: max-score-loss is 0")
    if not deletion.scores_before:
        return Judgement(True, f"the score was not judged: no client had a {score_name} of the model before")
    if not deletion.scores:
        return Judgement(
            False, f"no client has a {score_name} of the recovered model that is a number; {rule}", 100.0
        )
    before, after = _paired_medians(deletion.scores_before, deletion.scores)
    lost = _points_between(before, after)
    where = "the test set" if TEST_SET in deletion.scores_before else "what the clients retain"
    text = (
        f"quality was checked: {lost:.2f} points lost, {rule}; {score_name} on {where} {before:.4f} before, "
        f"{after:.4f} after recovery"
    )
    return Judgement(lost <= allowed, text, lost)


def _points_between(before: float, after: float) -> float:
    """Return how many points lower `after` is, without what float64 adds: from 0.9 to 0.75 it is 15 and no more."""
    return round(100 * (before - after), 9)


def refusal(request_id: str, verdict: Judgement, ended: str) -> ModelRefused:
    """Return what is said where the gate rejects a deletion's model. ended: why recovery did."""
    points = min(100, math.ceil(verdict.lost or 0))
    return ModelRefused(
        f"The unlearned model was not committed: {verdict.text}. Recovery ended: {ended}. The model is as it was "
        "before the deletion, and nothing is forgotten. To accept the loss: flower-unlearn retry "
        f"{request_id} --accept-score-loss {points}",
        code="score-lost",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundGate:
    """Judges the model of an ordinary round by the server's test examples; a `strategies.averaging.Judge`.

    before: the federation before the round. classes: what the score leaves out, because no client trains on it.
    """

    test_set: ServerTestSet
    before: FederationState
    classes: frozenset[int]
    max_score_loss: float

    def loss(self, model: Vector) -> float | None:
        """Return the loss on the test examples; None where there are none."""
        observed = self.test_set.observe(model)
        return None if observed is None else observed.mean_loss

    def problem(self, model: Vector) -> str:
        """Say why a model is not committed; empty if it is."""
        if bad := count_not_finite(model):
            return f"{bad:,} of the {model.size:,} values of the averaged model are not finite"
        if not (scores := self._scores()):
            return ""
        best, score = max(scores), self._score(model)
        if score is not None and _points_between(best, score) <= self.max_score_loss:
            return ""
        shown = "not a number" if score is None else f"{score:.4f}"
        return (
            f"test {self.test_set.task.score_name} {shown} after the round, {best:.4f} after the best of the last "
            f"{len(scores)} that were committed: max-round-score-loss allows {self.max_score_loss:g} points"
        )

    def scores_after(self, committed: Vector | None) -> tuple[float, ...]:
        """Return the scores that the next round is compared with.

        A round that was not committed takes the oldest away, so that what has become worse for a good reason goes on.
        """
        scores = self._scores()
        if committed is None:
            return scores[1:] or scores
        score = self._score(committed) if scores else None
        return (*scores, *(() if score is None else (score,)))[-COMPARED_ROUNDS:]

    def _scores(self) -> tuple[float, ...]:
        """Return the scores of the last committed rounds, or that of the model before; none where none is looked at."""
        if not self.max_score_loss or self.test_set.examples is None:
            return ()
        if self.before.scores:
            return self.before.scores
        score = self._score(self.before.parameters)
        return () if score is None else (score,)

    def _score(self, model: Vector) -> float | None:
        return self.test_set.score(model, without=self.classes)


def _paired_medians(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float]:
    """Return the medians over the clients with a score of both models; over all where there is none."""
    both = set(before) & set(after)
    return (
        median(before[name] for name in both or before),
        median(after[name] for name in both or after),
    )
