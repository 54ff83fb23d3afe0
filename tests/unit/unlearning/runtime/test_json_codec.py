"""JSON by the types: strict with what others send, and nothing of that in an error."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from unlearning.certified.privacy_accountant import AccountedRelease
from unlearning.certified.sensitivity import Sensitivity
from unlearning.errors import InvalidRequest
from unlearning.requests import Exclusions, Forget, Target
from unlearning.runtime.json_codec import from_plain, restore, to_plain, with_arrays

RELEASE = {"name": "r", "number": 1, "sigma": 0.5, "sensitivity": None}


@dataclass(frozen=True)
class Kept:
    vector: Any
    figures: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("kind", "value", "where"),
    [
        (Forget, {"everything": 1}, "everything: Input should be a valid boolean"),
        (Forget, {"sample_ids": "secret"}, "sample_ids: "),
        (Forget, {"sample_ids": [7, "secret"]}, "sample_ids.0: "),
        (Forget, {"classes": [True]}, "classes.0: "),
        (Forget, {"classes": [1.5]}, "classes.0: "),
        (Forget, ["secret"], "all of it: "),
        (Target, {"granularity": "secret"}, "granularity: "),
        (Target, {"granularity": "class", "class_label": "3"}, "class_label: "),
        (Target, {}, "granularity: Field required"),
        (Exclusions, {"clients": {"1": {"everything": "secret"}}}, "clients.1.everything: "),
        (AccountedRelease, {**RELEASE, "sigma": "1"}, "sigma: "),
        (
            AccountedRelease,
            {**RELEASE, "sensitivity": {"value": 1.0}},
            "sensitivity.is_bound: Field required",
        ),
        (AccountedRelease, {**RELEASE, "secret\n": 1}, "secret : Unexpected keyword argument"),
    ],
)
def test_what_is_of_another_form_is_refused_by_its_place(kind: type[Any], value: Any, where: str) -> None:
    """In one line; no type is turned into another, and what was sent is not repeated."""
    with pytest.raises(ValueError, match=where) as caught:
        from_plain(kind, value, exactly=kind is AccountedRelease)
    message = str(caught.value)
    assert "\n" not in message
    assert "secret" not in message.replace("secret : ", "")
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_a_name_more_is_passed_over_where_that_is_not_asked() -> None:
    """As of a newer version."""
    assert from_plain(Forget, {"everything": True, "mood": "good"}) == Forget(everything=True)
    with pytest.raises(ValueError, match="mood: Unexpected"):
        from_plain(Forget, {"everything": True, "mood": "good"}, exactly=True)


def test_a_type_s_own_checks_are_made_and_speak_for_themselves() -> None:
    """Also of what is read."""
    with pytest.raises(InvalidRequest, match="must name a client"):
        from_plain(Target, {"granularity": "client"})


def test_numbers_that_are_not_finite_stay() -> None:
    """Both ways, where they are in a field and where they are in a mapping of anything."""
    one = AccountedRelease(
        name="r", number=1, sigma=0.0, sensitivity=Sensitivity(value=math.inf, is_bound=False, source="")
    )
    assert from_plain(AccountedRelease, to_plain(one)) == one
    plain = to_plain(Kept(vector=None, figures={"σ": math.inf, "lost": math.nan, "pair": (1, 2)}))
    assert plain["figures"]["σ"] == math.inf
    assert math.isnan(plain["figures"]["lost"])
    assert plain["figures"]["pair"] == [1, 2]


def test_arrays_stay_beside_json_and_come_back() -> None:
    """JSON has none of them; whatever else it cannot hold is an error."""
    one = Kept(vector=np.arange(3, dtype=np.float32))
    assert to_plain(one) == {"vector": None, "figures": {}}
    assert restore(Kept, with_arrays(one)).vector is one.vector
    with pytest.raises(TypeError, match="object has no place in JSON"):
        to_plain(Kept(vector=object()))
