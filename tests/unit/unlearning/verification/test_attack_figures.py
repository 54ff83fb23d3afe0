"""The live attacks on what clients observed: what is compared with what, and the one that must succeed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from tests.tasks import initial_model
from unlearning.parameters import flatten
from unlearning.tasks.losses import classification_measures, cross_entropy
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, train
from unlearning.verification.figures import FALL_OF_CONFIDENCE, MIA_U, RISE_OF_LOSS
from unlearning.verification.observations import Details, Observations, Outputs, merge, observe_model
from unlearning.verification.standard_attacks import ATTACKS, attack_figures
from unlearning.verification.verdict import Finding, verdict


def observed(losses, labels, handles=None, posteriors=None) -> Observations:
    losses, labels = np.asarray(losses, dtype=np.float64), np.asarray(labels)
    details = Details(labels, (losses < 0.7).astype(np.float64), losses, losses)
    outputs = None if handles is None else Outputs(np.asarray(handles), np.asarray(posteriors))
    return Observations(len(losses), losses.sum(), 0.0, losses, np.exp(-losses), details, outputs)


def figures_of(**sets):
    outputs_before = sets.pop("outputs_before", None)
    retained = sets.get("retained")
    return attack_figures(
        sets,
        mean_training_loss=None if retained is None else retained.mean_loss,
        outputs_before=outputs_before,
        seed=0,
    )


RETAINED = observed([0.1, 0.2, 0.1, 0.2], [0, 0, 1, 1])


@pytest.mark.parametrize(
    ("test", "forgotten", "area", "num_test"),
    [
        # each under 1 of 2 test losses of its class; class 0 is not asked about, or its losses would beat all: 1/4
        (observed([0.01, 0.01, 1.0, 3.0], [0, 0, 1, 1]), observed([2.0, 2.0, 2.0], [1, 1, 1]), 1 / 2, 2),
        # weights 2/1 and 1/3: either 0.4 beats the 0.5, 2 of 3, and 0.6 none; unweighted 2 of 12 pairs
        (observed([0.5, 0.3, 0.3, 0.3], [0, 1, 1, 1]), observed([0.4, 0.4, 0.6], [0, 0, 1]), 4 / 9, 4),
    ],
    ids=["one-class", "two-classes"],
)
def test_test_examples_weigh_as_much_as_their_class_is_frequent_among_the_forgotten(
    test, forgotten, area, num_test
):
    """By hand, with three forgotten examples."""
    figures, _ = figures_of(retained=RETAINED, test=test, forgotten=forgotten)
    assert figures["yeom"].auc.value == pytest.approx(area)
    assert (figures["yeom"].num_forgotten, figures["yeom"].num_test) == (3, num_test)


def test_yeom_calls_members_up_to_the_mean_training_loss():
    """0.25 is the retained data's; 0.1 and the equal 0.25 count, 0.6 and infinity do not. No number is no loss."""
    retained = observed([0.125, 0.375], [0, 0])
    figures, _ = figures_of(retained=retained, forgotten=observed([0.1, 0.25, 0.6, np.inf], [0] * 4))
    assert figures["yeom"].called.value == 0.5
    figures, notes = figures_of(retained=retained, forgotten=observed([0.1, np.nan], [0, 0]))
    assert "yeom" not in figures
    assert "1 of 2 forgotten losses are no numbers" in " ".join(notes)


def test_a_class_that_no_test_example_has_leaves_no_auc():
    """The share stands, the rank does not."""
    figures, _ = figures_of(
        retained=RETAINED, test=observed([1.0, 2.0], [0, 0]), forgotten=observed([0.1], [5])
    )
    assert figures["yeom"].auc is None
    assert figures["yeom"].called is not None


def test_the_change_is_compared_example_by_example():
    """Handles pair what was measured twice, in any order; an example measured once is left out.

    Forgotten: 1 moved by √2, 2 stayed; test: 3 stayed, 4 moved a little: AUC = (2 + ½) / 4.
    """
    before = {
        "forgotten": Outputs(np.array([1.0, 2.0, 9.0]), np.array([[1, 0], [0.5, 0.5], [0.1, 0.9]])),
        "test": Outputs(np.array([4.0, 3.0]), np.array([[0.5, 0.5], [1, 0]])),
    }
    figures, notes = figures_of(
        retained=RETAINED,
        test=observed([1, 1], [0, 0], [3.0, 4.0], [[1, 0], [0.6, 0.4]]),
        forgotten=observed([1, 1], [0, 0], [2.0, 1.0], [[0.5, 0.5], [0, 1]]),
        outputs_before=before,
    )
    assert notes == []
    assert figures[MIA_U].auc.value == 0.625
    assert (figures[MIA_U].num_forgotten, figures[MIA_U].called) == (2, None)
    # of class 0: the forgotten fall by 0 and 1, the others by 0 and -0.1, so (½ + 1 + 2) / 4; losses order them alike
    assert figures[FALL_OF_CONFIDENCE].auc.value == 0.875
    assert figures[RISE_OF_LOSS].auc.value == 0.875


def test_without_posteriors_the_attack_on_the_change_says_so():
    """Before the deletion there is no change and nothing to say; after it there is."""
    sets = {"retained": RETAINED, "test": RETAINED, "forgotten": RETAINED}
    assert figures_of(**sets)[1] == []
    assert [note.split(":")[0] for note in figures_of(**sets, outputs_before={})[1]] == ["MIA-U"]


def test_without_details_the_threshold_attacks_are_named():
    """A segmentation has no classes to learn thresholds for; the other attacks run."""
    plain = replace(RETAINED, details=None)
    figures, notes = figures_of(retained=plain, test=plain, forgotten=plain)
    assert set(figures) == {"yeom", "confidence"}
    assert [note.split(":")[0] for note in notes] == ["threshold attacks"]


@pytest.fixture(scope="module")
def memorised():
    """What attacks say of a network that learnt 300 digits by heart, half of them the target's, and without these."""
    inputs, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    labels = labels.copy()
    # two fifths of the labels are drawn at random: what can only be memorised shows best who was trained on
    wrong = np.random.default_rng(1).random(len(labels)) < 0.4
    labels[wrong] = np.random.default_rng(2).integers(0, 10, wrong.sum())
    every = Examples(
        torch.from_numpy(inputs[order] / 16).float(), torch.from_numpy(labels[order]), order.astype(str)
    )
    retained, target, test = (every.select(np.arange(*span)) for span in ((0, 150), (150, 300), (300, 700)))
    task = Task(
        name="digits",
        num_classes=10,
        score_name="accuracy",
        build_model=lambda: nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)),
        loss=cross_entropy,
        per_example=classification_measures,
    )
    settings = TrainingSettings(epochs=40, batch_size=50, optimizer="adam", learning_rate=0.01, seed=0)
    start = flatten(initial_model(task, seed=0))
    with_target = train(task, start, every.select(np.arange(300)), settings).parameters
    without = train(task, start, retained, settings).parameters

    def figures(model, before=None):
        sets = {
            name: observe_model(
                task,
                model,
                examples,
                max_samples=1000,
                generator=np.random.default_rng(7),
                with_outputs=name != "retained",
            )
            for name, examples in (("retained", retained), ("forgotten", target), ("test", test))
        }
        outputs = {name: sets[name].outputs for name in ("test", "forgotten")}
        return figures_of(**sets, outputs_before=before)[0], outputs

    original, outputs = figures(with_target)
    return original, figures(without, outputs)[0]


def test_attacks_find_the_target_in_a_model_that_learnt_it_by_heart(memorised):
    """Attacks that look at the true class are far above one half; entropy, which does not, is above it."""
    original, _ = memorised
    for name in ("yeom", "correctness", "confidence-threshold", "modified-entropy"):
        assert original[name].auc.low > 0.7
    assert original["entropy"].auc.low > 0.52
    assert original["correctness"].called.low > 0.9


def test_attacks_find_nothing_of_the_target_in_a_model_retrained_without_it(memorised):
    """Every attack ran and every interval reaches one half; only the change tells, for it saw the target."""
    _, retrained = memorised
    assert set(retrained) == set(ATTACKS)
    for name in ("yeom", "correctness", "confidence-threshold", "entropy", "modified-entropy"):
        assert retrained[name].auc.low < 0.5 < retrained[name].auc.high
    assert retrained[MIA_U].auc.low > 0.55


def test_the_verdict_on_retraining_is_reduced_without_and_indistinguishable_with_a_reference(memorised):
    """And the other way round, from retrained to memorised, nothing is shown."""
    original, retrained = memorised
    assert verdict(original, retrained).finding is Finding.REDUCED
    assert verdict(original, retrained, retrained).finding is Finding.INDISTINGUISHABLE
    assert verdict(original, original, retrained).finding is Finding.NOT_SHOWN
    assert verdict(retrained, original).finding is Finding.NOT_SHOWN


def test_the_same_examples_are_observed_of_every_model():
    """Handles and order depend on the generator only, so pooled samples can be paired."""
    one = observed([0.1, 0.3], [0, 1], [0.5, 0.25], [[1, 0], [0, 1]])
    other = observed([0.2, 0.4], [1, 1], [0.75, 0.125], [[1, 0], [0, 1]])
    merged = merge([one, other])
    assert merged.outputs.handles.tolist() == [0.5, 0.75, 0.25, 0.125]
    assert merged.details.labels.tolist() == [0, 1, 1, 1]
