"""What a product promises beside its value: damping, L2, dtypes, paths, memory, repetition."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.raising import raises
from tests.unit.unlearning.curvature.problems import dense_gradient, dense_hessian, logistic, tiny_problem
from unlearning.curvature.gradients import fisher_diagonal, gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct, ProductPath
from unlearning.errors import AppError, DataError, NumericalError, UpdateRefused
from unlearning.parameters import flatten
from unlearning.tasks.task import Examples


def product_of(problem, kind=CurvatureKind.HESSIAN, **settings) -> CurvatureProduct:
    return CurvatureProduct(problem.task, problem.theta, problem.examples, kind=kind, **settings)


def with_model(build):
    """The logistic problem with another model of the same inputs."""
    problem = tiny_problem("logistic")
    torch.manual_seed(0)
    theta = flatten(build().double())
    return replace(problem, task=replace(problem.task, build_model=build), theta=theta)


@pytest.mark.parametrize("kind", CurvatureKind)
def test_damping_and_l2_add_multiples_of_the_vector(kind: CurvatureKind) -> None:
    """Both on every trainable entry."""
    problem = tiny_problem("mlp")
    vector = np.random.default_rng(0).standard_normal(problem.theta.size)
    found = product_of(problem, kind, damping=0.3, l2=0.5)(vector)
    np.testing.assert_allclose(found, product_of(problem, kind)(vector) + 0.8 * vector, rtol=1e-12)


def test_the_l2_term_of_the_gradient_is_that_of_weight_decay() -> None:
    """+l2·θ, so a minimum of the regularised objective has gradient zero."""
    problem = tiny_problem("mlp")
    found = gradient(problem.task, problem.theta, problem.examples, l2=0.7)
    np.testing.assert_allclose(found, dense_gradient(problem) + 0.7 * problem.theta, rtol=1e-10)


def test_a_single_precision_task_gives_single_precision_products() -> None:
    """The vector may be of another precision; the answer is the task's, and close to the exact one."""
    problem = tiny_problem("cnn", torch.float32)
    product = product_of(problem)
    vector = np.random.default_rng(0).standard_normal(problem.theta.size)
    found = product(vector)
    exact = dense_hessian(replace(problem, theta=problem.theta.astype(float), model=problem.model.double()))
    assert found.dtype == np.float32
    assert np.linalg.norm(found - exact @ vector) < 1e-4 * np.linalg.norm(exact @ vector)


def test_a_product_is_written_where_it_is_told_and_changes_nothing_else() -> None:
    """Products in a row need no new memory; the vector and an earlier answer stay as they are."""
    problem = tiny_problem("mlp")
    product = product_of(problem, damping=0.1)
    vector, other = np.random.default_rng(0).standard_normal((2, problem.theta.size))
    vector.flags.writeable = False
    out = np.empty_like(vector)
    first = product(vector)
    kept = first.copy()
    assert product(vector, out=out) is out
    product(other)
    np.testing.assert_array_equal(out, kept)
    np.testing.assert_array_equal(first, kept)
    assert product.num_products == 3


def test_the_budget_decides_how_many_graphs_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    """All, some or none; the log says which and why."""
    problem = tiny_problem("cnn", num_examples=40)
    caplog.set_level(logging.INFO, logger="unlearning.curvature.products")
    paths = [
        product_of(problem, micro_batch_size=4, memory_budget_bytes=budget).path
        for budget in (10**9, 300_000, 1)
    ]
    assert paths == [ProductPath.KEPT, ProductPath.MIXED, ProductPath.REBUILT]
    assert "kept path: the graphs of 10 of 10 micro-batches" in caplog.messages[0]
    assert "rebuilt path: the graphs of 0 of 10" in caplog.messages[2]


def test_mixed_and_kept_paths_agree() -> None:
    """Keeping some graphs loses and doubles no micro-batch, also in the second product."""
    problem = tiny_problem("cnn", num_examples=40)
    mixed = product_of(problem, micro_batch_size=4, memory_budget_bytes=300_000)
    kept = product_of(problem, micro_batch_size=4)
    assert mixed.path is ProductPath.MIXED
    for vector in np.random.default_rng(0).standard_normal((2, problem.theta.size)):
        np.testing.assert_array_equal(mixed(vector), kept(vector))


def test_micro_batches_shrink_where_memory_is_short(caplog: pytest.LogCaptureFixture) -> None:
    """A budget below one preferred micro-batch cuts it, and says so."""
    problem = tiny_problem("cnn", num_examples=40)
    caplog.set_level(logging.INFO, logger="unlearning.curvature.products")
    assert product_of(problem).num_micro_batches == 1
    assert product_of(problem, memory_budget_bytes=100_000).num_micro_batches > 2
    assert "do not fit" not in caplog.messages[0]
    assert "do not fit" in caplog.messages[1]


def test_the_measured_size_grows_with_the_examples_and_not_with_the_parameters_alone() -> None:
    """Four times the examples in a micro-batch need about four times the budget to be kept."""

    def least_budget(size: int) -> int:
        problem = tiny_problem("cnn", num_examples=size)
        paths = [
            product_of(problem, micro_batch_size=size, memory_budget_bytes=20_000 * 2**power).path
            for power in range(8)
        ]
        low, high = (20_000 * 2 ** (paths.index(ProductPath.KEPT) + off) for off in (-1, 0))
        while high - low > 10_000:
            middle = (low + high) // 2
            product = product_of(problem, micro_batch_size=size, memory_budget_bytes=middle)
            low, high = (low, middle) if product.path is ProductPath.KEPT else (middle, high)
        return high

    assert 3 < least_budget(32) / least_budget(8) < 4.5


class Dropout(nn.Module):
    """Dropout that ignores eval mode."""

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.dropout(hidden, 0.5, training=True)


class RandomNoise(nn.Module):
    """Dropout that ignores eval mode, by a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(0)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * torch.from_numpy(self.random.integers(0, 3, hidden.shape)).to(hidden)


class Remembering(nn.Module):
    """Changes with each use, as statistics do that are updated in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.seen += 1
        return hidden * self.seen


@pytest.mark.parametrize("noise", [RandomNoise, Remembering])
def test_a_model_that_does_not_repeat_itself_is_refused(noise: type[nn.Module]) -> None:
    """A solver would suppose one matrix."""
    problem = with_model(lambda: nn.Sequential(nn.Flatten(), noise(), nn.Linear(64, 3)))
    with raises(NumericalError, "changing-loss"):
        product_of(problem)


@pytest.mark.parametrize("noise", [nn.Dropout, Dropout])
def test_a_model_that_repeats_itself_passes(noise: type[nn.Module]) -> None:
    """Dropout that heeds eval mode is off; what is drawn from torch's random state is the same each time."""
    problem = with_model(lambda: nn.Sequential(nn.Flatten(), noise(), nn.Linear(64, 3)))
    product, vector = product_of(problem), np.random.default_rng(0).standard_normal(problem.theta.size)
    first = product(vector)
    product.release()
    np.testing.assert_array_equal(product(vector), first)


LOGISTIC = tiny_problem("logistic")


def blind(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Measures that are computed without a graph."""
    return LOGISTIC.task.per_example(outputs.detach(), targets)


def batch_statistics() -> nn.Module:
    """A model of which the loss of an example depends on the others of its micro-batch."""
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 3))


NOTHING = LOGISTIC.examples.select(np.zeros(len(LOGISTIC.examples), dtype=bool))
REFUSED = {
    "batch statistics": (NumericalError, lambda: product_of(with_model(batch_statistics))),
    "no example": (DataError, lambda: product_of(replace(LOGISTIC, examples=NOTHING))),
    "no example for a gradient": (DataError, lambda: gradient(LOGISTIC.task, LOGISTIC.theta, NOTHING)),
    "a vector of another model": (UpdateRefused, lambda: product_of(LOGISTIC)(LOGISTIC.theta[:-1])),
    "nothing to train": (
        AppError,
        lambda: gradient(
            replace(LOGISTIC.task, build_model=lambda: logistic().requires_grad_(False)),
            LOGISTIC.theta,
            LOGISTIC.examples,
        ),
    ),
    "a loss without a second derivative": (
        NumericalError,
        lambda: product_of(
            replace(LOGISTIC, task=replace(LOGISTIC.task, loss=nn.functional.multi_margin_loss))
        )(LOGISTIC.theta),
    ),
    "losses without a gradient": (
        NumericalError,
        lambda: product_of(
            replace(LOGISTIC, task=replace(LOGISTIC.task, per_example=blind)), CurvatureKind.FISHER
        ),
    ),
}


@pytest.mark.parametrize(("error", "attempt"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_derivative_is_refused(error, attempt) -> None:
    """Instead of a number that means nothing."""
    with pytest.raises(error):
        attempt()


class HardSigmoid(nn.Module):
    """Written out."""

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs + 3).clamp(0, 6) / 6


@pytest.mark.parametrize("kind", CurvatureKind)
def test_a_hard_sigmoid_has_a_second_derivative_here(kind: CurvatureKind) -> None:
    """PyTorch has none, and MobileNetV3 has one in each block."""

    def model_with(activation: type[nn.Module]):
        return with_model(
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4), activation(), nn.Linear(4, 3))
        )

    problem, written_out = model_with(nn.Hardsigmoid), model_with(HardSigmoid)
    vector = np.random.default_rng(0).standard_normal(problem.theta.size)
    expected = product_of(written_out, kind)(vector)
    found = product_of(problem, kind)(vector)
    # PyTorch's kernel has a sixth in single precision, also in double.
    assert np.linalg.norm(found - expected) < 1e-6 * np.linalg.norm(expected)


def test_an_unused_parameter_has_no_curvature() -> None:
    """Zero gradient and rows, and no error."""

    class WithSpare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(64, 3), nn.Linear(2, 2)

        def forward(self, images: Tensor) -> Tensor:
            return self.used(images.flatten(1))

    problem = with_model(WithSpare)
    vector = np.random.default_rng(0).standard_normal(problem.theta.size)
    spare = slice(64 * 3 + 3, None)
    for kind in CurvatureKind:
        found = product_of(problem, kind)(vector)
        assert found[: spare.start].any()
        assert not found[spare].any()
    assert not fisher_diagonal(problem.task, problem.theta, problem.examples)[spare].any()


class OwnSquare(torch.autograd.Function):
    """A user's own function, with no forward mode."""

    @staticmethod
    def forward(ctx, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values**2

    @staticmethod
    def backward(ctx, slope: Tensor) -> Tensor:
        return 2 * slope * ctx.saved_tensors[0]


class OwnSquareLayer(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        return OwnSquare.apply(hidden)


class TorchSquareLayer(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden**2


@pytest.mark.parametrize("kind", CurvatureKind)
@pytest.mark.parametrize("budget", [2**30, 1])
def test_a_function_without_forward_mode_is_differentiated_backward_twice(kind, budget) -> None:
    """The products are those of the same function written in torch, on both paths, again and again."""
    own, plain = (
        with_model(
            lambda square=square: nn.Sequential(nn.Flatten(), nn.Linear(64, 4), square(), nn.Linear(4, 3))
        )
        for square in (OwnSquareLayer, TorchSquareLayer)
    )
    own_product, plain_product = (
        product_of(one, kind, memory_budget_bytes=budget, micro_batch_size=2) for one in (own, plain)
    )
    for vector in np.random.default_rng(0).standard_normal((2, own.theta.size)):
        np.testing.assert_allclose(own_product(vector), plain_product(vector), rtol=1e-10, atol=1e-14)


def test_the_fisher_diagonal_serves_a_model_that_branches_on_its_values() -> None:
    """Such a model cannot be batched over examples' gradients; one at a time it gives the same."""

    class Branching(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            hidden = super().forward(images.flatten(1))
            return hidden if bool(torch.isfinite(hidden).all()) else hidden * 0

    branching, plain = with_model(lambda: Branching(64, 3)), with_model(lambda: logistic())
    plain = replace(plain, theta=branching.theta)
    found, expected = (fisher_diagonal(one.task, one.theta, one.examples) for one in (branching, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_examples_of_single_precision_serve_a_double_precision_task() -> None:
    """Inputs are cast to the task's dtype."""
    problem = tiny_problem("logistic")
    single = Examples(problem.examples.inputs.float(), problem.examples.targets, problem.examples.ids)
    assert gradient(problem.task, problem.theta, single).dtype == np.float64
