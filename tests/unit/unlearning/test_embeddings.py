"""Bags and sparse gradients of embeddings: values and gradients as PyTorch's, the rest as of dense words."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from tests.tasks import tiny_classification
from unlearning.certified.private_samples import single_gradients
from unlearning.certified.tangents import train_with_tangents
from unlearning.curvature.gradients import fisher_diagonal, gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.embeddings import DifferentiableEmbeddings
from unlearning.tasks import Examples
from unlearning.tasks.task import numbered
from unlearning.training import TrainingSettings, initial_parameters, train

NUM_WORDS, WIDTH = 7, 3
WORDS = torch.tensor([[1, 2, 2, 0], [3, 0, 0, 0], [0, 0, 0, 0], [6, 5, 4, 1]])
LINE = torch.tensor([1, 2, 2, 0, 3, 6, 5, 4, 1])
OFFSETS = torch.tensor([0, 4, 4, 6])
SHARES = torch.linspace(-1, 2, 9, dtype=torch.float64)

CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda weight: functional.embedding_bag(WORDS, weight, mode="sum"),
    "mean": lambda weight: functional.embedding_bag(WORDS, weight, mode="mean"),
    "mean, padded": lambda weight: functional.embedding_bag(WORDS, weight, mode="mean", padding_idx=0),
    "sum, padded from the end": lambda weight: functional.embedding_bag(
        WORDS, weight, mode="sum", padding_idx=-1
    ),
    "mean of a line, one bag empty": lambda weight: functional.embedding_bag(
        LINE, weight, OFFSETS, mode="mean"
    ),
    "sum of a line with an end": lambda weight: functional.embedding_bag(
        LINE, weight, torch.tensor([0, 4, 4, 9]), mode="sum", include_last_offset=True
    ),
    "sum with shares, padded": lambda weight: functional.embedding_bag(
        LINE, weight, OFFSETS, mode="sum", per_sample_weights=SHARES, padding_idx=2
    ),
    "maximum": lambda weight: functional.embedding_bag(WORDS, weight, mode="max"),
    "scaled by frequency": lambda weight: functional.embedding_bag(
        WORDS, weight, mode="sum", scale_grad_by_freq=True
    ),
    "words": lambda weight: functional.embedding(WORDS, weight, padding_idx=0),
}
LACKING = ["maximum", "scaled by frequency"]
"""PyTorch's as they are."""


def weights() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(NUM_WORDS, WIDTH, dtype=torch.float64, generator=generator, requires_grad=True)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_pytorchs(name):
    weight = weights()
    expected = CASES[name](weight)
    with DifferentiableEmbeddings():
        found = CASES[name](weight)
    slopes = torch.cos(torch.arange(found.numel(), dtype=found.dtype)).reshape(found.shape)
    assert torch.allclose(found, expected, rtol=0, atol=1e-15)
    wanted, got = (torch.autograd.grad(one, weight, slopes)[0] for one in (expected, found))
    assert torch.allclose(got, wanted, rtol=0, atol=1e-15)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:FutureWarning"
)  # torch's own, on entering the mode
@pytest.mark.parametrize("name", [name for name in CASES if name not in LACKING])
def test_the_second_derivative_and_the_forward_mode_are_those_of_a_linear_map(name):
    """A bag is linear in its weights: with a loss Σ z³ the Hessian's product is Jᵀ 6z Jv, and Jv the bag of v."""
    weight, vector = weights(), torch.sin(torch.arange(NUM_WORDS * WIDTH, dtype=torch.float64))
    vector = vector.reshape(NUM_WORDS, WIDTH)
    with DifferentiableEmbeddings():
        (slope,) = torch.autograd.grad((CASES[name](weight) ** 3).sum(), weight, create_graph=True)
        (product,) = torch.autograd.grad(slope, weight, vector)
        with forward_ad.dual_level():
            pushed = forward_ad.unpack_dual(CASES[name](forward_ad.make_dual(weight, vector))).tangent
    outputs = CASES[name](weight)
    moved = CASES[name](vector)
    (expected,) = torch.autograd.grad(outputs, weight, 6 * outputs.detach() * moved)
    assert torch.allclose(product, expected, rtol=1e-12, atol=1e-12)
    assert torch.allclose(pushed, moved, rtol=0, atol=1e-14)


def test_a_sparse_gradient_is_dense_meanwhile():
    weight = weights()
    given = {"input": WORDS, "weight": weight, "sparse": True}
    with DifferentiableEmbeddings():
        found = [functional.embedding(**given), functional.embedding_bag(**given, mode="max")]
    assert [torch.autograd.grad(one.sum(), weight)[0].is_sparse for one in found] == [False, False]


class Words(nn.Module):
    """Classifies by the mean of the words' embeddings; `in_bags` with EmbeddingBag, as PyTorch's own tutorial does."""

    def __init__(self, in_bags: bool, sparse: bool) -> None:
        super().__init__()
        make = nn.EmbeddingBag if in_bags else nn.Embedding
        self.words, self.head, self.in_bags = (
            make(NUM_WORDS, WIDTH, sparse=sparse),
            nn.Linear(WIDTH, 2),
            in_bags,
        )

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.words(inputs)
        return self.head(torch.tanh(found if self.in_bags else found.mean(1)))


PLAIN = tiny_classification(lambda: Words(in_bags=False, sparse=False))
KINDS = [
    pytest.param(tiny_classification(lambda b=in_bags, s=sparse: Words(b, s)), id=f"{in_bags=}, {sparse=}")
    for in_bags, sparse in ((True, False), (True, True), (False, True))
]
START = initial_parameters(PLAIN, 0)
TEXTS = Examples(WORDS, torch.tensor([0, 1, 1, 0]), numbered(4))


@pytest.mark.parametrize("task", KINDS)
def test_what_is_derived_of_a_model_is_that_of_the_same_model_in_dense_words(task):
    vector = np.cos(np.arange(len(START)))
    for of in (gradient, fisher_diagonal):
        assert np.allclose(of(task, START, TEXTS), of(PLAIN, START, TEXTS), rtol=0, atol=1e-14)
    for kind in CurvatureKind:
        found, expected = (CurvatureProduct(one, START, TEXTS, kind=kind)(vector) for one in (task, PLAIN))
        assert np.allclose(found, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("task", KINDS)
@pytest.mark.parametrize(
    "settings",
    [
        TrainingSettings(),
        TrainingSettings(momentum=0.9, keep_optimizer=True),
        TrainingSettings(weight_decay=0.1),
        TrainingSettings(optimizer="adam", learning_rate=0.01),
        TrainingSettings(optimizer="adamw", learning_rate=0.01, weight_decay=0.1),
        TrainingSettings(clip_norm=0.01),
        TrainingSettings(proximal_mu=0.1),
        TrainingSettings(maximize=True, momentum=0.5),
    ],
    ids=["plain", "momentum", "decay", "adam", "adamw", "clipped", "proximal", "ascent"],
)
def test_training_is_that_of_the_same_model_in_dense_words(task, settings):
    kept = {} if settings.keep_optimizer else None
    found, expected = (train(one, START, TEXTS, settings, kept=kept) for one in (task, PLAIN))
    assert np.allclose(found.parameters, expected.parameters, rtol=0, atol=1e-13)
    assert not np.array_equal(found.parameters, START)


@pytest.mark.parametrize("task", KINDS)
def test_single_gradients_and_tangents_are_those_of_the_same_model_in_dense_words(task):
    tangents = np.cos(np.arange(2 * len(START))).reshape(2, -1)
    settings = TrainingSettings(learning_rate=0.1, epochs=2, batch_size=2)
    (found, carried), (expected, known) = (
        train_with_tangents(one, START, TEXTS, settings, tangents) for one in (task, PLAIN)
    )
    assert np.allclose(found.parameters, expected.parameters, rtol=0, atol=1e-13)
    assert np.allclose(carried, known, rtol=0, atol=1e-13)
    torch.manual_seed(0)
    models = [one.build_model().to(torch.float64) for one in (task, PLAIN)]
    models[0].load_state_dict(models[1].state_dict())
    (losses, gradients), (known_losses, known_gradients) = (
        single_gradients(one, model, TEXTS.inputs, TEXTS.targets)
        for one, model in zip((task, PLAIN), models, strict=True)
    )
    assert torch.allclose(losses, known_losses, rtol=0, atol=1e-15)
    for one, other in zip(gradients, known_gradients, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-14)
