"""The Δ of an HF-online deletion in a federation: proven where it can be, declared elsewhere, else unknown."""

from collections.abc import Sequence

from unlearning.certified import (
    AccountedRelease,
    EarlierRelease,
    Sensitivity,
    declared_logistic_constants,
    federated_bound,
    measured_sensitivity,
    unmet_assumptions,
)
from unlearning.errors import ConfigurationError, NumericalError
from unlearning.methods.carried_lengths import KeptLengths
from unlearning.methods.carried_vector_options import CarriedVectorOptions
from unlearning.tasks.task import Task

_NO_FEATURE_NORM = (
    "No bound on the features' norm is declared (feature_norm in prepare), so nothing is proven."
)


def deletion_sensitivity(
    task: Task,
    options: CarriedVectorOptions,
    kept: KeptLengths,
    *,
    weight_decay: float,
    forgotten: frozenset[str],
    earlier: Sequence[AccountedRelease],
    declared: float | None = None,
) -> tuple[Sensitivity | None, tuple[str, ...]]:
    """Δ of everything in `forgotten` (clients of earlier deletions too) and what is missing to a proof.

    kept: the lengths of all rounds (`carried_vectors.kept_lengths`).
    declared: a distance measured elsewhere, that counts where nothing is proven; None for none.
    """
    unmet = [*unmet_assumptions(task, weight_decay)]
    if not options.feature_norm:
        unmet.append(_NO_FEATURE_NORM)
    elif kept.rounds:
        unmet += kept.unmet
    before = [_earlier(release) for release in earlier]
    if None in before:
        unmet.append("Of an earlier release no sensitivity is known, which a later one's bound must contain.")
    if not unmet:
        try:
            constants = declared_logistic_constants(feature_norm=options.feature_norm, l2=weight_decay)
            known = [one for one in before if one is not None]
            return federated_bound(constants, kept.rounds, forgotten, options.weighting, earlier=known), ()
        except (NumericalError, ConfigurationError) as exc:
            unmet.append(str(exc))
    if declared is None:
        return None, tuple(unmet)
    return measured_sensitivity(declared, "declared, measured elsewhere"), tuple(unmet)


def _earlier(release: AccountedRelease) -> EarlierRelease | None:
    if release.sensitivity is None or not release.sigma:
        return None
    return EarlierRelease(number=release.number, sensitivity=release.sensitivity.value)
