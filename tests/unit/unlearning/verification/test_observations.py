"""What a client tells about a set of its examples."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks import tiny_classification
from unlearning.errors import DataError
from unlearning.tasks.task import Examples, PerExample
from unlearning.verification.observations import Observations, draw_sample, merge, observe, observe_model


def per_example(count: int) -> PerExample:
    index = np.arange(count, dtype=np.float64)
    return PerExample(loss=index, score=index % 2, confidence=index / 100)


def observed(count: int, max_samples: int, seed: int = 0) -> Observations:
    return observe(per_example(count), draw_sample(count, max_samples, np.random.default_rng(seed))[0])


def test_the_sums_run_over_every_example_not_over_the_sample():
    """Ten examples of loss 0..9, three sampled: the sums are those of all ten."""
    observations = observed(10, max_samples=3)
    assert (observations.num_examples, observations.loss_sum, observations.score_sum) == (10, 45.0, 5.0)
    assert (observations.mean_loss, observations.mean_score) == (4.5, 0.5)


def test_a_sample_is_of_different_examples_in_random_order():
    """In order it would say which example is which; loss and confidence at one position belong to one example."""
    assert len(set(observed(10, max_samples=3).losses.tolist())) == 3
    every = observed(50, max_samples=50)
    assert sorted(every.losses.tolist()) == list(range(50)) != every.losses.tolist()
    np.testing.assert_array_equal(every.confidences, every.losses / 100)


def test_the_generator_alone_decides_the_sample():
    """Equal seeds, equal sample; another seed, another one."""
    first, again, other = (observed(50, 5, seed).losses.tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_no_example_has_no_mean():
    """The mean over nothing is None, not nan and not zero."""
    empty = observed(0, max_samples=5)
    assert (empty.mean_loss, empty.mean_score) == (None, None)


def test_a_loss_that_overflowed_has_no_mean():
    """An infinite loss leaves the mean empty and the score as it is."""
    values = PerExample(np.array([np.inf, 1.0]), np.array([0.0, 1.0]), np.array([0.0, 0.5]))
    observations = observe(values, draw_sample(len(values), 2, np.random.default_rng(0))[0])
    assert (observations.mean_loss, observations.mean_score) == (None, 0.5)


@given(st.permutations(range(4)))
def test_merging_gives_the_same_bits_in_every_order(order):
    """Replies arrive in any order; the pooled observations do not show it."""
    parts = [
        Observations(3, 0.1 * (k + 1), 1.0 / (k + 3), np.array([0.3 * k, 0.2]), np.array([0.9, 0.1 * k]))
        for k in range(4)
    ]
    straight, shuffled = merge(parts), merge(parts[k] for k in order)
    for name, values in straight.to_arrays().items():
        assert values.tobytes() == shuffled.to_arrays()[name].tobytes()


def test_merging_adds_sums_and_pools_samples():
    """Counts and sums add up, pairs stay together."""
    merged = merge([observed(4, max_samples=4), observed(2, max_samples=1)])
    assert (merged.num_examples, merged.loss_sum, merged.score_sum) == (6, 7.0, 3.0)
    assert len(merged.losses) == 5
    np.testing.assert_array_equal(merged.confidences, merged.losses / 100)


def test_merging_nothing_is_an_empty_observation():
    """No reply at all is a set of no examples."""
    assert merge([]).num_examples == 0


def test_a_missing_array_is_named():
    """The message says which array is not there."""
    with pytest.raises(DataError):
        Observations.from_arrays({"sums": np.zeros(3), "losses": np.zeros(0)})


def linear_problem():
    """A model whose logits are its two inputs, on three examples of class 0."""
    task = tiny_classification(lambda: torch.nn.Linear(2, 2))
    parameters = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    inputs = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], dtype=torch.float64)
    return task, parameters, Examples(inputs, torch.zeros(3, dtype=torch.int64), np.array(["a", "b", "c"]))


def observed_model(max_samples=3, with_outputs=True) -> Observations:
    task, parameters, examples = linear_problem()
    return observe_model(
        task,
        parameters,
        examples,
        max_samples=max_samples,
        generator=np.random.default_rng(0),
        with_outputs=with_outputs,
    )


def test_the_details_belong_to_the_example_whose_loss_stands_beside():
    """Two classes: correct where the confidence is over one half; both entropies follow from it."""
    observations = observed_model()
    details, p = observations.details, observations.confidences
    np.testing.assert_array_equal(details.correct, p > 0.5)
    np.testing.assert_allclose(details.entropies, -p * np.log(p) - (1 - p) * np.log(1 - p))
    np.testing.assert_allclose(details.modified_entropies, -2 * (1 - p) * np.log(p))
    assert details.labels.tolist() == [0, 0, 0]


def test_of_a_single_precision_model_the_surest_examples_stay_apart():
    """Outputs (60, 0), (45, 0), (30, 0) have margins 60, 45, 30; in single precision each probability is 1."""
    task, parameters, examples = linear_problem()
    inputs = torch.tensor([[60.0, 0.0], [45.0, 0.0], [30.0, 0.0]])
    observations = observe_model(
        replace(task, dtype=torch.float32),
        parameters.astype(np.float32),
        Examples(inputs, examples.targets, examples.ids),
        max_samples=3,
        generator=np.random.default_rng(0),
    )
    assert sorted(observations.margins.tolist()) == [30.0, 45.0, 60.0]
    assert observations.losses.max() == pytest.approx(np.exp(-30), rel=1e-2, abs=0)


def test_margins_are_pooled_where_every_client_sent_them():
    """One client without them leaves the pool without: half a sample would be another sample."""
    own = observed_model()
    both = merge([own, own])
    np.testing.assert_array_equal(np.sort(both.margins), np.sort(np.tile(own.margins, 2)))
    assert merge([own, replace(own, margins=None)]).margins is None


def test_the_posteriors_belong_to_the_example_whose_loss_stands_beside():
    """The true class is 0, so column 0 is the confidence, in single precision."""
    outputs = observed_model().outputs
    np.testing.assert_allclose(outputs.posteriors[:, 0], observed_model().confidences, rtol=1e-6)
    assert len(set(outputs.handles.tolist())) == 3


def test_posteriors_stay_at_home_unless_they_are_asked_for():
    """The retained data's never travel."""
    assert observed_model(with_outputs=False).outputs is None


@pytest.mark.parametrize(
    "observations", [observed(7, max_samples=4), observed_model(), observed_model(with_outputs=False)]
)
def test_observations_survive_transport(observations):
    """Arrays there and back, types included."""
    back = Observations.from_arrays(observations.to_arrays())
    assert (back.num_examples, back.loss_sum) == (observations.num_examples, observations.loss_sum)
    assert back.to_arrays().keys() == observations.to_arrays().keys()
    for name, values in observations.to_arrays().items():
        assert back.to_arrays()[name].dtype == values.dtype
        np.testing.assert_array_equal(back.to_arrays()[name], values)


MALFORMED = {
    "half": ("sums", np.array([3.5, 0.0, 0.0])),
    "negative": ("sums", np.array([-1.0, 0.0, 0.0])),
    "nan": ("sums", np.array([np.nan, 0.0, 0.0])),
    "short": ("sums", np.zeros(2)),
    "unequal": ("losses", np.zeros(1)),
    "two-dimensional": ("losses", np.zeros((3, 1))),
    "more-sampled-than-there-are": ("sums", np.array([2.0, 0.0, 0.0])),
    "too-few-margins": ("margins", np.zeros(2)),
    "infinite-margins": ("margins", np.full(3, np.inf)),
    "too-few-labels": ("labels", np.zeros(2, dtype=np.int64)),
}


@pytest.mark.parametrize(("name", "value"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_observations_are_refused(name, value):
    """A client's arrays are checked before anything is computed of them."""
    with pytest.raises(DataError):
        Observations.from_arrays({**observed_model().to_arrays(), name: value})


def test_one_client_without_details_leaves_the_pool_without():
    """Half a pool would compare other examples than the losses do."""
    merged = merge([observed_model(), observed(4, max_samples=4)])
    assert (merged.details, merged.outputs) == (None, None)
    assert len(merged.losses) == 7
