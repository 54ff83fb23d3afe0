"""The live loop: rounds go on, and between two of them deletion requests are taken and carried out.

One step takes the federation's state and gives the next one, durably; so killing the process between or
inside steps costs at most the work of one step.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from logging import getLogger

from server.deletion import queue, steps
from server.deletion.privacy_account import announce_account
from server.federation.context import FederationContext
from server.federation.roster_records import RoundResult
from server.federation.scripted_requests import ScriptedRequest
from server.federation.state import FederationState, Phase
from server.requests.admission import FEDERATION, admit
from unlearning.errors import RequestError, TrainingFailed
from unlearning.methods.eligibility import FederationProfile
from unlearning.peak_memory import MemoryWatch
from unlearning.plain import to_plain
from unlearning.requests import DeletionRequest, Status

_log = getLogger(__name__)

LOOK_S = 0.2
"""How often the ledger is looked at while the next round is waited for."""


class LiveLoop:
    """Runs a federation from `state` until the configured number of rounds is done, or for ever.

    notes: the last thing noted of a request that waits, so that it is noted once.
    shadow_turns: rounds of shadow federations since the last training round.
    announced: what the ledger knows of what this federation is.
    every_round_counts: as in `run_federation`.
    """

    def __init__(
        self,
        context: FederationContext,
        scripted: Sequence[ScriptedRequest] = (),
        *,
        every_round_counts: bool = False,
    ) -> None:
        self._context = context
        self._scripted = scripted
        self._every_round_counts = every_round_counts
        self._refused: set[str] = set()
        self._notes: dict[str, str] = {}
        self._shadow_turns = 0
        self._announced: FederationProfile | None = None
        self._next_round_at = 0.0

    def run(self, state: FederationState) -> FederationState:
        """Go on from `state` until there is no more to do.

        Raises:
            Fenced: a newer server process has taken over; nothing that this one did since counts.
        """
        context = self._context
        clients = context.clients
        clients.fedavg.follow(replace(clients.fedavg.plan, exclusions=state.exclusions))
        clients.await_clients()
        clients.register()
        context.shadows.resume(state)
        state = queue.reconcile(context, context.preparations.resume(state))
        context.save(state)
        self._announce(state)
        while (following := self.step(state)) is not None:
            if following is not state:  # a step that only waited has nothing to announce
                self._announce(following)
            state = following
        return state

    def step(self, state: FederationState) -> FederationState | None:
        """Return the state after one step, or None when all is done."""
        with MemoryWatch() as self._context.clients.memory:
            return self._next_state(state)

    def _next_state(self, state: FederationState) -> FederationState | None:
        context = self._context
        context.clients.register()
        if state.phase is Phase.TRAINING:
            self._file_scripted(state.training_rounds)
            queue.schedule(context.writer)
        context.clients.restrict(state)
        match state.phase:
            case Phase.UNLEARNING:
                return steps.unlearn(context, state)
            case Phase.RECOVERING:
                return steps.recover(context, state)
            case Phase.VERIFYING:
                return steps.verify(context, state)
            case Phase.TRAINING:
                return self._between_rounds(state)

    def _between_rounds(self, state: FederationState) -> FederationState | None:
        context = self._context
        claimed = [] if state.is_resting else self._claim()
        if claimed:
            return steps.begin(context, state, claimed)
        if context.shadows.is_due(state.training_rounds, self._shadow_turns):
            self._shadow_turns += 1
            context.shadows.train_round(state)
            return state
        if context.settings.rounds and state.training_rounds >= context.settings.rounds:
            waiting = context.ledger.list_requests(statuses=(Status.RECEIVED, Status.SCHEDULED))
            for request in waiting:
                _log.warning(
                    "Request %s (%s) still waits; it will be served when the federation runs again.",
                    request.id,
                    request.target.describe(),
                )
            return None
        wait_s = self._next_round_at - time.monotonic()
        if wait_s > 0:
            time.sleep(min(wait_s, LOOK_S))
            return state
        self._next_round_at = time.monotonic() + context.settings.round_interval_s
        return self._train(state)

    def _train(self, state: FederationState) -> FederationState:
        """Carry out one ordinary round; one without any usable update leaves the model and counts all the same.

        Raises:
            TrainingFailed: all clients failed, and every round counts.
        """
        context = self._context
        done = context.train_round(state)
        if self._every_round_counts:
            _check_somebody(done)
        state = replace(done.state, training_rounds=state.training_rounds + 1, is_resting=False)
        self._shadow_turns = 0
        # Recorded first: a round that is done again is recorded again, so a crash leaves none unrecorded.
        context.records.record(done, "training")
        context.save(state)
        return state

    def _announce(self, state: FederationState) -> None:
        """Tell the deletion service, through the ledger, what this federation can serve, whenever that changes."""
        context = self._context
        federation = replace(
            context.federation, prepare=context.settings.prepare, prepared_since=dict(state.prepared_since)
        )
        if federation != self._announced:
            context.writer.set_facts({FEDERATION: to_plain(federation)})
            self._announced = federation
        announce_account(context, state)

    def _claim(self) -> list[DeletionRequest]:
        context = self._context
        return queue.claim(context.writer, context.settings, set(context.clients.online()), self._notes)

    def _file_scripted(self, training_rounds: int) -> None:
        context = self._context
        for scripted in self._scripted:
            key, by = scripted.new.idempotency_key, scripted.new.submitted_by
            if (
                scripted.at > training_rounds
                or key in self._refused
                or context.ledger.find(key, by) is not None
            ):
                continue
            try:
                request = admit(context.ledger, scripted.new, now=context.writer.now(), by_operator=True)
                _log.info("Request %s filed: forget %s", request.id, scripted.new.target.describe())
            except RequestError as exc:
                self._refused.add(key)
                _log.error("The request of the run configuration, %s, is refused: %s", key, exc)


def _check_somebody(done: RoundResult) -> None:
    """Refuse a round in which all clients that were asked failed; the message has the reason of one.

    Raises:
        TrainingFailed: no answer entered it.
    """
    failed = {name: str(one) for name, one in done.exchange.failures.items()}
    reasons = {**failed, **done.exchange.refused, **done.outcome.refused}
    if reasons and not done.outcome.participants:
        first = min(reasons)
        others = f" ({len(reasons) - 1} more failed)" if len(reasons) > 1 else ""
        raise TrainingFailed(
            f"No client's answer entered round {done.state.round}; of client {first}: "
            f"{reasons[first].rstrip('.')}{others}."
        )
