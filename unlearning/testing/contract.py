"""The contract test of a method: every rule, on each granularity that the method says it can forget."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unlearning.errors import ContractBroken
from unlearning.local import begin, learn, retained, unlearn
from unlearning.methods.method import Method, MethodInfo
from unlearning.one_line import as_line
from unlearning.parameters import norm
from unlearning.requests import Granularity, Target
from unlearning.testing.convex import DATA, TASK, TRAINING
from unlearning.testing.deletion_rules import DELETION_RULES
from unlearning.testing.deletions import Deletion
from unlearning.testing.method_rules import RULES, Rule, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """How near a method comes to retraining on a convex problem, by its author.

    distance: ‖unlearned − retrained‖ / ‖before − retrained‖ at most; 0: the same bits. rounds: of the training before,
    which retraining has too. parameters: the method's own for it.
    """

    distance: float
    rounds: int = 60
    parameters: Mapping[str, Any] = field(default_factory=dict)


def check_method(method: Method, claim: Claim | None = None) -> None:
    """Check that a method keeps to every rule of methods; a second or less for most.

    It carries out small deletions of each granularity that `method.info` names, in this process: state that survives a
    restart after any exchange, the same bits for the same seed, bounded parameters, nothing changed that it is given,
    nothing of the forgotten examples in its state, bad input refused, and the other rules of this folder.

    claim: checked too, where there is one.

    Raises:
        ContractBroken: lists every rule that is broken, with what was seen and what to do.
    """
    broken = [text for rule in RULES if (text := _broken(rule, method))]
    if isinstance(getattr(method, "info", None), MethodInfo):
        found: dict[str, list[str]] = {}
        for granularity in sorted(method.info.granularities & set(Granularity)):
            for text in _broken_by_deletion(method, granularity):
                found.setdefault(text, []).append(granularity)
        broken += [f"{text} (Forgetting: {', '.join(where)}.)" for text, where in found.items()]
        if claim is not None:
            broken += _beyond(claim, method)
    if broken:
        name = getattr(getattr(method, "info", None), "name", type(method).__name__)
        count = "1 rule" if len(broken) == 1 else f"{len(broken)} rules"
        raise ContractBroken(
            f"The method {name} breaks {count}:\n" + "\n".join(f"  - {text}" for text in broken)
        )


def distance_from_retraining(method: Method, claim: Claim) -> float:
    """Compute ‖unlearned − retrained‖ / ‖before − retrained‖ of forgetting a client of a convex federation."""
    preparation, target = method.info.preparation, [Target(Granularity.CLIENT, "u")]
    prepared = {} if preparation is None else {method.info.name: preparation()}

    def trained(sites: Any) -> Any:
        return learn(TASK, sites, begin(TASK, TRAINING, prepared), rounds=claim.rounds)

    before, without = trained(DATA), trained(retained(DATA, target)).parameters
    unlearned = unlearn(method, TASK, before, DATA, target, **claim.parameters).parameters
    return norm(unlearned - without) / norm(before.parameters - without)


def _broken_by_deletion(method: Method, granularity: Granularity) -> list[str]:
    """Return the rules that are broken in forgetting one kind of thing; all stand on the first."""
    try:
        deletion = Deletion(method, granularity)
    except Exception as exc:  # noqa: BLE001 - the author's own code, of which anything may come
        return [f"can be prepared for in training rounds: {_said(exc)}. Look at its Preparation."]
    ends, *others = DELETION_RULES
    first = _broken(ends, deletion)
    found = [first] if first else [_broken(rule, deletion) for rule in others]
    return [text for text in found if text]


def _beyond(claim: Claim, method: Method) -> list[str]:
    name = "comes as near to retraining as it claims"
    try:
        distance = distance_from_retraining(method, claim)
    except Exception as exc:  # noqa: BLE001 - as above
        return [f"{name}: {_said(exc)}."]
    if distance <= claim.distance:
        return []
    return [
        f"{name}: {distance:.3g} of the way from the retrained model is left, and the claim is {claim.distance:g}. "
        "Look for what differs from the paper, or claim less."
    ]


def _broken(rule: Rule[Subject], subject: Subject) -> str:
    try:
        seen = rule.check(subject)
    except Exception as exc:  # noqa: BLE001 - as above
        seen = _said(exc)
    return f"{rule.name}: {seen}. {rule.remedy}" if seen else ""


def _said(exc: Exception) -> str:
    return as_line(f"it raised {type(exc).__name__}: {exc}").rstrip(".")
