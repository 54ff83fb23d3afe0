"""What binds a round of secure aggregation to its work."""

import numpy as np
import pytest
from flwr.app import RecordDict

from strategies.messages import ARRAYS, CONFIG, UNLEARN, Json, json_record, model_record
from strategies.secure_exchange import work_hash

WORK: Json = {"method": "puf-regular", "training": {"seed": 1}, "values": {"unlearning_rate": 20.0}}


def hashed(values: Json, model: float = 1.0) -> bytes:
    content = RecordDict({ARRAYS: model_record(np.full(4, model)), CONFIG: json_record(values)})
    return work_hash(UNLEARN, content)


@pytest.mark.parametrize(
    "other",
    [
        {"method": "retrain"},
        {"training": {"seed": 2}},
        {"values": {"unlearning_rate": 1e-9}},  # else one client's part would be nearly all of the sum
        {"samples": 5},
    ],
)
def test_clients_that_are_told_other_work_have_other_masks(other: Json) -> None:
    """Method, training, rates and samples are the same for all, or no mask cancels."""
    assert hashed({**WORK, **other}) != hashed(WORK)
    assert hashed(WORK, model=2.0) != hashed(WORK)


def test_what_each_client_is_told_alone_changes_no_mask() -> None:
    """What it forgets, and the shares for it."""
    assert hashed({**WORK, "forget": {"everything": True}, "secure": {"sealed": {}}}) == hashed(WORK)
