"""What every step of the live federation needs: exchanges, measurements, checkpoints, records.

The context knows Flower's Grid and the ledger; what happens in which order is in `server.live_loop`
(training) and `server.deletion.steps` (everything from the claim of a request to its report).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from server.federation.checkpoints import CheckpointStore
from server.federation.gate import round_problem
from server.federation.preparations import Preparations
from server.federation.site_requests import SiteRequests
from server.federation.state import FederationState
from server.ledger import ClientRecord, Ledger, RoundRecord
from server.requests.admission import FEDERATION
from strategies.exchange import Exchange, exchange
from strategies.fedavg import FedAvg
from strategies.messages import model_record, vector_of
from strategies.observations import measured
from strategies.run_config import RunSettings
from strategies.sessions.endpoint import Endpoint
from strategies.sessions.payloads import ACCOUNT, SessionStatistics
from unlearning.methods.eligibility import FederationProfile
from unlearning.methods.preparation import FederatedRound
from unlearning.parameters import Vector
from unlearning.peak_memory import MemoryWatch, PeakMemory
from unlearning.requests import Exclusions, Forget, Status, Target
from unlearning.tasks.task import Examples, Task, forgotten_mask
from unlearning.training import evaluate
from unlearning.untrusted import as_line
from unlearning.verification.observations import Observations, observe_model

_log = getLogger(__name__)

FRESH = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelObservations:
    """What was observed of one model: by the server on its test set, and by the clients.

    forgotten: by client, what it observed on its forgotten examples.
    missing: why a client gave no answer.
    """

    test: Observations | None
    retained: Observations | None
    forgotten: Mapping[str, Observations]
    missing: Mapping[str, str]
    exchange: Exchange


@dataclass(slots=True, kw_only=True)
class FederationContext:
    """The server's hands.

    token: the fencing token that this process acquired.
    site_requests: what became of the requests that clients filed at their sites.
    waiting: the targets of the requests that are not carried out yet, by id.
    refused: answers refused since the last round was recorded, and why, by client or `node N`.
    notes: the last thing noted of a request that waits, so that it is noted once.
    federation, announced: what this federation is, and what the ledger knows of that.
    last_observed: the model that was measured last on the test set, and what was observed.
    endpoint: where sessions with clients are held; None where there are none.
    held, held_in_a_row: why the last ordinary round was not committed, and how many in a row were not.
    shadow_turns: rounds of shadow federations since the last training round (`server.federation.shadow_federations`).
    memory: watches this process during the live loop's step.
    """

    grid: Grid
    settings: RunSettings
    task: Task
    test_set: Examples | None
    fedavg: FedAvg
    ledger: Ledger
    checkpoints: CheckpointStore
    preparations: Preparations
    state_dir: Path
    token: int
    now: Callable[[], datetime]
    site_requests: SiteRequests = field(default_factory=SiteRequests)
    waiting: dict[str, Target] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    federation: FederationProfile
    announced: FederationProfile | None = None
    last_observed: tuple[Vector, Observations] | None = None
    endpoint: Endpoint | None = None
    held: str = ""
    held_in_a_row: int = 0
    shadow_turns: int = 0
    memory: MemoryWatch = field(default_factory=MemoryWatch)

    def save(self, state: FederationState) -> FederationState:
        """Make `state` durable.

        Raises:
            Fenced: a newer server process has taken over.
        """
        self.ledger.check_fence(self.token)
        state = replace(state, event_sequence=self.ledger.last_event_sequence())
        self.checkpoints.save(state, token=self.token)
        self._announce(state)
        return state

    def restrict(self, state: FederationState) -> None:
        """Tell the strategy who may train: not the forgotten, and not who waits to be, or is not yet for good."""
        requests = self.ledger.list_requests(
            statuses=(Status.RECEIVED, Status.SCHEDULED, Status.UNLEARNING, Status.RECOVERING)
        )
        # What a request asks for never changes, and a list of ids can be long.
        self.waiting = {
            item.id: self.waiting.get(item.id) or self.ledger.target_of(item) for item in requests
        }
        # The ledger may be a step behind the checkpoint.
        waiting = [*self.waiting.values(), *(() if state.deletion is None else state.deletion.targets)]
        self.fedavg.exclusions = state.exclusions
        self.fedavg.num_examples = state.num_examples
        self.fedavg.withheld = Exclusions().including(waiting)
        self.fedavg.answers = self.site_requests.answers

    def exchange(self, messages: Mapping[str, Message]) -> Exchange:
        """Send, wait, and take in what clients filed at their own sites."""
        done = exchange(self.grid, messages, timeout_s=self.settings.round_timeout_s)
        self.refused |= done.refused
        self.take_site_requests(done)
        return done

    def take_site_requests(self, done: Exchange) -> None:
        """Take in what clients filed at their own sites and sent with their replies."""
        for client, values in done.values.items():
            wrong = self.site_requests.take(self.ledger, client, values, now=self.now())
            if wrong:
                self.refused[client] = wrong

    def peak_memory(self, done: Exchange) -> PeakMemory:
        """The most memory of any client in an exchange, and of this process in the step so far."""
        return PeakMemory.of(done.client_memory.values(), self.memory.peak())

    def fedavg_round(self, state: FederationState) -> tuple[FederationState, Exchange]:
        """One ordinary round among the eligible clients; without a usable update the model stays."""
        self.fedavg.await_clients(self.grid)
        number = state.round + 1
        record = model_record(state.parameters, self.preparations.to_send(state, number))
        done = self.exchange(self.fedavg.train_messages(number, record, self.grid))
        arrays, _ = self.fedavg.aggregate_train(number, done.messages.values())
        following = replace(state, round=number, num_examples=dict(self.fedavg.num_examples))
        self.held = ""
        if arrays is not None:
            following = replace(following, parameters=vector_of(arrays))
            self.held = round_problem(self, state.parameters, following.parameters)
            if self.held:
                self.held_in_a_row += 1
                _log.error(
                    "Round %d is not committed, %d in a row; the model stays as it was: %s.",
                    number,
                    self.held_in_a_row,
                    self.held,
                )
                return replace(state, round=number), done
            self.held_in_a_row = 0
            models, self.fedavg.models = self.fedavg.models, {}
            arrays_returned, self.fedavg.arrays = self.fedavg.arrays, {}
            accepted = FederatedRound(
                number=number,
                before=state.parameters,
                after=following.parameters,
                models=models,
                arrays=arrays_returned,
                forgotten=state.left_out,
                refused=frozenset(self.fedavg.outcome.refused),
                task=self.task,
                training=self.settings.training(number),
            )
            following = self.preparations.after_round(following, accepted)
        return following, done

    def notify(self, state: FederationState, clients: Iterable[str]) -> None:
        """Tell these clients, as far as they are online, what is forgotten for good: a forgotten one hears no more.

        What does not arrive is in the server's exclusions all the same.
        """
        self.restrict(state)
        online = self.fedavg.roster.online(self.grid)
        members = {client: online[client] for client in sorted(clients) if client in online}
        for client, failure in self.exchange(self.fedavg.notices(state.round, members)).failures.items():
            _log.warning("Client %s was not told what is forgotten: %s", client, failure)

    def register_clients(self) -> None:
        """Write who is online into the ledger: the deletion service knows clients from there."""
        online = self.fedavg.roster.online(self.grid)
        now = self.now()
        known = {record.client_id: record for record in self.ledger.clients()}
        records = [
            ClientRecord(
                client, member.client_id if member.is_registered else "", member.public_key_hex, True, now
            )
            for client, member in online.items()
            if not _is_fresh(known.get(client), now)
        ]
        records += [
            replace(record, online=False)
            for client, record in known.items()
            if client not in online and record.online
        ]
        if not records:
            return
        self.ledger.register_clients(records, token=self.token, now=now)

    def record(
        self, state: FederationState, kind: str, done: Exchange, request_ids: tuple[str, ...] = ()
    ) -> None:
        """Write what a round was like into the ledger, for `watch` and for the record."""
        outcome = self.fedavg.outcome
        metrics: dict[str, Any] = {
            "participants": sorted(outcome.participants),
            "num_examples": sum(outcome.participants.values()),
            "loss": outcome.loss,
            "seconds": round(done.seconds, 3),
            "bytes_sent": done.bytes_sent,
            "bytes_received": done.bytes_received,
            "peak_memory": asdict(self.peak_memory(done)),
            "failed": {client: str(failure) for client, failure in sorted(done.failures.items())},
            "refused": {**self.fedavg.roster.impostors, **self.refused, **done.refused, **outcome.refused},
        }
        if self.held and kind != "unlearning":
            metrics |= {"not_committed": self.held, "not_committed_in_a_row": self.held_in_a_row}
        self.refused = {}
        accounts = {
            client: SessionStatistics.from_json(values.get(ACCOUNT)) for client, values in done.values.items()
        }
        said = {client: one.to_json() for client, one in accounts.items() if one is not None}
        if said:
            metrics["session"] = said
        every = self.settings.evaluate_every
        if every and (kind != "training" or state.round % every == 0):
            test = self.observe_test(state.parameters)
            if test is not None:
                metrics |= {"test_loss": test.mean_loss, "test_score": test.mean_score}
        self.ledger.record_round(
            RoundRecord(
                round=state.round, kind=kind, request_ids=request_ids, metrics=metrics, at=self.now()
            ),
            token=self.token,
        )
        score = metrics.get("test_score")
        _log.info(
            "Round %d (%s): %d of %d client(s), loss %s, test %s %s, %.1f s",
            state.round,
            kind,
            len(outcome.participants),
            len({*outcome.participants, *done.failures, *outcome.refused}),
            "–" if outcome.loss is None else f"{outcome.loss:.4f}",
            self.task.score_name,
            "–" if score is None else f"{score:.4f}",
            done.seconds,
        )

    def observe_test(self, parameters: Vector) -> Observations | None:
        """What the server observes on its own test set; None where it has none."""
        if self.test_set is None:
            return None
        if self.last_observed is None or self.last_observed[0] is not parameters:
            observed = observe_model(
                self.task,
                parameters,
                self.test_set,
                max_samples=self.settings.attack_samples,
                generator=np.random.default_rng(self.settings.seed),
                with_outputs=True,
            )
            self.last_observed = (
                parameters,
                observed,
            )  # a round's record, the stop rule and a deletion all ask
        return self.last_observed[1]

    def test_score(self, parameters: Vector, *, without: frozenset[int] = frozenset()) -> float | None:
        """The score on the server's test set, `without` some classes; None where there is none, or no number."""
        if self.test_set is None:
            return None
        if not without:
            observed = self.observe_test(parameters)
            return None if observed is None else observed.mean_score
        kept = self.test_set.select(~forgotten_mask(self.test_set, Forget(classes=without)))
        if len(kept) == 0:
            return None
        scores = evaluate(self.task, parameters, kept).score
        total = float(scores.sum())
        return total / len(kept) if np.isfinite(total) else None

    def observe_all(
        self, state: FederationState, parameters: Vector, forgets: Mapping[str, Forget]
    ) -> ModelObservations:
        """Ask the retained clients of the round and those that forget to measure `parameters`.

        forgets: what each concerned client counts as its forgotten set.
        """
        online = self.fedavg.roster.online(self.grid)
        retained = self.fedavg.sample(
            (client for client in self.fedavg.eligible(self.grid) if client not in forgets), state.round
        )
        asked = {client: online[client] for client in sorted({*retained, *forgets}) if client in online}
        messages = self.fedavg.measure_messages(state.round, model_record(parameters), asked, forgets)
        done = self.exchange(messages)
        missing = {client: str(failure) for client, failure in done.failures.items()}
        missing |= {client: "it is not online" for client in forgets if client not in asked}
        own_test = self.observe_test(parameters)
        check = self.fedavg.check_count
        sets = {name: measured(done.replies, name, check) for name in ("retained", "forgotten", "test")}
        for name, one in sets.items():
            for client, reason in one.refused.items():
                missing[client] = self.refused[client] = as_line(
                    f"Its measurement ({name}) is refused: {reason}"
                )
        return ModelObservations(
            test=own_test if own_test is not None else sets["test"].merged,
            retained=sets["retained"].merged,
            forgotten={
                client: one for client, one in sets["forgotten"].by_client.items() if client in forgets
            },
            missing=missing,
            exchange=done,
        )

    def _announce(self, state: FederationState) -> None:
        """Let the door know what this federation can serve, whenever that changes."""
        federation = replace(
            self.federation, prepare=self.settings.prepare, prepared_since=dict(state.prepared_since)
        )
        if federation != self.announced:
            self.ledger.set_facts({FEDERATION: federation.to_json()}, token=self.token, now=self.now())
            self.announced = federation


def _is_fresh(record: ClientRecord | None, now: datetime) -> bool:
    """Whether the ledger knows that a client is online; thousands of rows need no rewriting each round."""
    if record is None or not record.online or record.last_seen is None:
        return False
    return now - record.last_seen < FRESH
