"""The noise on a correction, and what can honestly be said about it.

A peer adds N(0, σ_c²) to x^Δ and every peer adds w times that, so the models carry noise of w σ_c. Here σ_c = σ/w,
with σ what a certificate asks of the models. As published σ_c is calibrated for x^Δ itself, by the classical
mechanism and ΔF_c = 2ML²m_c²/(λ³n_c²), and the models then carry 1/N of it.

What a peer cannot know it must not promise: whether the federation has converged, whether the models agree, and,
with its own curvature, how far that is from everybody's. So a certificate made here names these as
unmet, and says "calibrated noise, not certified".

Source: Wu et al., Certified Unlearning in Decentralized Federated Learning, Lemma 3 and Algorithm 1.
"""

from dataclasses import dataclass, replace

import numpy as np

from unlearning.certified.noise import Mechanism, add_noise
from unlearning.certified.noise_certificate import NoiseCertificate, certificate
from unlearning.certified.sensitivity import Constants, Sensitivity, measured_sensitivity, newton_step_bound
from unlearning.decentralised.corrections import Correction, FederationCounts
from unlearning.errors import ConfigurationError, NumericalError

NOT_CONVERGED = "No peer knows the whole federation's gradient, so it is not checked that training converged."
NO_CONSENSUS = "The peers' models differ; the bound is for one model that all share."
APPROXIMATE_CURVATURE = "The curvature is damped or a Fisher matrix; the bound is for the Hessian."
OWN_CURVATURE = "The curvature is that of the requester's own examples, not of everybody's."


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSettings:
    """The budget of one deletion, and Δ where it is no bound.

    sensitivity: a distance between unlearned and retrained models that was measured elsewhere; None to take the bound
    of the Newton step from `constants`, which strongly convex tasks have.
    """

    epsilon: float
    delta: float
    sensitivity: float | None = None
    constants: Constants | None = None
    as_published: bool = False


def published_sensitivity(constants: Constants, *, num_examples: int, num_deleted: int) -> Sensitivity:
    """Compute ΔF_c = 2ML²m_c²/(λ³n_c²), of the requester's own n_c and m_c."""
    lipschitz, convexity = constants.gradient_bound, constants.strong_convexity
    value = 2 * constants.hessian_lipschitz * lipschitz**2 * num_deleted**2
    value /= convexity**3 * num_examples**2
    return Sensitivity(
        value=value, is_bound=True, source="the decentralised paper's Lemma 3", constants=constants
    )


def correction_bound(constants: Constants, *, num_examples: int, num_deleted: int) -> float:
    """Compute 10 m L/(λ n): what a correction that takes out m of n examples can move a model by.

    ‖w x^Δ‖ = ‖Ĥ⁻¹ Σ_U ∇ℓ‖/(n−m) ≤ m L/(λ (n−m)) for samples, classes and clients alike. Examples that others delete
    shrink n; with the 10 the bound holds while a tenth of the n examples is left, and all peers work with one n.

    Raises:
        NumericalError: there are no examples.
    """
    if num_examples < 1:
        raise NumericalError("There is no bound on a correction where there are no examples.")
    return 10 * num_deleted * constants.gradient_bound / (constants.strong_convexity * num_examples)


def noise_certificate(
    settings: NoiseSettings,
    *,
    requester: FederationCounts,
    federation: FederationCounts,
    uses_own_curvature: bool,
    unmet: tuple[str, ...],
) -> NoiseCertificate:
    """Compute σ for one deletion, and the assumptions that do not hold, those of the federation among them.

    requester: n_c and m_c. federation: n and m. unmet: what the task lacks (`unmet_assumptions`).

    Raises:
        ConfigurationError: there are neither constants nor a sensitivity, or a value is out of range.
    """
    if settings.sensitivity is not None:
        sensitivity = measured_sensitivity(settings.sensitivity, "given in the configuration")
    elif settings.constants is None:
        raise ConfigurationError(
            ["sensitivity: the task is not strongly convex, so there is no bound; give a measured one."]
        )
    elif settings.as_published:
        sensitivity = published_sensitivity(
            settings.constants, num_examples=requester.num_examples, num_deleted=requester.num_deleted
        )
    else:
        sensitivity = newton_step_bound(
            settings.constants, num_examples=federation.num_examples, num_deleted=federation.num_deleted
        )
    federated = (NOT_CONVERGED, NO_CONSENSUS, *((OWN_CURVATURE,) if uses_own_curvature else ()))
    return certificate(
        epsilon=settings.epsilon,
        delta=settings.delta,
        sensitivity=sensitivity,
        unmet=(*unmet, *federated),
        mechanism=Mechanism.CLASSICAL if settings.as_published else Mechanism.ANALYTIC,
    )


def perturb(
    correction: Correction,
    made: NoiseCertificate,
    generator: np.random.Generator,
    *,
    as_published: bool = False,
) -> Correction:
    """Return the correction with noise: σ/w on x^Δ, so that the models carry σ; as published σ on x^Δ.

    Raises:
        ConfigurationError: σ is negative or not finite.
    """
    sigma = made.sigma if as_published else made.sigma / correction.weight
    return replace(correction, vector=add_noise(correction.vector, sigma, generator))
