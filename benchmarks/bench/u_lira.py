"""U-LiRA: can an unlearned model be told from a retrained one, by an attacker of one's own for each example?

For each forgotten example the margins φ of unlearned models and those of models that never saw it are fitted by a
Gaussian each; a model that neither was fitted to is judged by the ratio of the two. Averages over examples, as of
population attacks, hide those that are known best; here each has its own two Gaussians.

    Λ = log N(φ; μ_unlearned, σ_unlearned²) − log N(φ; μ_never, σ_never²)        "unlearned" where Λ > 0

Each half of both sets of models is fitted once and judged once, so no model is judged by a fit of itself, and
between two sets of retrained models the balanced accuracy is ½ in the mean.

**A constant shift.** A method that moves the margins of all examples by the same amount remembers none of them, and yet
every example's Gaussians lie apart: here U-LiRA is then near 1. Where both sides have been unlearned, as in the
paper, the shift is in both and U-LiRA sees nothing of it, however far the model is from a retrained one. So both are
given: as it is, and with each model's mean margin on examples that were never trained on taken off (`centred`). What is
left then is knowledge of single examples.

**Shadow federations that are unlearned** (`u_lira_of_shadows`) are the paper's own form: each trains on a half of the
forget set and is then unlearned of that half by the method under test. An example's two Gaussians are those of models
that had it and forgot it, and of the models that never had it but forgot others. No retrained model is needed.

Source: Hayes et al., Inexact Unlearning Needs More Careful Evaluations to Avoid a False Sense of Privacy (SaTML 2025);
that in `u_lira` those that "never saw it" are retrained models follows Georgiev et al., Attribute-to-Delete (ICLR
2025). Cross-fitting by halves and the centred form are ours.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench.lira import Mask, Shadows, Values, fit, online_scores
from unlearning.errors import DataError
from unlearning.verification.discrimination import tpr_at_fpr

Positions = NDArray[np.intp]

_TIE = 0.5  # of a score of 0: as much called unlearned as not

FEWEST = 4
"""Models a set: two in each half are the fewest that have a variance."""

FEWEST_PAIRS = 4
"""Of shadow federations: each half of them then has two that had an example, and two that had not."""

ENOUGH_FOR_OWN_VARIANCES = 64
"""With fewer shadow models one variance for all examples attacks better (Carlini et al., §VI)."""


@dataclass(frozen=True, slots=True)
class ULira:
    """What the attack finds.

    accuracies (n,): of each example, the mean of both sides' shares that are judged rightly; ½ is guessing.
    balanced_accuracy: their mean.
    tpr: the share of (unlearned model, example) pairs that a threshold finds which 1 % of the others exceed.
    """

    accuracies: Values
    balanced_accuracy: float
    tpr: float


def u_lira(unlearned: Values, never: Values) -> ULira:
    """Judge margins φ on n forgotten examples: of unlearned models (u, n), and of others that never saw them (o, n).

    Raises:
        DataError: a set has fewer than four models, the shapes do not fit, or a margin is not a finite number.
    """
    if min(len(unlearned), len(never)) < FEWEST:
        raise DataError(
            f"U-LiRA needs {FEWEST} models of each kind at least, got {len(unlearned)} and {len(never)}."
        )
    ours, theirs = [], []
    for fitted in (0, 1):
        known = [side[fitted::2] for side in (unlearned, never)]
        is_unlearned = np.zeros((len(known[0]) + len(known[1]), unlearned.shape[1]), dtype=np.bool_)
        is_unlearned[: len(known[0])] = True
        inside, outside = fit(Shadows(np.concatenate(known), is_unlearned))
        ours += [online_scores(model, inside, outside) for model in unlearned[1 - fitted :: 2]]
        theirs += [online_scores(model, inside, outside) for model in never[1 - fitted :: 2]]
    found, others = np.stack(ours), np.stack(theirs)
    shares = [np.heaviside(scores, _TIE).mean(axis=0) for scores in (found, others)]
    return _found((shares[0] + 1 - shares[1]) / 2, found.ravel(), others.ravel())


def u_lira_of_shadows(margins: Values, had: Mask) -> ULira:
    """Judge margins φ (s, n) of s shadow federations that were unlearned, of which each example was in half.

    had (s, n): who had been trained on what, and forgot it. Rows 2k and 2k + 1 are a pair: what one had the other had
    not. The even pairs are judged by Gaussians that are fitted to the odd ones, and the other way round; where those
    are few, all examples share one variance a side, as in LiRA.

    Raises:
        DataError: there are fewer than four pairs, two rows are no pair, or a margin is not a finite number.
    """
    if len(had) < 2 * FEWEST_PAIRS or len(had) % 2 or (had[::2] == had[1::2]).any():
        raise DataError(
            f"U-LiRA of shadow federations needs {FEWEST_PAIRS} pairs at least, of which one had what the other had "
            f"not; got {len(had)} shadow federations."
        )
    odd = np.arange(len(had)) // 2 % 2 == 1
    scores = np.empty(margins.shape)
    for judged in (odd, ~odd):
        inside, outside = fit(Shadows(margins[~judged], had[~judged]))
        is_global = bool((~judged).sum() < ENOUGH_FOR_OWN_VARIANCES)
        scores[judged] = [
            online_scores(model, inside, outside, global_variance=is_global) for model in margins[judged]
        ]
    called = np.heaviside(scores, _TIE)
    accuracies: Values = np.where(had, called, 1 - called).mean(axis=0)
    return _found(accuracies, scores[had], scores[~had])


def centred(margins: Values, test: Values) -> Values:
    """Return margins (m, n) of m models less each one's mean margin on test examples, (m, t)."""
    moved: Values = margins - test.mean(axis=1, keepdims=True)
    return moved


def vulnerability(trained: Values, never: Values) -> Values:
    """Return how far apart models that know an example and models that never saw it are, (n,): in pooled deviations.

    trained, never: margins φ of models that were trained on the n examples, (m, n), and of others, (o, n).
    """
    apart = np.abs(trained.mean(axis=0) - never.mean(axis=0))
    pooled = np.sqrt((trained.var(axis=0) + never.var(axis=0)) / 2)
    found: Values = apart / np.maximum(pooled, 1e-6)
    return found


def mixed(vulnerabilities: Values, share: float) -> tuple[Positions, Positions]:
    """Return the positions of the most vulnerable `share` of the examples and of the least, one each at least.

    Source: RULI (Naderloui et al., USENIX Security 2025) judges a forget set that is made of both kinds, for the mean
    over all hides the first.
    """
    order = np.argsort(vulnerabilities, kind="stable")
    count = max(1, min(round(share * len(order)), len(order) // 2))
    return order[-count:], order[:count]


def _found(accuracies: Values, ours: Values, theirs: Values) -> ULira:
    """Return what the accuracies (n,) and the scores of both sides' (model, example) pairs say."""
    return ULira(
        accuracies=accuracies,
        balanced_accuracy=float(accuracies.mean()),
        tpr=tpr_at_fpr(ours, theirs),
    )
