"""Most numbers of a request have a narrower range for those who are no operators.

That every number is bounded, and every default safe, the contract of all methods checks.
"""

from typing import Any

import pytest

from unlearning.methods.registry import METHODS, validated_parameters
from unlearning.methods.safe_range import beyond_safe_range


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
