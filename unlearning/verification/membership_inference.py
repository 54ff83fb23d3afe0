"""Membership inference: which share of the forgotten examples does an attack call members?

A member is an example that the model was trained on. Every attack is a pure function of arrays of
per-example values. A low share says that this attack finds little, not that nothing is left to find;
a share is best read beside that of a model retrained without the examples.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.verification.thresholds import AttackResult, Values

if TYPE_CHECKING:
    from sklearn.svm import SVC

SVM_PENALTY = 3.0


def confidence_attack(retained: Values, test: Values, forget: Values, *, seed: int) -> AttackResult:
    """Learn member or not from the true class's confidence, then ask about the forgotten examples.

    retained (members), test (non-members) and forget are confidences of shape (n,). The larger of the
    first two is subsampled to the smaller with `seed`. The classifier is a support vector machine with
    C = 3 and a Gaussian kernel of width fixed at γ = 1, so that every stage meets the same attack.

    Source: PUF, §V, after Song and Mittal, Systematic Evaluation of Privacy Risks (USENIX Sec. 2021).

    Raises:
        DataError: fewer than two retained or test examples, no forgotten one, or a value is not finite.
    """
    _check("retained confidences", retained, at_least=2)
    _check("test confidences", test, at_least=2)
    _check("forgotten confidences", forget, at_least=1)
    generator = np.random.default_rng(seed)
    size = min(len(retained), len(test))
    members = generator.permutation(retained)[:size]
    others = generator.permutation(test)[:size]
    half = size // 2
    on_half = _fit(members[:half], others[:half])
    recall = float(np.mean(_is_member(on_half, members[half:])))
    false_alarms = float(np.mean(_is_member(on_half, others[half:])))
    return AttackResult(
        called=_is_member(_fit(members, others), forget),
        balanced_accuracy=(recall + 1.0 - false_alarms) / 2.0,
    )


def _fit(members: Values, others: Values) -> "SVC":
    from sklearn.svm import SVC  # a second to import, and only a report needs it

    features = np.concatenate([members, others])[:, np.newaxis]
    labels = np.repeat([1, 0], [len(members), len(others)])
    # gamma="auto" is 1 / number of features; "scale" would follow the spread of each stage's values
    return SVC(C=SVM_PENALTY, kernel="rbf", gamma="auto").fit(features, labels)


def _is_member(classifier: "SVC", confidences: Values) -> NDArray[np.bool_]:
    answer: NDArray[np.bool_] = classifier.predict(confidences[:, np.newaxis]) == 1
    return answer


def _check(what: str, values: Values, *, at_least: int) -> None:
    if values.ndim != 1 or len(values) < at_least:
        raise DataError(
            f"A membership attack needs at least {at_least} {what} in one array, got shape {values.shape}."
        )
    bad = ~np.isfinite(values)
    if bad.any():
        raise DataError(f"{int(bad.sum()):,} of {len(values):,} {what} are not finite numbers.")
