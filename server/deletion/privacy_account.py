"""How much of (ε, δ) the deletions served so far have used up, and which next one would be too much.

A release is noted in the ledger, as an event of its request, before its model is saved or sent. It counts from then on,
whatever becomes of the attempt: the model may have been seen. The same deletion done again (the same request,
model and noise) is the same release. So the account is the same after a crash, a restart and from a backup. It is
computed in three places:

    account_for         when the method has finished, before anything is committed: refuses what exceeds the budget
    announce_account    after every round: what each next deletion would cost, for admission
    check_budget        on admission, in the deletion service, which has the ledger alone
                        (`server.requests.privacy_budget`)

What the noise rests on: `unlearning.certified.privacy_accountant`.
What Δ is: the `sensitivity_bound` of the method.
"""

from collections.abc import Mapping
from typing import Any

from server.deletion.open_deletion import OpenDeletion
from server.federation.context import FederationContext
from server.federation.sample_accounts import covered_samples
from server.federation.state import ActiveDeletion, FederationState, Note, Phase
from server.requests.privacy_budget import (
    FACT,
    RELEASED,
    budget_of,
    earlier_releases,
    refuse_if_spent,
)
from server.state_directory.files import UNDONE_FILE
from unlearning.certified.privacy_accountant import Account, AccountedRelease
from unlearning.certified.sensitivity import Sensitivity
from unlearning.errors import MethodFailed
from unlearning.methods.method import Method, SensitivityBound, UnlearningState
from unlearning.methods.registry import method_named
from unlearning.outcomes import NEVER_USED, PRIVACY_ACCOUNT, RELEASE
from unlearning.parameters import content_hash
from unlearning.requests import Granularity, Target
from unlearning.runtime.json_codec import to_plain
from unlearning.training import initial_parameters

_USUAL_DELTA = 1e-5  # at which a deletion without noise or budget is spoken of
_NOT_ALONE = (
    "An earlier attempt has released a model too, and clipped models have a bound for one release only."
)
_UNDONE = f"A restore has undone deletions ({UNDONE_FILE}); releases that went with them are not known here any more."


def account_for(
    opened: OpenDeletion,
    deletion: ActiveDeletion,
    found: UnlearningState,
    number: int,
    generation: str | None,
) -> tuple[dict[str, Any], Note | None]:
    """Return the findings of a method that has finished in round `number`, and a note of its release if there is noise.

    generation: of the method's store.

    Raises:
        MethodFailed: the deletion would use more than the budget; nothing of it may be committed.
    """
    findings, context = dict(found.findings), opened.context
    if opened.method.info.rests_on_training:
        return {**findings, PRIVACY_ACCOUNT: _covered(context, deletion)}, None
    noise = found.noise
    if noise is None:
        return findings, None
    name, after = deletion.request_ids[0], content_hash(found.parameters)
    earlier = tuple(one for one in earlier_releases(context.ledger) if (one.name, one.after) != (name, after))
    targets = frozenset(target.client_id for target in deletion.targets if target.client_id is not None)
    budgeted = budget_of(context.settings) if opened.prepared is not None else None
    sensitivity: Sensitivity | None
    unmet: tuple[str, ...]
    if noise.bound is not None:
        earlier = tuple(one for one in earlier if one.name == name)  # attempts of this deletion that failed
        sensitivity, unmet = noise.bound, (_NOT_ALONE,) if noise.holds_alone and earlier else ()
    else:
        bound = _bound(context, opened.method, generation)
        sensitivity, unmet = bound(
            targets, deletion.hash_before, earlier, declared=noise.sensitivity, unmet=_undone(context)
        )
    release = AccountedRelease(
        name=name,
        number=number,
        sigma=noise.sigma,
        sensitivity=sensitivity,
        unmet=unmet,
        clients=tuple(sorted(targets)),
        before=deletion.hash_before,
        after=after,
        not_of=noise.not_of,
    )
    if budgeted is not None:
        refuse_if_spent(budgeted[1], earlier, release)
    account = Account(
        releases=(*earlier, release),
        delta=noise.delta or _USUAL_DELTA,
        epsilon=None if budgeted is None else budgeted[1].epsilon,
    )
    note = Note(request_id=release.name, kind=RELEASED, detail=to_plain(release))
    return {**findings, PRIVACY_ACCOUNT: account.values(), RELEASE: to_plain(release)}, note


def _covered(context: FederationContext, deletion: ActiveDeletion) -> dict[str, Any]:
    """Return the account of a deletion that private training covers.

    Raises:
        MethodFailed: training was not private, or what it covers is too weak.
    """
    if any(target.granularity is Granularity.SAMPLE for target in deletion.targets):
        return covered_samples(context.ledger, deletion.targets)
    account = context.training_account
    if account is None:
        raise MethodFailed("Training is not private.", retryable=False, code="not-private")
    left = context.ledger.exclusions().including(deletion.targets).num_clients
    covered = account.covered(left)
    if reason := covered.weakness(covered.epsilon_next, left):
        raise MethodFailed(reason, retryable=False, code="not-covered")
    return account.statement(covered)


def result_of(deletion: ActiveDeletion) -> dict[str, Any]:
    """Return what the ledger keeps of the findings with the request's result."""
    kept = (PRIVACY_ACCOUNT, RELEASE, NEVER_USED)
    return {name: deletion.findings[name] for name in kept if name in deletion.findings}


def drop_release(findings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the findings for the report, without what only the ledger needs."""
    return {name: value for name, value in findings.items() if name != RELEASE}


def announce_account(context: FederationContext, state: FederationState) -> None:
    """Tell admission what the next deletion of each client would use up; only where there is a budget."""
    budgeted = budget_of(context.settings)
    if budgeted is None or state.phase is not Phase.TRAINING:
        return
    name, budget = budgeted
    if name not in state.prepared_since:
        return
    prepared = context.preparations.prepared[name]
    earlier = earlier_releases(context.ledger)
    bound = _bound(context, method_named(name), state.generation_of(name))
    model, unmet = content_hash(state.parameters), _undone(context)
    sensitivities = {}
    for record in context.ledger.clients():
        target = Target(Granularity.CLIENT, record.client_id)
        if prepared.refusal(target):
            continue
        if not state.exclusions.is_forgotten(record.client_id):
            found, missing = bound(
                frozenset({record.client_id}), model, earlier, declared=budget.sensitivity, unmet=unmet
            )
            sensitivities[record.client_id] = [None if found is None else found.value, list(missing)]
    fact = {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "sigma": budget.sigma,
        "releases": [to_plain(release) for release in earlier],
        "sensitivities": sensitivities,
    }
    context.writer.set_facts({FACT: fact})


def _bound(context: FederationContext, method: Method, generation: str | None) -> SensitivityBound:
    """Return what bounds the sensitivity of releases by a method, from what is kept for it."""
    store = context.preparations.store(method.info.name, generation)
    prepared = context.preparations.prepared[method.info.name]
    return method.sensitivity_bound(
        prepared, store, lambda: initial_parameters(context.task, context.settings.seed)
    )


def _undone(context: FederationContext) -> tuple[str, ...]:
    """Return what a restore has taken from every proof."""
    return (_UNDONE,) if (context.state_dir / UNDONE_FILE).exists() else ()
