"""Corrections against dense float64 oracles and exact retraining on a convex problem."""

from functools import reduce

import numpy as np
import pytest

from benchmarks.second_order.convex import ConvexFederation
from tests.unit.unlearning.certified.problems import LOGISTIC, blobs
from unlearning.certified.sensitivity import logistic_constants
from unlearning.curvature.gradients import fisher_diagonal, gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.decentralised.calibration import (
    NoiseSettings,
    noise_certificate,
    perturb,
    published_sensitivity,
)
from unlearning.decentralised.corrections import (
    Correction,
    CorrectionSettings,
    FederationCounts,
    PeerCurvature,
    client_correction,
    local_curvature,
    mean_curvature,
    sample_correction,
)
from unlearning.errors import ConfigurationError, NumericalError
from unlearning.parameters import Vector
from unlearning.requests import Forget
from unlearning.solvers.direct import dense_matrix
from unlearning.solvers.solution import Outcome
from unlearning.tasks.task import Examples, forgotten_mask, join
from unlearning.testing.convex import hessian, minimiser

L2 = 0.01
EXACT = CorrectionSettings(l2=L2)


@pytest.fixture(scope="module")
def federation() -> ConvexFederation:
    """Five peers of unequal size, one with two classes only, at the minimum over all of them; 15 weights."""
    clients = {str(number): blobs(size, seed=number) for number, size in enumerate((40, 30, 60, 50, 20))}
    clients["4"] = clients["4"].select(clients["4"].targets.numpy() != 2)
    everything = reduce(join, clients.values())
    original = minimiser(LOGISTIC, everything, L2, np.zeros(15))
    return ConvexFederation(task=LOGISTIC, clients=clients, test=everything, l2=L2, original=original)


def fifth(examples: Examples) -> tuple[Examples, Examples]:
    """Retained and forgotten: every fifth example goes."""
    goes = np.arange(len(examples)) % 5 == 0
    return examples.select(~goes), examples.select(goes)


def counts(federation: ConvexFederation, deleted: int) -> FederationCounts:
    total = sum(len(examples) for examples in federation.clients.values())
    return FederationCounts(num_peers=len(federation.clients), num_examples=total, num_deleted=deleted)


def correct(
    federation: ConvexFederation,
    settings: CorrectionSettings = EXACT,
    shared: Vector | None = None,
) -> Correction:
    """The sample correction of a fifth of client 0's examples."""
    retained, forgotten = fifth(federation.clients["0"])
    return sample_correction(
        federation.task,
        federation.original,
        retained,
        forgotten,
        settings,
        counts(federation, len(forgotten)),
        shared,
    )


def correct_client(
    federation: ConvexFederation, shared: Vector, settings: CorrectionSettings = EXACT
) -> Correction:
    """The correction of client 0 as a whole."""
    leaver = federation.clients["0"]
    size = counts(federation, len(leaver))
    return client_correction(federation.task, federation.original, leaver, settings, size, shared)


def gap(federation: ConvexFederation, made: Correction, *retained: Examples) -> float:
    """Distance to the minimum over these and the other clients' examples, over that before the deletion."""
    others = [federation.clients[peer] for peer in ("1", "2", "3", "4")]
    unlearned = federation.original + made.weight * made.vector
    target = minimiser(federation.task, reduce(join, [*retained, *others]), L2, federation.original)
    return float(np.linalg.norm(unlearned - target) / np.linalg.norm(federation.original - target))


@pytest.fixture(scope="module")
def curvatures(federation: ConvexFederation) -> dict[str, tuple[int, Vector]]:
    """The number of examples and the curvature over them, of the peers that lose none."""
    return {
        peer: (len(examples), local_curvature(federation.task, federation.original, examples, EXACT))
        for peer, examples in federation.clients.items()
        if peer != "0"
    }


def test_a_sample_correction_is_the_dense_formula(federation: ConvexFederation) -> None:
    """Eq. 3 with the peer's own Hessian over what it retains, L2 included."""
    task, theta = federation.task, federation.original
    retained, forgotten = fifth(federation.clients["0"])
    made = correct(federation)
    total = len(forgotten) * gradient(task, theta, forgotten, l2=L2)
    expected = np.linalg.solve(hessian(task, theta, retained, L2), total) / len(retained)
    np.testing.assert_allclose(made.vector, expected, rtol=1e-8)
    assert made.outcome is Outcome.CONVERGED


def test_a_sample_correction_with_everybodys_curvature_comes_to_retraining(
    federation: ConvexFederation, curvatures: dict[str, tuple[int, Vector]]
) -> None:
    """Weighted as the peers add it, it is the Newton step: less than 5 % of the distance is left."""
    retained, _ = fifth(federation.clients["0"])
    own = local_curvature(federation.task, federation.original, retained, EXACT)
    shared = mean_curvature({**curvatures, "0": (len(retained), own)})
    assert gap(federation, correct(federation, shared=shared), retained) < 0.05


def test_a_client_correction_comes_to_retraining(
    federation: ConvexFederation, curvatures: dict[str, tuple[int, Vector]]
) -> None:
    """With example weights less than 15 % of the distance is left, though the peers differ in size."""
    assert gap(federation, correct_client(federation, mean_curvature(curvatures))) < 0.15


def test_a_client_correction_is_the_dense_formula(
    federation: ConvexFederation, curvatures: dict[str, tuple[int, Vector]]
) -> None:
    """Eq. 3 of a whole client: n_0/(n − n_0) of its gradient, with the others' curvature, added in full by each."""
    shared = mean_curvature(curvatures)
    made = correct_client(federation, shared)
    leaver, left = federation.clients["0"], sum(count for count, _ in curvatures.values())
    slope = gradient(federation.task, federation.original, leaver, l2=L2)
    matrix = shared.reshape(slope.size, slope.size) + L2 * np.eye(slope.size)
    np.testing.assert_allclose(made.vector, np.linalg.solve(matrix, slope) * len(leaver) / left, rtol=1e-8)
    assert made.weight == 1.0


def test_class_corrections_of_all_peers_add_up_to_retraining(federation: ConvexFederation) -> None:
    """Each peer's share with everybody's curvature; together the Newton step of the whole class."""
    task, theta = federation.task, federation.original
    masks = {
        peer: forgotten_mask(examples, Forget(classes=frozenset({2})))
        for peer, examples in federation.clients.items()
    }
    retained = {peer: examples.select(~masks[peer]) for peer, examples in federation.clients.items()}
    deleted = int(sum(mask.sum() for mask in masks.values()))
    shared = mean_curvature(
        {
            peer: (len(examples), local_curvature(task, theta, examples, EXACT))
            for peer, examples in retained.items()
        }
    )
    unlearned = theta.copy()
    for peer, examples in federation.clients.items():
        if masks[peer].any():
            made = sample_correction(
                task,
                theta,
                retained[peer],
                examples.select(masks[peer]),
                EXACT,
                counts(federation, deleted),
                shared,
            )
            unlearned = unlearned + made.weight * made.vector
    everything = reduce(join, retained.values())
    slope = gradient(task, theta, everything, l2=L2)
    newton = theta - np.linalg.solve(hessian(task, theta, everything, L2), slope)
    np.testing.assert_allclose(unlearned, newton, atol=1e-8)


def test_the_published_weights_are_one_over_the_number_of_peers(
    federation: ConvexFederation, curvatures: dict[str, tuple[int, Vector]]
) -> None:
    """As published: 1/N for samples, and 1/(N−1) within and 1/N without for a client, whatever the sizes."""
    published = CorrectionSettings(l2=L2, as_published=True)
    shared = mean_curvature(curvatures)
    some, whole = correct(federation, published), correct_client(federation, shared, published)
    slope = gradient(federation.task, federation.original, federation.clients["0"], l2=L2)
    matrix = shared.reshape(slope.size, slope.size) + L2 * np.eye(slope.size)
    assert some.weight == whole.weight == pytest.approx(1 / 5)
    np.testing.assert_allclose(whole.vector, np.linalg.solve(matrix, slope) / 4, rtol=1e-8)


def test_fisher_corrections_are_the_dense_formulas(federation: ConvexFederation) -> None:
    """The matrix-free one solves with the empirical Fisher matrix, the other divides by its diagonal."""
    task, theta = federation.task, federation.original
    retained, forgotten = fifth(federation.clients["0"])
    total = len(forgotten) * gradient(task, theta, forgotten, l2=L2) / len(retained)
    product = CurvatureProduct(task, theta, retained, kind=CurvatureKind.FISHER)
    fisher = dense_matrix(product, product.dimension)
    oracles = {
        PeerCurvature.FISHER: np.linalg.solve(fisher + (L2 + 0.1) * np.eye(len(fisher)), total),
        PeerCurvature.FISHER_DIAGONAL: total / (fisher_diagonal(task, theta, retained) + L2 + 0.1),
    }
    for curvature, expected in oracles.items():
        settings = CorrectionSettings(curvature=curvature, l2=L2, damping=0.1, dense_up_to=0, tolerance=1e-11)
        np.testing.assert_allclose(correct(federation, settings).vector, expected, atol=1e-8)


def test_an_undamped_fisher_diagonal_with_zeros_is_refused(federation: ConvexFederation) -> None:
    """Dividing by zero would send infinities to every peer."""
    settings = CorrectionSettings(curvature=PeerCurvature.FISHER_DIAGONAL)
    with pytest.raises(NumericalError):
        correct(federation, settings, shared=np.zeros(federation.original.size))


def test_noise_reaches_the_models_with_the_certificates_sigma() -> None:
    """σ/w on the vector is σ on a model that adds w times the vector."""
    correction = Correction(
        vector=np.zeros(200_000), weight=0.25, outcome=Outcome.CONVERGED, relative_residual=0.0
    )
    size = FederationCounts(num_peers=4, num_examples=100, num_deleted=5)
    made = noise_certificate(
        NoiseSettings(epsilon=1.0, delta=1e-5, sensitivity=0.3),
        requester=size,
        federation=size,
        uses_own_curvature=True,
        unmet=(),
    )
    noisy = perturb(correction, made, np.random.default_rng(0))
    # 200,000 draws: the sample deviation is within 1 % with overwhelming probability
    assert (correction.weight * noisy.vector).std() == pytest.approx(0.3 * 3.730632, rel=0.01)
    assert not made.is_certified


def test_the_published_noise_is_the_papers_formula() -> None:
    """σ_c = (ΔF_c/ε) √(2 ln(1.25/δ)) with ΔF_c = 2ML²m²/(λ³n²), and ε of 1 and more refused."""
    constants = logistic_constants(feature_norm=2.0, weight_norm=1.0, l2=0.5, features_from="a test")
    size = FederationCounts(num_peers=4, num_examples=100, num_deleted=5)
    bound = published_sensitivity(constants, num_examples=100, num_deleted=5)
    expected = 2 * constants.hessian_lipschitz * constants.gradient_bound**2 * 25 / (0.5**3 * 100**2)
    assert bound.value == pytest.approx(expected)

    def sigma(epsilon: float) -> float:
        settings = NoiseSettings(epsilon=epsilon, delta=1e-5, constants=constants, as_published=True)
        return noise_certificate(
            settings, requester=size, federation=size, uses_own_curvature=True, unmet=()
        ).sigma

    assert sigma(0.5) == pytest.approx(expected / 0.5 * np.sqrt(2 * np.log(1.25e5)))
    with pytest.raises(ConfigurationError):
        sigma(1.0)
