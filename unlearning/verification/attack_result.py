"""What one attack says of the forgotten examples, and how its score is compared with that of test examples.

Test examples are weighted so that the classes are as frequent among them as among the forgotten; otherwise a
client with rare classes would stand out without having been trained on.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from unlearning.errors import DataError
from unlearning.verification.discrimination import discriminate
from unlearning.verification.figures import MOST_EXAMPLES, AttackFigure
from unlearning.verification.observations import Observations
from unlearning.verification.thresholds import Labels, Values


def rank_against(
    forgotten: tuple[Values, Labels | None],
    test: tuple[Values, Labels | None],
    seed: int,
    figure: AttackFigure,
) -> AttackFigure:
    """Return `figure` with AUC and true-positive rate, or as it was where no class is on both sides.

    forgotten, test: scores, higher meaning "rather a member", and classes where there are any.

    Raises:
        DataError: a score is not a number.
    """
    generator = np.random.default_rng(seed)
    (mine, classes), (theirs, other_classes) = (_bound(side, generator) for side in (forgotten, test))
    weights = np.ones(len(theirs))
    if classes is not None and other_classes is not None:
        shared = np.isin(classes, other_classes)
        mine, classes = mine[shared], classes[shared]
        weights = class_weights(classes, other_classes)
    if not len(mine):
        return figure
    result = discriminate(mine, theirs, seed=seed, weights=weights)
    return replace(
        figure,
        auc=result.auc,
        tpr=result.tpr,
        tpr_reason=result.tpr_reason,
        num_forgotten=len(mine),
        num_test=int(np.sum(weights > 0)),
    )


def class_weights(forgotten: Labels, test: Labels) -> Values:
    """Return weights of test examples of these classes (m,), with which they have the forgotten ones' mix (n,)."""
    _, index = np.unique(np.concatenate([test, forgotten]), return_inverse=True)
    of_test, of_forgotten = np.split(index, [len(test)])
    wanted = np.bincount(of_forgotten, minlength=len(index))
    weights: Values = wanted[of_test] / np.bincount(of_test, minlength=len(index))[of_test]
    return weights


def _bound(
    side: tuple[Values, Labels | None], generator: np.random.Generator
) -> tuple[Values, Labels | None]:
    values, labels = side
    if len(values) <= MOST_EXAMPLES:
        return side
    chosen = generator.permutation(len(values))[:MOST_EXAMPLES]
    return values[chosen], None if labels is None else labels[chosen]


def need(present: Mapping[str, Observations], *names: str) -> None:
    """Refuse to go on without the sets of these names.

    Raises:
        DataError: names those that lack.
    """
    lacking = [name for name in names if name not in present]
    if lacking:
        raise DataError(f"it needs the {' and the '.join(lacking)} data")
