"""What a peer computes on its own data: the seam between the protocol and the mathematics."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from client.peer.gossip import RELEASE
from client.peer.rules import Round
from unlearning.buffers import without_buffers
from unlearning.certified.linear_head import feature_norm
from unlearning.certified.noise_certificate import unmet_assumptions, unmet_convexity
from unlearning.certified.privacy_accountant import AccountedRelease
from unlearning.certified.sensitivity import Constants, logistic_constants, minimiser_norm
from unlearning.decentralised import (
    APPROXIMATE_CURVATURE,
    CorrectionSettings,
    FederationCounts,
    NoiseSettings,
    PeerCurvature,
    client_correction,
    local_curvature,
    local_move,
    mean_curvature,
    noise_certificate,
    perturb,
    sample_correction,
)
from unlearning.errors import InvalidRequest
from unlearning.parameters import Vector
from unlearning.requests import Forget
from unlearning.runtime.json_codec import to_plain
from unlearning.tasks.task import Examples, Task, forgotten_mask, unknown_ids
from unlearning.training import TrainingSettings, local_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionOrder:
    """One correction to compute.

    parameters: the peer's model (d,). before: what was forgotten earlier. forget: what goes now.
    curvatures: the peers' curvatures with their numbers of examples; empty for the own one.
    """

    parameters: Vector
    before: Forget
    forget: Forget
    counts: FederationCounts
    curvatures: Mapping[str, tuple[int, Vector]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionAnswer:
    """x^Δ (d,) with its noise, by what weight peers add it, and what is to be said about it."""

    vector: Vector
    weight: float
    account: Mapping[str, Any]


class Learner(Protocol):
    """A peer's own data and how it learns from them."""

    def count(self, forget: Forget, *, outside: Forget) -> int:
        """Return how many examples `forget` speaks of and `outside` does not."""

    def check(self, forget: Forget) -> None:
        """Refuse to forget what is not there."""

    def move(self, step: Round) -> Vector:
        """Train locally for one round, as a difference (d,)."""

    def curvature(self, parameters: Vector, *, without: Forget) -> Vector:
        """Return the curvature as other peers can use it."""

    def correction(self, order: CorrectionOrder) -> CorrectionAnswer:
        """Return what takes `order.forget` out of every model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLearner:
    """The learner of a task on one site's examples.

    num_steps: local SGD steps a round; 0 for whole epochs. noise: None for no noise.
    """

    peer: str
    task: Task
    examples: Examples
    training: TrainingSettings
    corrections: CorrectionSettings
    num_steps: int = 0
    noise: NoiseSettings | None = None
    generator: np.random.Generator = field(default_factory=np.random.default_rng)

    def count(self, forget: Forget, *, outside: Forget) -> int:
        """Return how many examples `forget` speaks of and `outside` does not."""
        return int((forgotten_mask(self.examples, forget) & ~forgotten_mask(self.examples, outside)).sum())

    def check(self, forget: Forget) -> None:
        """Refuse to forget what is not there.

        Raises:
            InvalidRequest: sample ids that no example carries.
        """
        unknown = unknown_ids(self.examples, forget.sample_ids)
        if unknown:
            raise InvalidRequest(
                f"Peer {self.peer!r} has no example {', '.join(map(repr, unknown[:5]))}"
                f"{f' and {len(unknown) - 5:,} more of the list' if len(unknown) > 5 else ''}. Check the ids."
            )

    def move(self, step: Round) -> Vector:
        """Train locally for one round, as a difference (d,); zero where no example is left."""
        examples = self._without(step.without)
        if len(examples) == 0:
            return np.zeros_like(step.parameters)
        training = replace(self.training, seed=local_seed(self.training.seed, self.peer, step.number))
        return local_move(
            self.task, step.parameters, examples, training, num_steps=self.num_steps, scale=step.scale
        )

    def curvature(self, parameters: Vector, *, without: Forget) -> Vector:
        """Return the curvature as other peers can use it: see `local_curvature`.

        Raises:
            DataError: no example is left.
            NumericalError: the matrix is too large.
        """
        return local_curvature(self.task, parameters, self._without(without), self.corrections)

    def correction(self, order: CorrectionOrder) -> CorrectionAnswer:
        """Return what takes `order.forget` out of every model, with noise where it is asked for.

        Raises:
            DataError: nothing is forgotten or nothing retained.
            NumericalError: the curvature cannot be inverted.
            ConfigurationError: the noise cannot be calibrated.
        """
        held = self._without(order.before)
        goes = forgotten_mask(held, order.forget)
        settings = self.corrections
        shared = None
        if order.curvatures:
            shared = mean_curvature(order.curvatures, as_published=settings.as_published)
        if order.forget.everything:
            assert shared is not None  # asked for with the request
            made = client_correction(self.task, order.parameters, held, settings, order.counts, shared)
        else:
            made = sample_correction(
                self.task,
                order.parameters,
                held.select(~goes),
                held.select(goes),
                settings,
                order.counts,
                shared,
            )
        account: dict[str, Any] = {
            "outcome": str(made.outcome),
            "relative_residual": made.relative_residual,
            "norm": float(np.linalg.norm(made.vector)),
        }
        if self.noise is not None:
            noise = self.noise
            if noise.sensitivity is None:
                noise = replace(noise, constants=self._constants())
            certificate = noise_certificate(
                noise,
                requester=FederationCounts(num_peers=1, num_examples=len(held), num_deleted=int(goes.sum())),
                federation=order.counts,
                uses_own_curvature=shared is None,
                unmet=(*unmet_assumptions(self.task, settings.l2), *_describe_approximation(settings)),
            )
            made = perturb(made, certificate, self.generator, as_published=settings.as_published)
            made = replace(
                made, vector=without_buffers(self.task, made.vector)
            )  # noise could make variances negative
            release = AccountedRelease(
                name=self.peer,
                number=0,  # peers share no count of what moved their models
                sigma=certificate.sigma,
                sensitivity=certificate.sensitivity,
                unmet=certificate.unmet,
            )
            account |= {
                "certificate": certificate.statement,
                "sigma": certificate.sigma,
                RELEASE: to_plain(release),
            }
        return CorrectionAnswer(vector=made.vector, weight=made.weight, account=account)

    def _constants(self) -> Constants | None:
        """Return those of logistic regression, from the own features; None where the task is not strongly convex."""
        if unmet_convexity(self.task, self.corrections.l2):
            return None
        return logistic_constants(
            feature_norm=feature_norm(self.task, self.examples),
            weight_norm=minimiser_norm(l2=self.corrections.l2, num_classes=self.task.num_classes),
            l2=self.corrections.l2,
            features_from="the requester's own data",
        )

    def _without(self, forget: Forget) -> Examples:
        return self.examples.select(~forgotten_mask(self.examples, forget))


def _describe_approximation(settings: CorrectionSettings) -> tuple[str, ...]:
    """Return what the curvature lacks of the one that the Newton step's bound is for."""
    is_fisher = settings.curvature in (PeerCurvature.FISHER, PeerCurvature.FISHER_DIAGONAL)
    return (APPROXIMATE_CURVATURE,) if is_fisher or settings.damping else ()
