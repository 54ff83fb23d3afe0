"""The attacks that run where the settings ask for them: MIA-U with classifiers.

They learn from one half of the forgotten and of the test examples how a deletion changes
posteriors, and are judged on the other half. In the paper they learn from shadow models of which examples
were deleted; a live federation would have to train, and unlearn in, many federations for that. Learning
from examples that truly were deleted gives the attacker more than it could have: a finding near one half is
the stronger.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.verification.attack_result import class_weights, need, rank_against
from unlearning.verification.figures import LEARNT_MIA_U, AttackFigure
from unlearning.verification.mia_u import judge
from unlearning.verification.observations import Observations, Outputs
from unlearning.verification.thresholds import Labels, Values

ATTACKS_ON_DEMAND = tuple(LEARNT_MIA_U.values())
"""These cost seconds a measurement, and run where the settings say so."""

MOST_LEARNT = 2_000
"""Of a side; more are subsampled before a classifier learns from half of them."""


@dataclass(frozen=True, slots=True)
class Change:
    """Posteriors (k, classes) of the same k examples before and after, and their classes (k,)."""

    before: Values
    after: Values
    labels: Labels | None

    def at(self, which: NDArray[np.intp]) -> "Change":
        """Return those at these positions."""
        labels = None if self.labels is None else self.labels[which]
        return Change(self.before[which], self.after[which], labels)


def changes_of(present: Mapping[str, Observations], before: Mapping[str, Outputs]) -> dict[str, Change]:
    """Return the pairs of posteriors of the `test` and the `forgotten` data.

    before: posteriors of the model before the deletion, by the same names.

    Raises:
        DataError: a set was not measured before and after.
    """
    need(present, "test", "forgotten")
    changes = {}
    for name in ("test", "forgotten"):
        older, newer = before.get(name), present[name].outputs
        if older is None or newer is None:
            raise DataError(f"the {name} data's posteriors before and after were not both reported")
        _, first, second = np.intersect1d(older.handles, newer.handles, return_indices=True)
        if not len(first):
            raise DataError(f"no sampled example of the {name} data was measured before and after")
        details = present[name].details
        changes[name] = Change(
            older.posteriors[first].astype(np.float64),
            newer.posteriors[second].astype(np.float64),
            None if details is None else details.labels[second],
        )
    return changes


def learnt_mia_u(
    present: Mapping[str, Observations], before: Mapping[str, Outputs] | None, seed: int
) -> dict[str, AttackFigure]:
    """Return MIA-U by every construction, each with a classifier; nothing where there is no model before.

    Only examples of classes that both sides have take part; test examples are weighted in learning too.

    Raises:
        DataError: as for `changes_of`, or a side has fewer than four examples.
    """
    if before is None:
        return {}
    changes = changes_of(present, before)
    generator = np.random.default_rng(seed)
    forgotten, test = (
        change.at(generator.permutation(len(change.before))[:MOST_LEARNT])
        for change in (changes["forgotten"], changes["test"])
    )
    if forgotten.labels is None or test.labels is None:
        raise DataError("it needs the examples' classes, which were not reported")
    mixed = np.isin(forgotten.labels, test.labels), np.isin(test.labels, forgotten.labels)
    weights = class_weights(forgotten.labels[mixed[0]], test.labels[mixed[1]])
    forgotten, test = forgotten.at(np.flatnonzero(mixed[0])), test.at(np.flatnonzero(mixed[1]))
    figures = {}
    for construction, name in LEARNT_MIA_U.items():
        mine, theirs = judge(
            (forgotten.before, forgotten.after),
            (test.before, test.after),
            construction,
            seed=seed,
            weights=weights,
        )
        figures[name] = rank_against(
            (mine.scores, forgotten.at(mine.positions).labels),
            (theirs.scores, test.at(theirs.positions).labels),
            seed,
            AttackFigure(),
        )
    return figures
