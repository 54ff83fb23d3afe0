"""MIA-U: does the change from the model before to the model after give away what was deleted?

An observer of both models may ask whether an example was deleted between them. The attack compares the two
posteriors of an example, by one of five constructions of features:

    direct-difference   p − q
    sorted-difference   the same, both sorted by p, highest first
    direct-concat       (p, q)
    sorted-concat       the same, both sorted by p, highest first
    euclidean           ‖p − q‖, one number

Legend: p posterior before, q posterior after, each (classes,).
Source: Chen et al., When Machine Unlearning Jeopardizes Privacy (CCS 2021), §3.3.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.verification.figures import Construction

Values = NDArray[np.float64]


def construct(before: Values, after: Values, construction: Construction) -> Values:
    """Return features (n, k) of posteriors (n, classes): k = classes, 2·classes, or 1 for the distance.

    Raises:
        DataError: the two differ in shape, are no matrices, or hold a number that is not finite.
    """
    if before.shape != after.shape or before.ndim != 2:
        raise DataError(
            f"Posteriors before and after have the same shape (n, classes), got {before.shape} and "
            f"{after.shape}."
        )
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        raise DataError("A posterior holds a number that is not finite.")
    if construction in (Construction.SORTED_DIFFERENCE, Construction.SORTED_CONCAT):
        order = np.argsort(-before, axis=1, kind="stable")
        before, after = np.take_along_axis(before, order, 1), np.take_along_axis(after, order, 1)
    match construction:
        case Construction.DIRECT_DIFFERENCE | Construction.SORTED_DIFFERENCE:
            return before - after
        case Construction.DIRECT_CONCAT | Construction.SORTED_CONCAT:
            return np.concatenate([before, after], axis=1)
        case Construction.EUCLIDEAN:
            lengths: Values = np.linalg.norm(before - after, axis=1, keepdims=True)
            return lengths


@dataclass(frozen=True, slots=True)
class Judged:
    """The examples of one side that the classifier did not learn from: positions (k,) and scores (k,).

    A score is the probability of "deleted" that the classifier gives.
    """

    positions: NDArray[np.intp]
    scores: Values


def judge(
    deleted: tuple[Values, Values],
    never: tuple[Values, Values],
    construction: Construction,
    *,
    seed: int,
    weights: Values,
) -> tuple[Judged, Judged]:
    """Return what a classifier that learnt from one half of both says of the other half, of each side.

    deleted, never: posteriors before and after, (n, classes) each. The classifier is a random forest, one of
    the paper's four and one that unsorted posteriors do not confuse; both sides weigh alike in learning.
    weights: of `never` (m,) among themselves, to give them another mix of classes.

    Raises:
        DataError: a side has fewer than four examples, or `construct` refuses its posteriors.
    """
    features = [construct(*pair, construction) for pair in (deleted, never)]
    if min(len(part) for part in features) < 4:
        raise DataError(
            f"MIA-U needs four examples of each kind at least, got {len(features[0])} deleted ones and "
            f"{len(features[1])} others."
        )
    from sklearn.ensemble import RandomForestClassifier  # a second to import

    generator = np.random.default_rng(seed)
    orders = [generator.permutation(len(part)) for part in features]
    known, asked = [], []
    for part, order in zip(features, orders, strict=True):
        known.append(part[order[: len(part) // 2]])
        asked.append(order[len(part) // 2 :])
    classifier = RandomForestClassifier(
        n_estimators=100, min_samples_leaf=3, class_weight="balanced", random_state=seed
    )
    learnt_from = weights[orders[1][: len(known[1])]]
    each = np.concatenate([np.ones(len(known[0])), learnt_from / max(learnt_from.mean(), 1e-12)])
    classifier.fit(np.concatenate(known), np.repeat([1, 0], [len(part) for part in known]), each)
    mine, theirs = (
        Judged(positions, classifier.predict_proba(part[positions])[:, 1].astype(np.float64))
        for part, positions in zip(features, asked, strict=True)
    )
    return mine, theirs
