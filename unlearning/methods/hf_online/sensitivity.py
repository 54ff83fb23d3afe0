"""The Δ of an HF-online deletion in a federation: proven where it can be, declared elsewhere, else unknown.

Proven is what follows from the records of the rounds (`carried_lengths`) and of earlier releases, and from nothing
else. Records and releases must make one chain of models, from the one that training began with to the one that
is deleted from: what is not in the chain is not covered, and then nothing is proven.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from unlearning.certified import (
    AccountedRelease,
    Basis,
    EarlierRelease,
    Sensitivity,
    federated_bound,
    measured_sensitivity,
)
from unlearning.errors import ConfigurationError, NumericalError
from unlearning.methods.hf_online.lengths import KeptRound, KeptRounds
from unlearning.methods.hf_online.options import CarriedVectorOptions
from unlearning.methods.hf_online.vectors import kept_rounds
from unlearning.parameters import Vector, content_hash
from unlearning.stores import Store

_MIXED = (
    "Some rounds were carried with renormalised weights and some with fixed ones: there is no one retraining to "
    "compare with."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A deletion by addition of vectors, as a bound sees it.

    targets: whom it forgets.
    model, start: hashes of the model that it starts from, and of the one that training began with.
    kept_at: of each target, the round after which its vector was kept; None where there is none.
    unmet: what else is missing to a proof.
    """

    targets: frozenset[str]
    model: str
    start: str
    kept_at: Mapping[str, int | None] = field(default_factory=dict)
    unmet: tuple[str, ...] = ()


class KeptBound:
    """The Δ of deletions from the model that the records in `store` lead to; they are read once."""

    def __init__(self, options: CarriedVectorOptions, store: Store, initial: Callable[[], Vector]) -> None:
        self._store = store
        self._kept = kept_rounds(options, store)
        rounds = self._kept.rounds
        is_whole = bool(rounds) and rounds[0].lengths.number == 1
        # In the first rounds nobody may have trained, and then there is no record of them.
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
        """Return Δ of the deletion and all earlier ones together, and what is missing to a proof."""
        kept_at = {client: self._store.rounds(client) for client in targets}
        deletion = Deletion(
            targets=targets,
            model=model,
            start=self._start,
            kept_at={client: rounds[-1] if rounds else None for client, rounds in kept_at.items()},
            unmet=unmet,
        )
        return deletion_sensitivity(self._kept, deletion, earlier, declared=declared)


def deletion_sensitivity(
    kept: KeptRounds,
    deletion: Deletion,
    earlier: Sequence[AccountedRelease],
    *,
    declared: float | None = None,
) -> tuple[Sensitivity | None, tuple[str, ...]]:
    """Return Δ of the deletion and all earlier ones together, and what is missing to a proof, a sentence each.

    declared: a distance measured elsewhere, that counts where nothing is proven; None for none.
    """
    committed, broken = _follow_releases(kept.rounds, earlier, deletion)
    unmet = [*deletion.unmet, *kept.unmet, *broken, *_unproven(earlier)]
    unmet += _unfit_vectors(kept.rounds, deletion)
    weightings = {one.weighting for one in kept.rounds}
    if len(weightings) > 1:
        unmet.append(_MIXED)
    if not unmet:
        try:
            if not kept.rounds:
                return _nothing_trained(committed), ()
            forgotten = deletion.targets.union(*(release.clients for release in committed))
            lengths = [one.lengths for one in kept.rounds]
            return federated_bound(lengths, forgotten, kept.rounds[0].weighting, earlier=committed), ()
        except (NumericalError, ConfigurationError) as exc:
            unmet.append(str(exc))
    if declared is None:
        return None, tuple(unmet)
    return measured_sensitivity(declared, "declared, measured elsewhere"), tuple(unmet)


def _nothing_trained(committed: Sequence[EarlierRelease]) -> Sensitivity:
    """Count only earlier releases: before the first round nobody has trained."""
    return Sensitivity(
        value=sum(one.sensitivity for one in committed),
        is_bound=True,
        source="nobody had trained: the model is the one that training began with",
    )


def _follow_releases(
    rounds: Sequence[KeptRound], earlier: Sequence[AccountedRelease], deletion: Deletion
) -> tuple[list[EarlierRelease], list[str]]:
    """Return the earlier releases that the model went on from, and where the chain of models breaks.

    A release whose model was given up (the attempt failed after it) is not among them: the model went on as it was.
    """
    committed: list[EarlierRelease] = []
    at, waiting = deletion.start, sorted(earlier, key=lambda one: one.number)
    for one in rounds:
        while waiting and waiting[0].number <= one.lengths.number:
            at = _after_release(waiting.pop(0), at, one.before, committed)
        if one.before != at:
            return committed, [_gap(f"round {one.lengths.number}")]
        at = one.after
    while waiting:
        following = waiting[1].before if len(waiting) > 1 else deletion.model
        at = _after_release(waiting.pop(0), at, following, committed)
    return committed, [] if at == deletion.model else [_gap("this deletion")]


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
        "there is no record (rounds without prepare, an earlier version, another method, a restored backup)."
    )


def _unproven(earlier: Iterable[AccountedRelease]) -> list[str]:
    names = [release.name for release in earlier if release.basis is not Basis.PROVEN or not release.after]
    if not names:
        return []
    return [
        f"The earlier release(s) of {', '.join(names)} rest on no proof (no noise, a declared or no sensitivity, or an "
        "assumption that fails), and a later bound contains theirs."
    ]


def _unfit_vectors(rounds: Sequence[KeptRound], deletion: Deletion) -> list[str]:
    """List clients whose vector is not that of the last record, or who have one without a record of training."""
    trained = {client for one in rounds for client in one.lengths.clients}
    last = rounds[-1].lengths.number if rounds else None
    unfit = [
        client
        for client in sorted(deletion.targets)
        if deletion.kept_at.get(client) != (last if client in trained else None)
    ]
    if not unfit:
        return []
    return [f"The kept vector of client(s) {', '.join(unfit)} does not belong to the records of the rounds."]
