"""One measurement: what is computed, and what is said of the rest."""

import json

import numpy as np
import pytest

from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.verification.figures import Measurement, SetMeasure
from unlearning.verification.measurement import measure
from unlearning.verification.observations import Details, Observations


def observations(losses, score_sum=1.0, num_examples=None) -> Observations:
    losses = np.asarray(losses, dtype=np.float64)
    count = len(losses) if num_examples is None else num_examples
    mean = float(losses.mean()) if len(losses) else 0.0
    details = Details(np.zeros(len(losses), dtype=np.int64), (losses < 1).astype(float), losses, losses)
    return Observations(count, mean * count, score_sum, losses, np.exp(-losses), details)


TEST = observations([2.0, 2.5, 3.0, 3.5], score_sum=1.0)
RETAINED = observations([0.1, 0.2, 0.3, 0.4], score_sum=4.0)
FORGOTTEN = observations([0.2, 0.25, 3.0, 4.0], score_sum=2.0)


def measured(**changes) -> Measurement:
    sets = {"test": TEST, "retained": RETAINED, "forgotten": FORGOTTEN, **changes}
    return measure(stage="recovery", round=7, seed=0, **sets)


def test_each_set_has_its_own_means():
    """Scores 1/4, 4/4, 2/4 and the sets' own mean losses; with three sets nothing is left unmeasured."""
    result = measured()
    assert result.test == SetMeasure(4, 2.75, 0.25)
    assert result.retained == SetMeasure(4, pytest.approx(0.25), 1.0)
    assert result.forgotten == SetMeasure(4, pytest.approx(1.8625), 0.5)
    assert result.not_measured == ()


def test_the_confidence_attack_learns_from_retained_against_test():
    """Two of the forgotten look like retained examples, two like test ones; swapped sets swap that."""
    generator = np.random.default_rng(0)
    sure, unsure = generator.uniform(0.01, 0.1, 50), generator.uniform(2, 4, 50)
    forgotten = observations([0.05, 0.06, 0.07, 3.0])
    straight = measured(test=observations(unsure), retained=observations(sure), forgotten=forgotten)
    swapped = measured(test=observations(sure), retained=observations(unsure), forgotten=forgotten)
    assert straight.attacks["confidence"] == 0.75
    assert swapped.attacks["confidence"] == 0.25
    assert straight.attacks["confidence_balanced_accuracy"] == 1.0


def test_a_missing_set_is_named_with_the_given_reason():
    """The report's reader learns why there is no number, and which attacks did not run for it."""
    result = measured(forgotten=None, reasons={"forgotten": "client 3 was offline"})
    assert (result.forgotten, result.attacks) == (None, {})
    assert result.not_measured[0] == "forgotten data: client 3 was offline"
    assert [note.split(":")[0] for note in result.not_measured[1:]] == [
        "Yeom's attack",
        "confidence attack",
        "threshold attacks",
    ]


def test_a_set_that_is_there_in_part_is_named_too():
    """A class on three clients of which one was offline is measured, and the gap is said."""
    result = measured(reasons={"forgotten": "client 3 was offline"})
    assert result.forgotten is not None
    assert result.not_measured == ("forgotten data, in part: client 3 was offline",)


def test_without_test_data_yeom_still_runs():
    """Yeom's attack needs no test set; the confidence attack does."""
    result = measured(test=None)
    assert set(result.attacks) == {"yeom"}
    assert any(note.startswith("confidence attack:") and "test" in note for note in result.not_measured)


def test_a_set_of_no_examples_counts_as_missing():
    """A set that came back empty is no measure of zero."""
    result = measured(retained=observations([]))
    assert result.retained is None
    assert "retained data: it holds no example" in result.not_measured


def test_an_exploded_model_is_measured_as_far_as_it_goes():
    """Not-a-number losses and confidences leave scores standing and are said."""
    broken = Observations(2, float("nan"), 1.0, np.array([np.nan, 1.0]), np.array([np.nan, 0.5]))
    result = measured(forgotten=broken)
    assert result.forgotten == SetMeasure(2, None, 0.5)
    assert result.attacks == {}
    assert [note.split(":")[0] for note in result.not_measured] == [
        "forgotten loss",
        "Yeom's attack",
        "confidence attack",
        "threshold attacks",
    ]


def test_a_sample_is_said_to_be_one():
    """Attacks on four of forty examples say so."""
    result = measured(forgotten=observations([0.2, 0.25, 3.0, 4.0], num_examples=40))
    assert any("sample of 4 of 40" in note for note in result.not_measured)


@pytest.mark.parametrize("changes", [{}, {"forgotten": None}, {"test": None, "retained": None}])
def test_a_measurement_survives_json(changes):
    """There and back through text changes nothing."""
    result = measured(**changes)
    assert from_plain(Measurement, json.loads(json.dumps(to_plain(result), allow_nan=False))) == result
