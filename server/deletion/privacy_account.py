"""How much of (ε, δ) the deletions served so far have used up, and which next one would be too much.

A release is noted in the ledger, as an event of its request, before its model leaves this process. It counts from then
on, whatever becomes of the attempt: the model may have been seen. The same deletion done again (the same request,
model and noise) is the same release. So the account is the same after a crash, a restart and from a backup. It is
computed in three places:

    accounted           when the method has finished, before anything is committed: refuses what exceeds the budget
    announce_account    after every round: what each next deletion would cost, for admission
    check_budget        on admission, in the deletion service, which has the ledger alone
                        (`server.requests.privacy_budget`)

What the noise rests on: `unlearning.certified.privacy_accountant`.
What Δ is: `unlearning.methods.hf_online.sensitivity`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.federation.context import FederationContext
from server.federation.preparations import FIRST
from server.federation.state import ActiveDeletion, FederationState, Phase
from server.requests.privacy_budget import (
    FACT,
    METHOD,
    RELEASE,
    RELEASED,
    budget_of,
    earlier_releases,
    refuse_if_spent,
)
from server.state_directory.files import UNDONE_FILE
from unlearning.certified import Account, AccountedRelease, Sensitivity
from unlearning.methods.hf_online.lengths import KeptRounds
from unlearning.methods.hf_online.options import CarriedVectorOptions
from unlearning.methods.hf_online.sensitivity import Deletion, deletion_sensitivity
from unlearning.methods.hf_online.vectors import kept_rounds
from unlearning.methods.method import UnlearningState
from unlearning.parameters import content_hash
from unlearning.stores import DirectoryStore, Store
from unlearning.training import initial_parameters

FINDING = "privacy account"
"""The finding of the report, and the key in a request's result, that hold the account."""

_USUAL_DELTA = 1e-5  # at which a deletion without noise or budget is spoken of
_UNDONE = f"A restore has undone deletions ({UNDONE_FILE}); releases that went with them are not known here any more."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Records:
    """What is kept of the rounds, and the hashes of the models that the next deletion and training began with."""

    store: Store
    kept: KeptRounds
    model: str
    start: str


def accounted(
    context: FederationContext, state: FederationState, deletion: ActiveDeletion, found: UnlearningState
) -> dict[str, Any]:
    """The findings of a method that has finished, with the account where it is HF-online.

    The release is in the ledger when this returns, before anything of it is committed or sent.

    Raises:
        MethodFailed: the deletion would use more than the budget; nothing of it may be committed.
    """
    findings = dict(found.findings)
    if deletion.method != METHOD:
        return findings
    options = budget_of(context.settings)
    own = deletion.parameters
    after = content_hash(found.parameters)
    earlier = tuple(
        release
        for release in earlier_releases(context.ledger)
        if (release.name, release.after) != (deletion.request_ids[0], after)
    )
    targets = frozenset(target.client_id for target in deletion.targets if target.client_id is not None)
    declared = own.get("sensitivity") if options is None else options.sensitivity
    sensitivity, unmet = _sensitivity(context, state, targets, earlier, declared)
    release = AccountedRelease(
        name=deletion.request_ids[0],
        number=state.round + 1,
        sigma=float(findings.get("σ", 0.0)),
        sensitivity=sensitivity,
        unmet=unmet,
        clients=tuple(sorted(targets)),
        before=content_hash(state.parameters),
        after=after,
    )
    if options is not None:
        refuse_if_spent(options, earlier, release)
    context.writer.note(release.name, RELEASED, release.values())
    delta = own.get("delta") if options is None else options.delta
    account = Account(
        releases=(*earlier, release),
        delta=delta or _USUAL_DELTA,
        epsilon=None if options is None else options.epsilon,
    )
    return {**findings, FINDING: account.values(), RELEASE: release.values()}


def result_of(deletion: ActiveDeletion) -> dict[str, Any]:
    """What the ledger keeps of the account with the request's result."""
    return {name: deletion.findings[name] for name in (FINDING, RELEASE) if name in deletion.findings}


def shown(findings: Mapping[str, Any]) -> dict[str, Any]:
    """The findings for the report, without what only the ledger needs."""
    return {name: value for name, value in findings.items() if name != RELEASE}


def announce_account(context: FederationContext, state: FederationState) -> None:
    """Tell admission what the next deletion of each client would use up; only where there is a budget."""
    options = budget_of(context.settings)
    if options is None or state.phase is not Phase.TRAINING or METHOD not in state.prepared_since:
        return
    earlier = earlier_releases(context.ledger)
    known = _records(context, state)
    sensitivities = {}
    for record in context.ledger.clients():
        client = record.client_id
        if options.has(client) and not state.exclusions.is_forgotten(client):
            found, unmet = _sensitivity(
                context, state, frozenset({client}), earlier, options.sensitivity, known
            )
            sensitivities[client] = [None if found is None else found.value, list(unmet)]
    fact = {
        "epsilon": options.epsilon,
        "delta": options.delta,
        "sigma": options.sigma,
        "releases": [release.values() for release in earlier],
        "sensitivities": sensitivities,
    }
    context.writer.set_facts({FACT: fact})


def _options(context: FederationContext) -> CarriedVectorOptions:
    options: Any = context.preparations.prepared[METHOD].options
    assert isinstance(options, CarriedVectorOptions)
    return options


def _records(context: FederationContext, state: FederationState) -> _Records:
    store = DirectoryStore(context.preparations.directory / METHOD / state.generations.get(METHOD, FIRST))
    kept = kept_rounds(_options(context), store)
    is_whole = bool(kept.rounds) and kept.rounds[0].lengths.number == 1
    return _Records(
        store=store,
        kept=kept,
        model=content_hash(state.parameters),
        start=kept.rounds[0].before if is_whole else _start(context),
    )


def _start(context: FederationContext) -> str:
    """The hash of the model that the present settings begin with: in the first rounds, nobody may have trained."""
    return content_hash(initial_parameters(context.task, context.settings.seed))


def _sensitivity(
    context: FederationContext,
    state: FederationState,
    targets: frozenset[str],
    earlier: Sequence[AccountedRelease],
    declared: float | None,
    known: _Records | None = None,
) -> tuple[Sensitivity | None, tuple[str, ...]]:
    known = known or _records(context, state)
    kept_at = {client: known.store.rounds(client) for client in targets}
    deletion = Deletion(
        targets=targets,
        model=known.model,
        start=known.start,
        kept_at={client: rounds[-1] if rounds else None for client, rounds in kept_at.items()},
        unmet=(_UNDONE,) if (context.state_dir / UNDONE_FILE).exists() else (),
    )
    return deletion_sensitivity(known.kept, deletion, earlier, declared=declared)
