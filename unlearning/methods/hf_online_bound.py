"""The Δ of an HF-online deletion in a federation: proven where it can be, declared elsewhere, else unknown.

Proven is what follows from the records of the rounds (`hf_online_records`) and of earlier releases, and from nothing
else. Records and releases must make one chain of models, from the one that training began with to the one that
is deleted from: what is not in the chain is not covered, and then nothing is proven.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from unlearning.certified.federated_bound import federated_bound
from unlearning.certified.privacy_accountant import AccountedRelease, Basis
from unlearning.certified.round_lengths import EarlierRelease
from unlearning.certified.sensitivity import Sensitivity, measured_sensitivity
from unlearning.errors import ConfigurationError, NumericalError
from unlearning.methods.hf_online_kept import CarriedVectorOptions, kept_rounds
from unlearning.methods.hf_online_records import KeptRound
from unlearning.parameters import Vector, content_hash
from unlearning.runtime.stores import Store

_MIXED = (
    "Some rounds were carried with renormalised weights and some with fixed ones: there is no one retraining to "
    "compare with."
)


class KeptBound:
    """The Δ of deletions from the model that the records in `store` lead to; they are read once."""

    def __init__(self, options: CarriedVectorOptions, store: Store, initial: Callable[[], Vector]) -> None:
        self._store = store
        rounds = self._rounds = kept_rounds(options, store)
        is_whole = bool(rounds) and rounds[0].lengths.number == 1
        # In the first rounds no client may have trained, and then there is no record of them.
        self._start = rounds[0].before if is_whole else content_hash(initial())

    def __call__(
        self,
        targets: frozenset[str],
        model: str,
        earlier: Sequence[AccountedRelease],
        *,
        declared: float | None,
        unmet: tuple[str, ...],
    ) -> tuple[Sensitivity | None, tuple[str, ...]]:
        """Return Δ of the deletion and all earlier ones together, and what is missing to a proof, a sentence each.

        targets: who is forgotten from the model of the hash `model`. declared: a distance measured elsewhere, that
        counts where nothing is proven; None for none. unmet: what else is missing to a proof.
        """
        rounds = self._rounds
        committed, broken = _follow_releases(rounds, earlier, self._start, model)
        missing = [*unmet, *broken, *_unproven(earlier)]
        missing += self._unfit_vectors(targets)
        if len({one.weighting for one in rounds}) > 1:
            missing.append(_MIXED)
        if not missing:
            try:
                if not rounds:
                    return _nothing_trained(committed), ()
                forgotten = targets.union(*(release.clients for release in committed))
                lengths = [one.lengths for one in rounds]
                return federated_bound(lengths, forgotten, rounds[0].weighting, earlier=committed), ()
            except (NumericalError, ConfigurationError) as exc:
                missing.append(str(exc))
        if declared is None:
            return None, tuple(missing)
        return measured_sensitivity(declared, "declared, measured elsewhere"), tuple(missing)

    def _unfit_vectors(self, targets: frozenset[str]) -> list[str]:
        """List clients whose vector is not that of the last record, or who have one without a record of training."""
        rounds = self._rounds
        trained = {client for one in rounds for client in one.lengths.clients}
        kept_at = {client: self._store.rounds(client)[-1:] for client in sorted(targets)}
        unfit = [
            client
            for client, newest in kept_at.items()
            if newest != ([rounds[-1].lengths.number] if client in trained else [])
        ]
        if not unfit:
            return []
        return [
            f"The kept vector of client(s) {', '.join(unfit)} does not belong to the records of the rounds."
        ]


def _nothing_trained(committed: Sequence[EarlierRelease]) -> Sensitivity:
    """Count only earlier releases: before the first round no client has trained."""
    return Sensitivity(
        value=sum(one.sensitivity for one in committed),
        is_bound=True,
        source="no client had trained: the model is the one that training began with",
    )


def _follow_releases(
    rounds: Sequence[KeptRound], earlier: Sequence[AccountedRelease], start: str, model: str
) -> tuple[list[EarlierRelease], list[str]]:
    """Return the earlier releases that the model went on from, and where the chain of models breaks.

    start, model: hashes of the model that training began with, and of the one that the deletion starts from.
    A release whose model was discarded (the attempt failed after it) is not among them: the model went on as it was.
    """
    committed: list[EarlierRelease] = []
    at, waiting = start, sorted(earlier, key=lambda one: one.number)
    steps = [(one.lengths.number, f"round {one.lengths.number}", one.before, one.after) for one in rounds]
    for number, name, before, after in [*steps, (math.inf, "this deletion", model, model)]:
        due = [release for release in waiting if release.number <= number]
        waiting = waiting[len(due) :]
        models = [*(release.before for release in due), before]
        for release, following in zip(due, models[1:], strict=True):
            at = _after_release(release, at, following, committed)
        if before != at:
            return committed, [_gap(name)]
        at = after
    return committed, []


def _after_release(
    release: AccountedRelease, at: str, following: str, committed: list[EarlierRelease]
) -> str:
    """Return the hash of the model after a release from `at`, where the next record begins with `following`."""
    if release.before != at or following == at:
        return at
    value = 0.0 if release.sensitivity is None else release.sensitivity.value
    committed.append(
        EarlierRelease(number=release.number, sensitivity=value, clients=frozenset(release.clients))
    )
    return release.after


def _gap(before: str) -> str:
    return (
        f"The model before {before} is not the one that the records before it lead to, so something moved it of which "
        "there is no record (rounds without prepare, another method, a restored backup)."
    )


def _unproven(earlier: Iterable[AccountedRelease]) -> list[str]:
    names = [release.name for release in earlier if release.basis is not Basis.PROVEN or not release.after]
    if not names:
        return []
    return [
        f"The earlier release(s) of {', '.join(names)} rest on no proof (no noise, a declared or no sensitivity, or an "
        "assumption that fails), and a later bound contains theirs."
    ]
