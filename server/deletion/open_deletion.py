"""The active deletion as a step works on it: what its names stand for is looked up once, when the step begins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from server.deletion.never_used import NOTHING_TO_UNLEARN
from server.federation.context import FederationContext
from server.federation.earlier_settings import schedule_of
from server.federation.state import ActiveDeletion, FederationState
from server.ledger import Ledger
from server.state_directory.files import NOISE_SECRET
from strategies.unlearning_strategy import UnlearningStrategy
from unlearning.certified.secret_noise import derived_key, noise_secret
from unlearning.methods.method import Method, MethodParameters
from unlearning.methods.preparation import Preparation
from unlearning.methods.registry import method_named, validated_parameters
from unlearning.requests import NOTHING, Forget, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDeletion:
    """The parts of the federation, the deletion's method with its parameters, and the examples to forget.

    prepared: the method's preparation, where the run has switched it on.
    forget_sets: by client, what counts as forgotten in all requests of the deletion together.
    """

    context: FederationContext
    method: Method
    parameters: MethodParameters
    prepared: Preparation | None
    forget_sets: Mapping[str, Forget]

    @classmethod
    def of(cls, context: FederationContext, deletion: ActiveDeletion) -> Self:
        """Return the deletion opened for one step.

        Raises:
            RequestError: the method is gone, or does not take these parameters any more.
        """
        method = NOTHING_TO_UNLEARN if deletion.is_never_used else method_named(deletion.method)
        return cls(
            context=context,
            method=method,
            parameters=validated_parameters(method, {} if deletion.is_never_used else deletion.parameters),
            prepared=context.preparations.prepared.get(deletion.method),
            forget_sets=forget_sets(context.ledger, deletion.targets),
        )

    def concerned(self, target: Target) -> list[str]:
        """Return the clients that one of the deletion's targets concerns."""
        return concerned(self.forget_sets, target)

    def strategy(self, state: FederationState) -> UnlearningStrategy:
        """Return the method as a strategy that goes on from where `state` has it."""
        context, deletion = self.context, state.active_deletion()
        draws_noise = self.method.info.draws_noise
        return UnlearningStrategy(
            self.method,
            deletion.targets,
            context.clients.fedavg,
            parameters=self.parameters,
            state=deletion.method_state,
            rounds_trained=state.training_rounds,
            schedule=schedule_of(context.settings, state.settings),
            kept=context.preparations.store_for(deletion, state.generation_of(deletion.method)),
            noise_key=_noise_key(context.state_dir, deletion.request_ids) if draws_noise else None,
        )


def forget_sets(ledger: Ledger, targets: Sequence[Target]) -> dict[str, Forget]:
    """Return what each client counts as forgotten in these deletions; a class concerns every client that is left."""
    gone = ledger.forgotten_clients()
    everyone = [record.client_id for record in ledger.clients() if record.client_id not in gone]
    forgets: dict[str, Forget] = {}
    for target in targets:
        for client in [target.client_id] if target.client_id is not None else everyone:
            forgets[client] = forgets.get(client, NOTHING) | target.forget
    return forgets


def concerned(forgets: Mapping[str, Forget], target: Target) -> list[str]:
    """Return the clients among those of `forgets` that a target concerns."""
    return sorted(forgets) if target.client_id is None else [target.client_id]


def _noise_key(state_dir: Path, request_ids: Sequence[str]) -> bytes:
    """Return what the noise of a deletion of these requests is derived from.

    Raises:
        ConfigurationError: the secret cannot be used.
    """
    return derived_key(noise_secret(state_dir / NOISE_SECRET), "requests", *sorted(request_ids))
