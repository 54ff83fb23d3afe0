"""Each kind of user app forgets a client and comes near retraining, or is refused with its sentence."""

import pytest

from benchmarks.user_apps.kinds import KINDS
from benchmarks.user_apps.table import page, reference

REFUSED = [name for name, kind in KINDS.items() if kind.refused]
AS_MUCH_AS_RETRAINED = 0.1


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_with_a_sentence(name: str) -> None:
    """Before or in the first round, and no model is left."""
    found, _ = reference(name)
    assert found["as expected"], found["refused"]


# What peft asks Transformers 5.24, and PyTorch 2.15's compiler a tensor.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS.keys() - set(REFUSED)))
def test_a_deletion_comes_near_retraining(name: str) -> None:
    """In the score on the server's test data, with a method that works on every network."""
    found, _ = reference(name)
    assert found["works"], found["said"]
    scores = found["scores"]
    compared_with = scores["retrained"] if KINDS[name].retrains else scores["before"]
    assert scores["forgotten"] >= compared_with - AS_MUCH_AS_RETRAINED


def test_the_table_says_what_was_not_run() -> None:
    """And what differs elsewhere."""
    scores = {"before": 0.9, "forgotten": 0.8, "retrained": 0.85}
    ran = {"as expected": True, "apart": 0.0}
    one = {
        "what": "an app",
        "method": "not",
        "scores": scores,
        "session": ran,
        "messages": {"as expected": False},
    }
    assert page({"one": one})[-1] == "| an app | not | 0.900 | 0.800 | 0.850 | not run | same (0) | differs |"
