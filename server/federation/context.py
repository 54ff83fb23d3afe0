"""What every step of the live federation needs: its clients, its ledger, its checkpoints.

What happens in which order is in `server.live_loop` (training) and `server.deletion.steps` (everything from the
claim of a request to its report).
"""

from dataclasses import dataclass, replace
from pathlib import Path

from flwr.app import Message

from server.federation.checkpoints import CheckpointStore
from server.federation.clients import Clients
from server.federation.gate import RoundGate
from server.federation.observing import ServerTestSet
from server.federation.preparations import Preparations
from server.federation.presence import suspend
from server.federation.round_log import RoundLog
from server.federation.state import FederationState, RoundResult
from server.federation.training_account import TrainingAccount
from server.ledger import Ledger, LedgerWriter
from strategies.exchange import Exchange
from strategies.messages import model_record
from strategies.round_plan import RoundOutcome
from strategies.settings.run_config import RunSettings
from unlearning.methods.eligibility import FederationProfile
from unlearning.methods.preparation import FederatedRound
from unlearning.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationContext:
    """The parts that the live federation is made of.

    federation: what it is, as methods and the deletion service need to know it.
    training_account: what private training has used; None where training is not private.
    """

    settings: RunSettings
    task: Task
    federation: FederationProfile
    state_dir: Path
    ledger: Ledger
    writer: LedgerWriter
    clients: Clients
    test_set: ServerTestSet
    checkpoints: CheckpointStore
    preparations: Preparations
    records: RoundLog
    training_account: TrainingAccount | None = None

    def train_round(self, state: FederationState) -> RoundResult:
        """Carry out one ordinary round among the eligible clients; without a usable update the model stays."""
        return self.take_round(state, self.clients.exchange(self.ask_round(state)))

    def ask_round(self, state: FederationState) -> dict[str, Message]:
        """Return the messages of the round after `state` by client; none where too few may train."""
        fedavg, grid = self.clients.fedavg, self.clients.grid
        self.clients.await_clients()
        number = state.round + 1
        record = model_record(state.parameters, self.preparations.to_send(state, number))
        return fedavg.train_messages(number, record, grid)

    def take_round(self, state: FederationState, done: Exchange) -> RoundResult:
        """Return the round that the answers to `ask_round` make."""
        clients, fedavg, number = self.clients, self.clients.fedavg, state.round + 1
        gate = RoundGate(
            test_set=self.test_set,
            before=state,
            classes=state.left_out.classes | fedavg.plan.withheld.classes,
            max_score_loss=self.settings.max_round_score_loss,
        )
        if self.settings.secure_aggregation:
            outcome = fedavg.aggregate_sum(done.total, gate)
        else:
            outcome = fedavg.aggregate(number, done.messages.values(), gate)
        committed = outcome.committed
        following = replace(
            state, round=number, suspensions=suspend(state.suspensions, outcome.culprit, number)
        )
        if outcome.model is not None:
            following = replace(following, scores=gate.scores_after(committed))
        if not outcome.problem:
            following = replace(following, num_examples=dict(fedavg.plan.num_examples))
        if committed is not None:
            following = self._keep(
                replace(following, parameters=committed, aggregation=outcome.kept), state, outcome
            )
        return RoundResult(
            state=following,
            exchange=done,
            outcome=replace(outcome, models={}, arrays={}),  # they take much memory, and are kept now
            memory=clients.peak_memory(done),
        )

    def _keep(
        self, state: FederationState, before: FederationState, outcome: RoundOutcome
    ) -> FederationState:
        """Let preparations keep what they need of the round that has led from `before` to `state`."""
        accepted = FederatedRound(
            number=state.round,
            before=before.parameters,
            after=state.parameters,
            models=outcome.models,
            arrays=outcome.arrays,
            forgotten=before.left_out,
            refused=frozenset(outcome.refused),
            task=self.task,
            training=self.settings.training(state.round),
        )
        return self.preparations.after_round(state, accepted)
