"""What a rule is that every method keeps to, and the rules about a method as such (others: `deletion_rules`).

A rule's check returns what it saw of a method that breaks it, and "" of one that does not.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from unlearning.errors import InvalidRequest
from unlearning.methods.costs import Cost, CostSymbols
from unlearning.methods.method import (
    Method,
    MethodInfo,
    MethodParameters,
    Need,
)
from unlearning.methods.registry import validated_parameters
from unlearning.methods.safe_range import beyond_safe_range
from unlearning.requests import Granularity

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Rule(Generic[Subject]):
    """A rule: a name that says what is kept, how it is checked, and what to do where it is broken."""

    name: str
    check: Callable[[Subject], str]
    remedy: str


RULES: list[Rule[Method]] = []


def rule(
    rules: list[Rule[Subject]], name: str, remedy: str
) -> Callable[[Callable[[Subject], str]], Callable[[Subject], str]]:
    """Return what puts a check among `rules`."""

    def add(check: Callable[[Subject], str]) -> Callable[[Subject], str]:
        rules.append(Rule(name, check, remedy))
        return check

    return add


@rule(
    RULES,
    "states what it is",
    "Give MethodInfo a name of small letters, digits and hyphens, a title, a source and what it can forget.",
)
def _states_itself(method: Method) -> str:
    info = method.info
    if not isinstance(info, MethodInfo):
        return f"info is a {type(info).__name__}"
    wrong = {
        "name": not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", info.name),
        "title": not info.title.strip(),
        "source": len(info.source) <= 10,
        "granularities": not info.granularities or not info.granularities <= set(Granularity),
        "needs": not info.needs <= set(Need),
    }
    named = ", ".join(f"{name}={getattr(info, name)!r}" for name, is_wrong in wrong.items() if is_wrong)
    return f"MethodInfo has {named}" if named else ""


@rule(
    RULES,
    "has parameters with defaults, and bounds that hold",
    "Subclass MethodParameters, give each field a default within its safe range, and each number a lower (ge, gt) "
    "and an upper bound (le, lt).",
)
def _bounds_parameters(method: Method) -> str:
    kind = method.Parameters
    if not (isinstance(kind, type) and issubclass(kind, MethodParameters)):
        return "Parameters is no subclass of MethodParameters"
    if not kind.model_config.get("frozen") or kind.model_config.get("extra") != "forbid":
        return "the parameters can be changed, or take names that there are not"
    defaults = validated_parameters(method, {})
    if validated_parameters(method, defaults.model_dump(mode="json")) != defaults:
        return "the defaults, written as JSON and read back, are others"
    if unsafe := list(beyond_safe_range(defaults)):
        return f"a default is beyond its own safe range: {unsafe[0]}"
    return next(_unbounded(method), "")


def _unbounded(method: Method) -> Iterator[str]:
    for name, described in method.Parameters.model_json_schema(by_alias=False).get("properties", {}).items():
        for schema in described.get("anyOf", [described]):
            if schema.get("type") not in ("number", "integer"):
                continue
            if not {"minimum", "exclusiveMinimum"} & set(schema):
                yield f"{name} has no lower bound"
            if not {"maximum", "exclusiveMaximum"} & set(schema):
                yield f"{name} has no upper bound"
            for value in (float("nan"), float("inf"), -float("inf"), 1e30):
                try:
                    validated_parameters(method, {name: value})
                except InvalidRequest:
                    continue
                yield f"{name} = {value} is accepted"


@rule(
    RULES,
    "can be priced and repaired",
    "cost() returns a Cost of no negative numbers or None, for any symbols; repair_rounds() a count.",
)
def _states_its_price(method: Method) -> str:
    parameters = validated_parameters(method, {})
    preparation = method.info.preparation
    given = CostSymbols(
        num_parameters=9,
        bytes_per_parameter=4,
        num_targets=1,
        num_retained=2,
        flops_per_example=10.0,
        examples_per_client=7.0,
        epochs=1.0,
        training_rounds=3,
        num_head_parameters=9,
        num_classes=3,
    )
    cost = method.cost(given, parameters, None if preparation is None else preparation())
    figures = (
        (cost.communication_bytes, cost.computation_flops, cost.storage_bytes)
        if isinstance(cost, Cost)
        else ()
    )
    if cost is not None and (not figures or min(figures) < 0):
        return f"cost() gave {cost!r}"
    rounds = method.repair_rounds(parameters)
    return "" if isinstance(rounds, int) and rounds >= 0 else f"repair_rounds() gave {rounds!r}"
