"""HF-online in the federation: forget whole clients by adding vectors that training has carried along.

Source: Qiao et al., "Hessian-Free Online Certified Unlearning", Algorithm 1, with FedAvg's map in the place of a step
of SGD. The recursion is in `unlearning.certified.unit_vectors`, the products of clients in `certified.tangents`.

    a_u     client u's vector (d,): θ + a_u is, to first order, the model of a federation without u
    J_i     the derivative of client i's local training: how its model moves when its start is moved

In every training round the server sends the vectors beside the model, (k, d) for k forgettable clients, each client
carries them through its local steps and returns J_i a, and the server makes the next vectors of that. A deletion is
θ + Σ_{u∈U} a_u: no client is asked, nothing is solved. A client that gets the vectors learns what the model would be
without each forgettable client; `docs/explanation-prepared-methods.md` says which clients get them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import Field, model_validator

from unlearning.certified.noise import Normal, add_noise
from unlearning.certified.noise_certificate import certificate, unmet_assumptions
from unlearning.certified.secret_noise import KeyedNormal, derived_key
from unlearning.certified.sensitivity import measured_sensitivity
from unlearning.errors import CheckpointError, ConfigurationError, MethodFailed
from unlearning.methods.costs import Cost, CostSymbols, WorkDone
from unlearning.methods.hf_online_bound import KeptBound
from unlearning.methods.hf_online_kept import LENGTHS_KEY, kept_vector
from unlearning.methods.hf_online_vectors import CarryVectors
from unlearning.methods.method import (
    AsksNobody,
    MethodInfo,
    MethodParameters,
    Need,
    Noise,
    PreparedStore,
    Problem,
    SensitivityBound,
    UnlearningState,
)
from unlearning.methods.safe_range import OperatorsOnly, Safe
from unlearning.methods.updates import change_of
from unlearning.parameters import Vector, content_hash
from unlearning.requests import Granularity
from unlearning.runtime.stores import Store
from unlearning.verification.difference.holders import TargetSends


class HfOnlineParameters(MethodParameters):
    """How many rounds repair the model, and noise where the federation has no budget: all three of it or none."""

    # They hold up the federation; 10,000 are more than any run here has had.
    repair_rounds: Annotated[int, Safe(high=100)] = Field(
        default=0, ge=0, le=10_000, description="recovery rounds at least; they carry the others' vectors on"
    )
    # The noise is sensitivity over epsilon: either can drown the model. An epsilon over 1,000 hides nothing.
    epsilon: Annotated[float | None, OperatorsOnly()] = Field(
        default=None, ge=1e-6, le=1000, description="of the noise; none without it"
    )
    delta: Annotated[float | None, OperatorsOnly()] = Field(
        default=None, gt=0, lt=1, description="δ of the noise"
    )
    sensitivity: Annotated[float | None, OperatorsOnly()] = Field(
        default=None,
        gt=0,
        le=1e6,
        description="‖unlearned − retrained‖ that the noise hides, as measured elsewhere",
    )

    @model_validator(mode="after")
    def _all_or_none(self) -> "HfOnlineParameters":
        given = {self.epsilon is None, self.delta is None, self.sensitivity is None}
        if len(given) > 1:
            raise ValueError("noise needs epsilon, delta and sensitivity; give all three or none")
        return self


_Problem: TypeAlias = Problem[HfOnlineParameters, CarryVectors]


class HfOnline(AsksNobody[HfOnlineParameters, CarryVectors]):
    """Deletion by vector addition; the server does everything in `begin`."""

    Parameters = HfOnlineParameters
    info = MethodInfo(
        name="hf-online",
        title="HF-online",
        source="Qiao et al., Hessian-Free Online Certified Unlearning, Algorithm 1; carried through FedAvg",
        target_sends=TargetSends.KEPT,
        granularities=frozenset({Granularity.CLIENT}),
        needs=frozenset({Need.PREPARATION, Need.LOSS_DERIVATIVES, Need.MEAN_LOSS}),
        remark=(
            "asks no client, but with k forgettable clients every training message is 1 + k times as large, both ways, "
            "and local training of a convolutional network takes 1.5 to 3 times itself longer for each"
        ),
        draws_noise=True,
        preparation=CarryVectors,
        assumes_fedavg="its vectors and their bound follow plain SGD through FedAvg's mean",
    )

    def begin(self, problem: _Problem, parameters: Vector) -> UnlearningState:
        """Compute θ + Σ a_u, with noise where it is asked for.

        Raises:
            MethodFailed: the federation was not prepared, or no whole vector of a client is kept or can be read.
        """
        own, kept = problem.parameters, self.kept(problem)
        prepared = kept.preparation
        if own.epsilon is not None and prepared.sigma is not None:
            raise MethodFailed(
                "This federation's noise and budget are set in prepare. Leave epsilon, delta and sensitivity out of "
                "the request.",
                retryable=False,
                code="noise-set-in-prepare",
            )
        vectors = _vectors_of(problem, kept, parameters)
        num_vectors = sum(prepared.has(name) for name in kept.store.list_keys() if name != LENGTHS_KEY)
        moved = parameters.copy()
        for vector in vectors.values():
            moved += vector
        findings: dict[str, Any] = {
            "clients forgotten by addition of their vectors": ", ".join(vectors),
            "clients asked": 0,
            "clients that may be forgotten so": num_vectors,
            "size of the kept vectors in bytes": kept.store.num_bytes(),
            "‖Σ a_u‖": float(np.linalg.norm(sum(vector.astype(np.float64) for vector in vectors.values()))),
            "weights of the retraining it approximates": str(prepared.weighting),
            **change_of(problem.task, parameters, moved),
        }
        noise = Noise(sensitivity=own.sensitivity, delta=own.delta)
        if prepared.sigma is not None:
            noise = Noise(sigma=prepared.sigma, sensitivity=prepared.sensitivity, delta=prepared.delta)
            moved = add_noise(moved, prepared.sigma, _noise_of(problem, moved, prepared.sigma))
            findings |= {"noise": "Gaussian, of the σ that is set in prepare", "σ": prepared.sigma}
        elif own.epsilon is None or own.delta is None or own.sensitivity is None:
            findings["noise"] = "none, and no (ε, δ) is claimed"
        else:
            decays = (problem.schedule(number).weight_decay for number in range(1, max(problem.round, 2)))
            made = certificate(
                epsilon=own.epsilon,
                delta=own.delta,
                sensitivity=measured_sensitivity(own.sensitivity, "given with the request"),
                unmet=unmet_assumptions(problem.task, min(decays)),
            )
            moved = add_noise(moved, made.sigma, _noise_of(problem, moved, made.sigma))
            noise = replace(noise, sigma=made.sigma)
            findings |= {"noise": made.statement, "σ": made.sigma, "ε": own.epsilon, "δ": own.delta}
        return UnlearningState(
            parameters=moved,
            finished=True,
            findings=findings,
            work=WorkDone(vectors=num_vectors),
            noise=noise,
        )

    def cost(
        self, given: CostSymbols, parameters: HfOnlineParameters, preparation: CarryVectors | None
    ) -> Cost:
        """Compute 0, for no client is asked, and V P B stored for V clients that may be forgotten (unknown: all).

        It pays in training instead: each message carries V vectors more, 2 P B (1 + V) bytes a client and round.
        """
        vectors = (given.work.vectors if given.work else 0) or given.num_clients
        return given.trips(0, storage_bytes=vectors * given.model_bytes)

    def repair_rounds(self, parameters: HfOnlineParameters) -> int:
        """Return the number that the request gives."""
        return parameters.repair_rounds

    def sensitivity_bound(
        self, preparation: CarryVectors, store: Store, initial: Callable[[], Vector]
    ) -> SensitivityBound:
        """Return what follows from the records of the rounds."""
        return KeptBound(preparation, store, initial)


def _noise_of(problem: Problem, clean: Vector, sigma: float) -> Normal:
    """Return what the noise on `clean` is drawn from; the run's seed is known to every client, who could subtract it.

    The request's key, the model before noise and σ decide: the same release done again after a crash or a restore
    is the same, and no two others share their noise (of one model with two σ the difference would tell the model).
    """
    if problem.noise_key is None:
        return np.random.default_rng()
    return KeyedNormal(derived_key(problem.noise_key, "hf-online", content_hash(clean), float(sigma).hex()))


def _vectors_of(problem: Problem, kept: PreparedStore[CarryVectors], parameters: Vector) -> dict[str, Vector]:
    """Return the targets' vectors, in the order of client ids; zero for one that never took part."""
    vectors: dict[str, Vector] = {}
    for client in sorted(problem.targets):
        never_trained = not kept.store.rounds(client) and not problem.num_examples.get(client)
        try:
            vector = (
                np.zeros_like(parameters)
                if never_trained
                else kept_vector(kept.preparation, kept.store, client)
            )
        except (CheckpointError, ConfigurationError) as exc:
            raise MethodFailed(str(exc), retryable=False, code="vectors-unreadable") from exc
        if vector is None:
            raise MethodFailed(
                f"No whole vector of client {client} is kept: it took part when it was not among those that may be "
                "forgotten, some of its samples were forgotten, or the files are gone. Choose another method.",
                retryable=False,
                code="no-vector",
            )
        vectors[client] = vector
    return vectors
