"""The live loop: rounds go on, and between two of them deletion requests are taken and carried out.

A step takes the federation's state and returns what it decided, a `Step`; `LiveLoop.commit` alone writes it, and
`LiveLoop._recover` is its inverse after a crash. A process may be killed anywhere, for at most one step's work:

- Everything but a claim and a verdict goes to the checkpoint first, then to the ledger. After a crash in between the
  ledger is moved to where the checkpoint is.
- A claim goes to the ledger first. After a crash in between, requests are `unlearning` that no checkpoint knows: they
  go back into the queue.
- The verdict on an attempt that failed, or whose model the gate rejects, goes to the ledger first. After a crash in
  between the checkpoint follows it, back to the model before; were the checkpoint first, a request that has failed
  permanently would be tried again.
- A completion goes to the ledger first; after a crash in between what the ledger calls completed is not done again.
- Rounds are recorded before their checkpoint: one that is done again is recorded again, so none goes unrecorded.
- A round of secure aggregation is noted before it is asked (`AskedRound`): sites answer none twice, so what is done
  again has the next number.
- What is erased comes last. Files that a crash leaves are erased at the next start or with the next deletion.

Every commit first checks the fence: a newer server process that has taken over stops this one.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from logging import getLogger

from server.deletion import queue, steps
from server.deletion.never_used import is_never_used
from server.deletion.privacy_account import announce_account
from server.deletion.rechecking import RecheckQueue, recheck
from server.deletion.steps import finish_abandoning
from server.federation.context import FederationContext
from server.federation.first_answers import FirstAnswers
from server.federation.known_samples import answer_questions, ask_sites
from server.federation.scripted_requests import ScriptedRequest, check_scripted
from server.federation.state import FederationState, Move, Phase, RoundDone, Step
from server.ledger import APPROVAL, FEDERATION
from server.requests.admission import admit
from server.requests.comparisons import OwnRuns
from server.state_directory.files import OWN_RUNS
from unlearning.errors import IllegalMove, RequestError
from unlearning.methods.eligibility import FederationProfile
from unlearning.requests import UNBEGUN_STATUSES, DeletionRequest, Exclusions, Status
from unlearning.runtime.json_codec import to_plain
from unlearning.runtime.peak_memory import MemoryWatch

_log = getLogger(__name__)

APPROVALS = {"none": 0, "officer": 1, "two": 2}
LOOK_S = 0.2
"""How often the ledger is looked at while the next round is waited for."""


class LiveLoop:
    """Runs a federation from `state` until the configured number of rounds is done, or for ever.

    undecided: what was forgotten when a request that waits for a decision was checked last, by request.
    noted: the last thing noted of a request that waits, so that it is noted once.
    saved: the state of the newest checkpoint, which is not written again.
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
        self._first_answers = FirstAnswers(context.settings, every_round_counts)
        self._refused: set[str] = set()
        self._noted: dict[str, str] = {}
        self._undecided: dict[str, Exclusions] = {}
        self._saved: FederationState | None = None
        self._announced: FederationProfile | None = None
        self._rechecks = RecheckQueue(context.ledger)
        self._own_runs = OwnRuns(context.state_dir / OWN_RUNS)
        self._next_round_at = 0.0

    def run(self, state: FederationState) -> FederationState:
        """Go on from `state` until there is no more to do.

        Raises:
            Fenced: a newer server process has taken over; nothing that this one did since counts.
            TrainingFailed: no client has ever trained, as `FirstAnswers` says.
            ConfigurationError: a request of the run's configuration is none that this federation can serve.
        """
        context = self._context
        clients = context.clients
        context.writer.set_facts({APPROVAL: APPROVALS[context.settings.approval]})  # before any can be filed
        clients.fedavg.follow(replace(clients.fedavg.plan, exclusions=state.exclusions))
        clients.await_clients()
        clients.register()
        clients.asked.resume(state)
        state = self._recover(context.preparations.resume(state))
        if self._is_done(state):  # no training round follows that a failed attempt could wait for
            state = replace(state, is_resting=False)
        prepared, known = context.preparations.prepared, self._profile(state)
        if state.exclusions != Exclusions():
            # A deletion may have ended what was prepared, which is said at filing: a start after a crash goes on.
            known = replace(known, prepared_since=dict.fromkeys(prepared, 0))
        check_scripted(self._scripted, context.ledger, known, prepared, context.settings.num_clients)
        self._announce(state)
        while (following := self.step(state)) is not None:
            if following is not state:  # a step that only waited has nothing to announce
                self._announce(following)
            state = following
        return state

    def step(self, state: FederationState) -> FederationState | None:
        """Return the state after one step, or None when all is done."""
        clients = self._context.clients
        with MemoryWatch() as clients.memory:
            return self._next_state(clients.asked.skip(state))

    def commit(self, step: Step) -> list[DeletionRequest]:
        """Make durable what a step decided; return the requests that it moved.

        Raises:
            Fenced: a newer server process has taken over.
            IllegalMove: a request may not be moved so, and the step does not expect that.
        """
        context, writer = self._context, self._context.writer
        writer.check_fence()
        if step.release:
            assert context.training_account is not None, "training is private"
            context.training_account.count(writer, step.release)
        for note in step.notes:
            writer.note(note.request_id, note.kind, note.detail)
        if step.round is not None:
            context.records.record(step.round.result, step.round.kind, step.round.request_ids)
        moved = self._move(step) if step.ledger_first else []
        if step.state is not self._saved:
            saved = replace(step.state, event_sequence=context.ledger.events.last_sequence())
            context.checkpoints.save(saved, token=writer.token)
            self._saved = step.state
            context.clients.asked.end(saved)
        if not step.ledger_first:
            moved = self._move(step)
        for clean in step.cleanup:
            clean()
        return moved

    def _move(self, step: Step) -> list[DeletionRequest]:
        moved = []
        for move in step.moves:
            try:
                moved.append(self._context.writer.move(**asdict(move)))
            except IllegalMove as exc:
                if not step.overtakable:
                    raise
                _log.info("%s", exc)
        return moved

    def _recover(self, state: FederationState) -> FederationState:
        """Make ledger and state agree after a start.

        The checkpoint is the one that is ahead or equal, but where an attempt was being given up.
        """
        ledger = self._context.ledger
        self._saved = None  # what is on disk may be of another process
        verdict = finish_abandoning(self._context, state)
        if verdict is not None:
            self.commit(verdict)
            state = verdict.state
        own = () if state.deletion is None else state.deletion.request_ids
        moves = [
            Move(request_id=one.id, to=Status.SCHEDULED, reason="the server stopped before it had begun")
            for one in ledger.requests.select(statuses=(Status.UNLEARNING,))
            if one.id not in own
        ]
        if state.phase is not Phase.UNLEARNING:
            for request_id in own:
                moves += _ways_to(state.phase, request_id, ledger.requests.get(request_id).status)
        self.commit(Step(state=state, moves=tuple(moves), ledger_first=True))
        return state

    def _next_state(self, state: FederationState) -> FederationState | None:
        context = self._context
        context.clients.register()
        if state.phase is Phase.TRAINING:
            self._file_scripted(state.training_rounds)
            ask = partial(ask_sites, context.clients, number=state.round)
            now = context.writer.now()
            moves = tuple(queue.to_schedule(context.ledger, state.exclusions, self._undecided, ask, now))
            if moves:
                self.commit(Step(state=state, moves=moves, overtakable=True))
        context.clients.restrict(state)
        answer_questions(context.clients, state.round)
        match state.phase:
            case Phase.UNLEARNING:
                return self._commit_each(steps.unlearn(context, state), state)
            case Phase.RECOVERING:
                return self._commit_each(steps.recover(context, state), state)
            case Phase.VERIFYING:
                return self._commit_each(steps.verify(context, state), state)
            case Phase.TRAINING:
                return self._between_rounds(state)

    def _commit_each(self, decided: Iterator[Step], state: FederationState) -> FederationState:
        """Commit each step before the next one is computed; return the state after the last one."""
        with closing(decided):  # type: ignore[type-var]  # they are generators
            for step in decided:
                self.commit(step)
                state = step.state
        return state

    def _between_rounds(self, state: FederationState) -> FederationState | None:
        context = self._context
        claimed = [] if state.is_resting else self._claim(state)
        if claimed:
            return self._commit_each(steps.begin(context, state, claimed), state)
        checked = recheck(context, state, self._rechecks.look())
        if checked is not None:
            self.commit(checked)
            return checked.state
        if self._is_done(state):
            for request in context.ledger.requests.select(statuses=UNBEGUN_STATUSES):
                _log.warning(
                    "Request %s (%s) still waits; it will be served when the federation runs again.",
                    request.id,
                    request.target.describe(),
                )
            self._first_answers.at_end(state)
            return None
        wait_s = self._next_round_at - time.monotonic()
        if wait_s > 0:
            time.sleep(min(wait_s, LOOK_S))
            return state
        self._next_round_at = time.monotonic() + context.settings.round_interval_s
        return self._train(state)

    def _is_done(self, state: FederationState) -> bool:
        """Tell whether no training round follows."""
        settings, account = self._context.settings, self._context.training_account
        if settings.rounds and state.training_rounds >= settings.rounds:
            return True
        if account is None or not account.is_spent:
            return False
        _log.warning("Training ends, its privacy budget is spent: %s", account.now.text)
        return True

    def _train(self, state: FederationState) -> FederationState:
        """Carry out one ordinary round; one without any usable update leaves the model and counts all the same.

        Raises:
            TrainingFailed: as `FirstAnswers` says.
        """
        done = self._context.train_round(state)
        self._first_answers.after_round(done)
        state = replace(done.state, training_rounds=state.training_rounds + 1, is_resting=False)
        round_done = RoundDone(result=done, kind="training")
        self.commit(Step(state=state, round=round_done, release=done.outcome.release))
        return state

    def _announce(self, state: FederationState) -> None:
        """Tell the deletion service, through the ledger, what this federation can serve, whenever that changes."""
        context = self._context
        federation = self._profile(state)
        if federation != self._announced:
            context.writer.set_facts({FEDERATION: to_plain(federation)})
            self._announced = federation
        self._own_runs.announce(context.ledger, context.writer)
        announce_account(context, state)
        if context.training_account is not None:
            context.training_account.announce(context.writer, state.exclusions.num_clients)

    def _profile(self, state: FederationState) -> FederationProfile:
        known = self._context
        return replace(
            known.federation, prepare=known.settings.prepare, prepared_since=dict(state.prepared_since)
        )

    def _claim(self, state: FederationState) -> list[DeletionRequest]:
        context = self._context
        moves, notes = queue.to_claim(
            context.ledger,
            context.settings,
            set(context.clients.online()),
            self._noted,
            is_never_used=partial(is_never_used, state, context.settings),
            now=context.writer.now(),
        )
        if not (moves or notes):
            return []
        step = Step(state=state, moves=tuple(moves), notes=tuple(notes), overtakable=True)
        return [request for request in self.commit(step) if request.status is Status.UNLEARNING]

    def _file_scripted(self, training_rounds: int) -> None:
        context = self._context
        for scripted in self._scripted:
            key, by = scripted.new.idempotency_key, scripted.new.submitted_by
            if (
                scripted.at > training_rounds
                or key in self._refused
                or context.ledger.requests.find(key, by) is not None
            ):
                continue
            try:
                admit(context.ledger, scripted.new, now=context.writer.now(), by_operator=True)
            except RequestError as exc:
                self._refused.add(key)
                _log.error("The request of the run configuration, %s, is refused: %s", key, exc)


def _ways_to(phase: Phase, request_id: str, status: Status) -> Iterator[Move]:
    """Yield the moves that bring a request to where a checkpoint of this phase already is."""
    order = [Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING]
    wanted = Status.RECOVERING if phase is Phase.RECOVERING else Status.VERIFYING
    if status in order:
        for to in order[order.index(status) + 1 : order.index(wanted) + 1]:
            yield Move(request_id=request_id, to=to)
