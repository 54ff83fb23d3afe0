"""The budget (ε, δ) of a method that draws noise, as far as the ledger tells: what is used up, what is refused.

What a deletion uses up is computed in `server.deletion.privacy_account`, which notes each release in the ledger.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from server.ledger import Ledger
from strategies.settings.run_config import RunSettings
from unlearning.certified.privacy_accountant import Account, AccountedRelease
from unlearning.certified.sensitivity import Sensitivity
from unlearning.errors import MethodFailed, UnsupportedRequest
from unlearning.methods.method import Method
from unlearning.methods.preparation import NoiseBudget
from unlearning.methods.registry import METHODS
from unlearning.requests import Target
from unlearning.runtime.json_codec import from_plain

FACT = "privacy"
"""The fact under which admission finds the budget and what is left of it."""
RELEASED = "noise-released"
"""The kind of the event of a release: its detail is the release, in plain values."""

_WHAT_TO_DO = (
    "Choose retrain, which needs no noise; or give more noise (sigma) or a larger budget in prepare and restart the "
    "run. Noise that is larger from now on takes nothing back of what is used up."
)


def budget_of(settings: RunSettings) -> tuple[str, NoiseBudget] | None:
    """Return the name of the prepared method that has a budget, and the budget; None where none has."""
    for name, prepared in settings.preparations().items():
        if (budget := prepared.noise_budget) is not None:
            return name, budget
    return None


def may_serve_together(settings: RunSettings, method: Method) -> bool:
    """Tell whether several requests may be one deletion; with a budget each is counted, and refused, by itself."""
    return not method.info.draws_noise or budget_of(settings) is None


def earlier_releases(ledger: Ledger) -> tuple[AccountedRelease, ...]:
    """Return the releases with noise so far, in their order, those of attempts that failed since included."""
    releases: dict[tuple[str, str], AccountedRelease] = {}
    for request in ledger.requests.select():
        if request.method not in METHODS or not METHODS[request.method].info.draws_noise:
            continue
        for event in ledger.events.all(request.id):
            if event.kind == RELEASED:
                release = from_plain(AccountedRelease, event.detail, exactly=True)
                releases[release.name, release.after] = release
    return tuple(sorted(releases.values(), key=lambda one: one.number))


def check_budget(ledger: Ledger, target: Target, method: Method, parameters: Mapping[str, Any]) -> None:
    """Refuse a request by a method that draws noise for which the budget, as far as the ledger says, does not suffice.

    Raises:
        UnsupportedRequest: it would exceed the budget, or brings noise of its own to a federation that has one.
    """
    counted = method.info.draws_noise and method.info.preparation is not None
    fact = ledger.facts().get(FACT) if counted else None
    if fact is None or target.client_id not in fact["sensitivities"]:
        return
    if parameters.get("epsilon") is not None:
        raise UnsupportedRequest(
            "This federation's noise and budget are set in prepare. Leave epsilon, delta and sensitivity out of the "
            "request.",
            code="noise-set-in-prepare",
        )
    value, unmet = fact["sensitivities"][target.client_id]
    sensitivity = None if value is None else Sensitivity(value=value, is_bound=not unmet, source="")
    release = AccountedRelease(
        name="the request", number=0, sigma=fact["sigma"], sensitivity=sensitivity, unmet=tuple(unmet)
    )
    budget = NoiseBudget(epsilon=fact["epsilon"], delta=fact["delta"], sigma=fact["sigma"])
    try:
        refuse_if_spent(
            budget, [from_plain(AccountedRelease, one, exactly=True) for one in fact["releases"]], release
        )
    except MethodFailed as exc:
        raise UnsupportedRequest(str(exc), code=exc.code) from exc


def refuse_if_spent(
    budget: NoiseBudget,
    earlier: Sequence[AccountedRelease],
    release: AccountedRelease,
) -> None:
    """Refuse a release that exceeds the budget, or whose noise cannot be counted.

    Raises:
        MethodFailed: what is used up, and what to do.
    """
    if release.sensitivity is None:
        raise MethodFailed(
            "A budget is set, and no sensitivity is known that the noise could be counted by: "
            f"{' '.join(release.unmet)} Choose retrain; or give a measured sensitivity in prepare and restart the run. "
            "A proven one needs feature_norm from the first round on.",
            retryable=False,
            code="noise-uncounted",
        )
    account = Account(releases=(*earlier, release), delta=budget.delta, epsilon=budget.epsilon)
    if account.is_within_budget:
        return
    before = Account(releases=tuple(earlier), delta=budget.delta).spent_epsilon
    used = "an earlier deletion had no noise that could be counted"
    if before is not None:
        after = account.spent_epsilon
        reached = "have no bound" if after is None else f"be {after:.4g}"
        used = f"{before:.4g} is used up by {len(earlier)} deletion(s), with this one it would {reached}"
    raise MethodFailed(
        f"The deletion would exceed the federation's budget of epsilon = {budget.epsilon:g} at delta = "
        f"{budget.delta:g}: {used} (sensitivity {release.sensitivity.value:.4g}, noise {release.sigma:.4g}). "
        f"{_WHAT_TO_DO}",
        retryable=False,
        code="budget-spent",
    )
