"""The ensemble of shard models against votes counted by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.tasks import initial_model
from unlearning.parameters import flatten
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.ensemble import Ensemble, part, shard_task
from unlearning.training import initial_parameters

INPUT = torch.zeros(1, 2, dtype=torch.float64)


class Says(nn.Module):
    """The same probabilities whatever the input."""

    def __init__(self, *probabilities: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(probabilities, dtype=torch.float64).log())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits.expand(len(inputs), -1)


def ensemble(*shards: tuple[float, ...], votes=None, vote="majority") -> Ensemble:
    """Shards that say these probabilities; all vote unless `votes` says who does."""
    waiting = list(shards)
    made = Ensemble(lambda: Says(*waiting.pop(0)), len(shards), vote).double().eval()
    made.votes.copy_(torch.tensor(votes or [1.0] * len(shards)))
    return made


def probabilities(model: nn.Module) -> list[float]:
    return model(INPUT)[0].exp().tolist()


def test_most_votes_win_against_a_higher_mean_probability():
    """Two of three shards name class 1 with 0.6; the third is sure of class 0, as is the mean."""
    shards = ((0.4, 0.6), (0.4, 0.6), (0.99, 0.01))
    assert np.argmax(probabilities(ensemble(*shards))) == 1
    assert np.argmax(probabilities(ensemble(*shards, vote="mean"))) == 0


def test_the_mixture_is_votes_and_mean_probability_as_documented():
    """τ = 1/(3 + 2): p_0 = 0.8 · 1/3 + 0.2 · (0.4 + 0.4 + 0.99)/3."""
    found = probabilities(ensemble((0.4, 0.6), (0.4, 0.6), (0.99, 0.01)))
    assert found == pytest.approx([0.8 / 3 + 0.2 * 1.79 / 3, 0.8 * 2 / 3 + 0.2 * 1.21 / 3], abs=1e-12)


def test_the_mean_probability_decides_a_tie():
    """One vote each; the second shard is surer."""
    assert np.argmax(probabilities(ensemble((0.55, 0.45), (0.1, 0.9)))) == 1


@pytest.mark.parametrize("votes", [None, [0.0, 0.0]])
def test_mean_is_the_mean_of_probabilities_and_not_of_logits(votes):
    """(0.9 + 0.2)/2 = 0.55; before any training, where nobody votes yet, all do."""
    found = probabilities(ensemble((0.9, 0.1), (0.2, 0.8), votes=votes, vote="mean"))
    assert found == pytest.approx([0.55, 0.45])


@pytest.mark.parametrize("vote", ["majority", "mean"])
def test_a_shard_without_a_vote_says_nothing(vote):
    """What was never trained does not count."""
    alone, beside = ensemble((0.7, 0.3), vote=vote), ensemble((0.7, 0.3), (0.0001, 0.9999), vote=vote)
    beside.votes[1] = 0
    assert np.argmax(probabilities(beside)) == 0
    if vote == "mean":
        assert probabilities(beside) == pytest.approx(probabilities(alone))


def test_a_loss_is_finite_where_no_shard_votes_for_the_class():
    """The mean probability keeps p above 0."""
    assert np.isfinite(ensemble((1 - 1e-9, 1e-9), (1 - 1e-9, 1e-9))(INPUT).detach().numpy()).all()


def test_shards_start_as_the_single_model_with_the_next_seeds():
    """Shard s of seed 5 is the model of seed 5 + s; nobody votes yet; the random state is left as it was."""
    task = shard_task(make_task(TaskSettings()), 3)
    before = torch.get_rng_state()
    vector = initial_parameters(task, 5)
    assert torch.equal(torch.get_rng_state(), before)
    for shard in range(3):
        assert np.array_equal(vector[part(vector, shard, 3)], initial_parameters(task.shard, 5 + shard))
    assert vector[:3].tolist() == [0, 0, 0]


def test_masks_are_voted_on_pixel_by_pixel():
    """A segmenter's outputs (n, classes, h, w) sum to probabilities in every pixel."""
    settings = TaskSettings(dataset="npz", model="res-unet", num_classes=2, input_shape="3x16x16")
    task = shard_task(make_task(settings), 2)
    outputs = initial_model(task, 0).eval()(torch.rand(2, 3, 16, 16))
    assert outputs.shape == (2, 2, 16, 16)
    assert torch.allclose(outputs.exp().sum(dim=1), torch.ones(2, 16, 16), atol=1e-5)


def test_the_flat_vector_has_the_votes_and_then_the_shards():
    """2 + 2 · 650 numbers; `part` gives the shards' places without gap or overlap."""
    task = shard_task(make_task(TaskSettings()), 2)
    vector = flatten(initial_model(task, 0))
    places = [part(vector, shard, 2) for shard in range(2)]
    assert [(where.start, where.stop) for where in places] == [(2, 652), (652, 1302)]
    assert vector.size == 1302
