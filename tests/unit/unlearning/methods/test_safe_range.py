"""Every number that a request may carry is bounded, and most have a narrower range for those who are no operators."""

from typing import Any

import pytest

from unlearning.errors import InvalidRequest
from unlearning.methods.registry import METHODS, validated_parameters
from unlearning.methods.safe_range import beyond_safe_range

NUMBERS = [
    (method, name, schema)
    for method, item in METHODS.items()
    for name, described in item.Parameters.model_json_schema().get("properties", {}).items()
    for schema in described.get("anyOf", [described])
    if schema.get("type") in ("number", "integer")
]


@pytest.mark.parametrize(("method", "name", "schema"), NUMBERS, ids=lambda value: str(value)[:30])
def test_every_number_has_two_bounds(method: str, name: str, schema: dict[str, Any]) -> None:
    """A method without them fails here, before a client finds it."""
    assert {"minimum", "exclusiveMinimum"} & set(schema), f"{method}: {name} has no lower bound"
    assert {"maximum", "exclusiveMaximum"} & set(schema), f"{method}: {name} has no upper bound"


def test_the_list_of_numbers_is_not_empty() -> None:
    """The test above looks at something."""
    assert ("puf-special", "unlearning_rate") in {(method, name) for method, name, _ in NUMBERS}


@pytest.mark.parametrize(("method", "name", "schema"), NUMBERS, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_no_number_may_be_endless(method: str, name: str, schema: dict[str, Any], value: float) -> None:
    """Not finite, or beyond any bound: refused to everybody."""
    with pytest.raises(InvalidRequest, match=name):
        validated_parameters(METHODS[method], {name: value})


@pytest.mark.parametrize("method", METHODS)
def test_the_defaults_are_safe(method: str) -> None:
    """Whoever may file a request may file it without parameters."""
    assert not list(beyond_safe_range(METHODS[method].Parameters()))


@pytest.mark.parametrize(
    ("method", "values", "phrase"),
    [
        ("puf-special", {"unlearning_rate": 100}, "unlearning_rate = 100.0 (the safe range is at most 10)"),
        ("hf-kcu-influence", {"damping": 0}, "damping = 0.0 (the safe range is at least 0.001)"),
        ("gradient-ascent", {"clip_norm": 0}, "clip_norm = 0.0 (the safe range is 0.001 to 10)"),
        ("not", {"layers": "0.weight"}, "layers = ('0.weight',) (the safe range is its default (none))"),
        (
            "hf-online",
            {"epsilon": 1, "delta": 0.1, "sensitivity": 5},
            "epsilon = 1.0 (the safe range is its default (none))",
        ),
    ],
)
def test_what_is_beyond_the_safe_range_is_named(method: str, values: dict[str, Any], phrase: str) -> None:
    """Parameter, value and range, in one phrase."""
    assert phrase in list(beyond_safe_range(validated_parameters(METHODS[method], values)))


def test_the_safe_range_is_shown_with_the_method() -> None:
    """A caller reads it where the bounds are."""
    described = METHODS["puf-special"].Parameters.model_json_schema()["properties"]["unlearning_rate"]
    assert described["safe"] == "at most 10"
    assert described["maximum"] == 1000
