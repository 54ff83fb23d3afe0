"""How much of (ε, δ) the deletions served so far have used up, and which next one would be too much.

HF-online's releases are those of completed requests: each request's result in the ledger holds its own, so the
account is the same after a crash, a restart and from a backup. It is computed in three places:

    accounted       when the method has finished, before anything is committed: refuses what exceeds the budget
    announce        after every round: what each next deletion would cost, for the door
    check_budget    at the door, in the deletion service, which has the ledger alone

What the noise rests on: `unlearning.certified.account`; what Δ is: `unlearning.methods.deletion_sensitivity`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from server.ledger import Ledger
from server.preparations import FIRST
from server.state import Batch, FederationState, Phase
from strategies.run_config import RunSettings
from unlearning.certified import Account, AccountedRelease, Sensitivity
from unlearning.certified.noise import largest_ratio
from unlearning.errors import MethodFailed, UnsupportedRequest
from unlearning.methods.carried_lengths import KeptLengths
from unlearning.methods.carried_vector_options import CarriedVectorOptions
from unlearning.methods.carried_vectors import kept_lengths
from unlearning.methods.deletion_sensitivity import deletion_sensitivity
from unlearning.requests import Status, Target
from unlearning.stores import DirectoryStore

if TYPE_CHECKING:
    from server.driver import Driver

METHOD = "hf-online"
FACT = "privacy"
"""The fact under which the door finds the budget and what is left of it."""
FINDING = "privacy account"
"""The finding of the report, and the key in a request's result, that hold the account."""

_RELEASE = "privacy_release"
_ROUNDING = 1e-9  # a deletion that is planned to use up all of the budget must not fail by its last digit
_USUAL_DELTA = 1e-5  # at which a deletion without noise or budget is spoken of
_WHAT_TO_DO = (
    "Choose retrain, which needs no noise; or give more noise (sigma) or a larger budget in prepare and restart the "
    "run. Noise that is larger from now on takes nothing back of what is used up."
)


def budget_of(settings: RunSettings) -> CarriedVectorOptions | None:
    """The options that set a budget for HF-online; None where there is none."""
    prepared = settings.preparations().get(METHOD)
    options: Any = None if prepared is None else prepared.options
    return options if isinstance(options, CarriedVectorOptions) and options.sigma is not None else None


def may_serve_together(settings: RunSettings, method: str) -> bool:
    """Whether several requests may be one deletion; with a budget each is counted, and refused, by itself."""
    return method != METHOD or budget_of(settings) is None


def earlier_releases(ledger: Ledger) -> tuple[tuple[AccountedRelease, ...], frozenset[str]]:
    """HF-online's releases so far, in their order, and the clients that they have forgotten."""
    releases: dict[str, AccountedRelease] = {}
    forgotten = set()
    for request in ledger.list_requests(statuses=(Status.COMPLETED,)):
        if request.method != METHOD or _RELEASE not in request.result:
            continue
        release = AccountedRelease.restored(request.result[_RELEASE])
        releases[release.name] = release  # requests that were served together share one
        if request.target.client_id is not None:
            forgotten.add(request.target.client_id)
    return tuple(sorted(releases.values(), key=lambda one: one.number)), frozenset(forgotten)


def accounted(
    driver: "Driver", state: FederationState, batch: Batch, findings: Mapping[str, Any]
) -> dict[str, Any]:
    """`findings` of a method that has finished, with the account where it is HF-online.

    Raises:
        MethodFailed: the deletion would use more than the budget; nothing of it may be committed.
    """
    if batch.method != METHOD:
        return dict(findings)
    options = budget_of(driver.settings)
    own = batch.parameters
    sigma = float(findings.get("σ", 0.0))
    declared = own.get("sensitivity") if options is None else options.sensitivity
    earlier, forgotten = earlier_releases(driver.ledger)
    forgotten |= {target.client_id for target in batch.targets if target.client_id is not None}
    sensitivity, unmet = _sensitivity(driver, _lengths(driver, state), forgotten, earlier, declared)
    release = AccountedRelease(
        name=batch.request_ids[0],
        number=state.round + 1,
        sigma=sigma,
        sensitivity=sensitivity,
        unmet=unmet,
    )
    if options is not None:
        _refuse_if_spent(options, earlier, release)
    delta = own.get("delta") if options is None else options.delta
    account = Account(
        releases=(*earlier, release),
        delta=delta or _USUAL_DELTA,
        epsilon=None if options is None else options.epsilon,
    )
    return {**findings, FINDING: account.values(), _RELEASE: release.values()}


def result_of(batch: Batch) -> dict[str, Any]:
    """What the ledger keeps of the account with the request's result."""
    return {name: batch.findings[name] for name in (FINDING, _RELEASE) if name in batch.findings}


def shown(findings: Mapping[str, Any]) -> dict[str, Any]:
    """The findings for the report, without what only the ledger needs."""
    return {name: value for name, value in findings.items() if name != _RELEASE}


def announce(driver: "Driver", state: FederationState) -> None:
    """Tell the door what the next deletion of each client would use up; only where there is a budget."""
    options = budget_of(driver.settings)
    if options is None or state.phase is not Phase.TRAINING or METHOD not in state.prepared_since:
        return
    earlier, forgotten = earlier_releases(driver.ledger)
    kept = _lengths(driver, state)
    sensitivities = {}
    for record in driver.ledger.clients():
        client = record.client_id
        if options.has(client) and not state.exclusions.is_forgotten(client):
            found, unmet = _sensitivity(driver, kept, forgotten | {client}, earlier, options.sensitivity)
            sensitivities[client] = [None if found is None else found.value, list(unmet)]
    fact = {
        "epsilon": options.epsilon,
        "delta": options.delta,
        "sigma": options.sigma,
        "releases": [release.values() for release in earlier],
        "sensitivities": sensitivities,
    }
    driver.ledger.set_facts({FACT: fact}, token=driver.token, now=driver.now())


def check_budget(ledger: Ledger, target: Target, method: str, parameters: Mapping[str, Any]) -> None:
    """Refuse an HF-online request for which the budget, as far as the door knows, does not suffice.

    Raises:
        UnsupportedRequest: it would exceed the budget, or brings noise of its own to a federation that has one.
    """
    fact = ledger.facts().get(FACT) if method == METHOD else None
    if fact is None or target.client_id not in fact["sensitivities"]:
        return
    if parameters.get("epsilon") is not None:
        raise UnsupportedRequest(
            "This federation's noise and budget are set in prepare. Leave epsilon, delta and sensitivity out of the "
            "request."
        )
    value, unmet = fact["sensitivities"][target.client_id]
    sensitivity = None if value is None else Sensitivity(value=value, is_bound=not unmet, source="")
    release = AccountedRelease(
        name="the request", number=0, sigma=fact["sigma"], sensitivity=sensitivity, unmet=tuple(unmet)
    )
    options = CarriedVectorOptions(epsilon=fact["epsilon"], delta=fact["delta"], sigma=fact["sigma"])
    try:
        _refuse_if_spent(options, [AccountedRelease.restored(one) for one in fact["releases"]], release)
    except MethodFailed as exc:
        raise UnsupportedRequest(str(exc)) from exc


def _refuse_if_spent(
    options: CarriedVectorOptions,
    earlier: Sequence[AccountedRelease],
    release: AccountedRelease,
) -> None:
    assert options.epsilon is not None, "a budget is whole"
    assert options.delta is not None, "a budget is whole"
    if release.sensitivity is None:
        raise MethodFailed(
            "A budget is set, and no sensitivity is known that the noise could be counted by: "
            f"{' '.join(release.unmet)} Give feature_norm, or a measured sensitivity, in prepare and restart the run.",
            retryable=False,
        )
    account = Account(releases=(*earlier, release), delta=options.delta, epsilon=options.epsilon)
    if account.spent_ratio <= largest_ratio(epsilon=options.epsilon, delta=options.delta) * (1 + _ROUNDING):
        return
    before = Account(releases=tuple(earlier), delta=options.delta).spent_epsilon
    used = "an earlier deletion had no noise that could be counted"
    if before is not None:
        used = (
            f"{before:.4g} is used up by {len(earlier)} deletion(s), with this one it would be "
            f"{account.spent_epsilon:.4g}"
        )
    raise MethodFailed(
        f"The deletion would exceed the federation's budget of epsilon = {options.epsilon:g} at delta = "
        f"{options.delta:g}: {used} (sensitivity {release.sensitivity.value:.4g}, noise {release.sigma:.4g}). "
        f"{_WHAT_TO_DO}",
        retryable=False,
    )


def _options(driver: "Driver") -> CarriedVectorOptions:
    options: Any = driver.preparations.prepared[METHOD].options
    assert isinstance(options, CarriedVectorOptions)
    return options


def _lengths(driver: "Driver", state: FederationState) -> KeptLengths:
    """The lengths of all rounds that the vectors were carried through."""
    generation = state.generations.get(METHOD, FIRST)
    return kept_lengths(_options(driver), DirectoryStore(driver.preparations.directory / METHOD / generation))


def _sensitivity(
    driver: "Driver",
    kept: KeptLengths,
    forgotten: frozenset[str],
    earlier: Sequence[AccountedRelease],
    declared: float | None,
) -> tuple[Sensitivity | None, tuple[str, ...]]:
    return deletion_sensitivity(
        driver.task,
        _options(driver),
        kept,
        weight_decay=driver.settings.weight_decay,
        forgotten=forgotten,
        earlier=earlier,
        declared=declared,
    )
