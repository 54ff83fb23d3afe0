"""What a peer computes on its own data: the seam between the protocol and the mathematics."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from client.peer.gossip import RELEASE, GossipMessage, Kind
from unlearning.buffers import without_buffers
from unlearning.certified.linear_head import feature_norm
from unlearning.certified.noise_certificate import NoiseCertificate, unmet_assumptions, unmet_convexity
from unlearning.certified.privacy_accountant import AccountedRelease
from unlearning.certified.sensitivity import Constants, logistic_constants, minimiser_norm
from unlearning.decentralised.calibration import (
    APPROXIMATE_CURVATURE,
    NoiseSettings,
    noise_certificate,
    perturb,
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
from unlearning.decentralised.dpsgd import local_move
from unlearning.errors import InvalidRequest
from unlearning.parameters import Vector
from unlearning.requests import Forget
from unlearning.runtime.json_codec import to_plain
from unlearning.tasks.task import Examples, Task, forgotten_mask, unknown_ids
from unlearning.training import TrainingSettings, local_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round's local training, to be computed: from `parameters` (d,), without what is forgotten."""

    number: int
    parameters: Vector
    without: Forget
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One item to make for a request: statistics or a correction.

    parameters: the peer's model (d,). before: what was forgotten earlier. forget: what goes now.
    counts: of the federation. curvatures: the peers', with their numbers of examples; empty for the own one.
    deleted: how many of the peer's `num_examples` go, `learnt` of them trained on. largest_norm: of a correction that
    the others accept.
    """

    kind: Kind
    peer: str
    request: GossipMessage
    parameters: Vector
    before: Forget
    forget: Forget
    counts: FederationCounts
    curvatures: Mapping[str, tuple[int, Vector]]
    num_examples: int
    deleted: int
    learnt: int
    largest_norm: float


class Learner(Protocol):
    """A peer's own data and how it learns from them: the seam between the protocol and the mathematics."""

    def count(self, forget: Forget, *, outside: Forget) -> int:
        """Return how many examples `forget` speaks of and `outside` does not."""

    def check(self, forget: Forget) -> None:
        """Refuse to forget what is not there."""

    def move(self, step: Round) -> Vector:
        """Train locally for one round, as a difference (d,)."""

    def curvature(self, parameters: Vector, *, without: Forget) -> Vector:
        """Return the curvature as other peers can use it."""

    def correction(self, work: Work) -> tuple[Correction, dict[str, Any]]:
        """Return what takes `work.forget` out of every model, and its account: the solve, the noise, the release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLearner:
    """The learner of a task on one site's examples.

    num_steps: local SGD steps a round; 0 for whole epochs. noise: None for no noise.
    moved: why ids may not name the samples that they did at first (`client.sample_places`); empty where they do.
    """

    peer: str
    task: Task
    examples: Examples
    training: TrainingSettings
    corrections: CorrectionSettings
    num_steps: int = 0
    noise: NoiseSettings | None = None
    moved: str = ""
    generator: np.random.Generator = field(default_factory=np.random.default_rng)

    def count(self, forget: Forget, *, outside: Forget) -> int:
        """Return how many examples `forget` speaks of and `outside` does not."""
        return int((forgotten_mask(self.examples, forget) & ~forgotten_mask(self.examples, outside)).sum())

    def check(self, forget: Forget) -> None:
        """Refuse to forget what is not there.

        Raises:
            InvalidRequest: sample ids that no example carries, or that may be others' now.
        """
        if forget.sample_ids and self.moved:
            raise InvalidRequest(self.moved)
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

    def correction(self, work: Work) -> tuple[Correction, dict[str, Any]]:
        """Return what takes `work.forget` out of every model, with noise where it is configured, and its account.

        Raises:
            DataError: nothing is forgotten or nothing retained.
            NumericalError: the curvature cannot be inverted.
            ConfigurationError: the noise cannot be calibrated.
        """
        held = self._without(work.before)
        forgotten = forgotten_mask(held, work.forget)
        settings = self.corrections
        shared = None
        if work.curvatures:
            shared = mean_curvature(work.curvatures, as_published=settings.as_published)
        if work.forget.everything:
            assert shared is not None  # required by the request
            made = client_correction(self.task, work.parameters, held, settings, work.counts, shared)
        else:
            retained, gone = held.select(~forgotten), held.select(forgotten)
            made = sample_correction(
                self.task, work.parameters, retained, gone, settings, work.counts, shared
            )
        account: dict[str, Any] = {
            "outcome": str(made.outcome),
            "relative_residual": made.relative_residual,
            "norm": float(np.linalg.norm(made.vector)),
        }
        if self.noise is not None:
            own = FederationCounts(num_peers=1, num_examples=len(held), num_deleted=int(forgotten.sum()))
            certificate = self._certificate(self.noise, own, work)
            made = perturb(made, certificate, self.generator, as_published=settings.as_published)
            # noise could make variances negative
            made = replace(made, vector=without_buffers(self.task, made.vector))
            account |= _noise_account(self.peer, certificate)
        return made, account

    def _certificate(self, noise: NoiseSettings, own: FederationCounts, work: Work) -> NoiseCertificate:
        settings = self.corrections
        if noise.sensitivity is None:
            noise = replace(noise, constants=self._constants())
        return noise_certificate(
            noise,
            requester=own,
            federation=work.counts,
            uses_own_curvature=not work.curvatures,
            unmet=(*unmet_assumptions(self.task, settings.l2), *_describe_approximation(settings)),
        )

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


def _noise_account(peer: str, certificate: NoiseCertificate) -> dict[str, Any]:
    """Return the part of a correction's account that is about its noise."""
    release = AccountedRelease(
        name=peer,
        number=0,  # peers share no count of what moved their models
        sigma=certificate.sigma,
        sensitivity=certificate.sensitivity,
        unmet=certificate.unmet,
    )
    return {
        "certificate": certificate.statement,
        "sigma": certificate.sigma,
        RELEASE: to_plain(release),
    }
