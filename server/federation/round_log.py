"""What the ledger records of each round."""

from collections import Counter
from dataclasses import asdict, dataclass
from logging import getLogger
from typing import Any

from server.federation.clients import Clients
from server.federation.observing import ServerTestSet
from server.federation.presence import REMEDY, sentence, sentences, suspended, unresponsive_clients
from server.federation.sample_accounts import note_sample_accounts
from server.federation.state import FederationState, RoundResult
from server.ledger import LEFT_OUT, RoundRecord
from server.requests.training_privacy import TrainingPrivacy
from strategies.exchange import NO_ANSWER
from strategies.sessions.payloads import ACCOUNT, SessionStatistics
from unlearning.runtime.json_codec import to_plain

_log = getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class RoundLog:
    """Writes what rounds were like into the ledger, for `watch` and for the record.

    in_a_row: how many ordinary rounds in a row were not committed.
    """

    clients: Clients
    test_set: ServerTestSet
    evaluate_every: int
    in_a_row: int = 0

    def record(self, done: RoundResult, kind: str, request_ids: tuple[str, ...] = ()) -> None:
        """Write down one round of any kind: training, unlearning, recovery."""
        state, outcome = done.state, done.outcome
        metrics = self._metrics(done)
        if kind != "unlearning":
            metrics |= self._commitment(done)
        if kind == "training":
            metrics["training_rounds"] = state.training_rounds + 1  # this one included
        if left_out := self._left_out(state):
            metrics["left_out"] = left_out
        every = self.evaluate_every
        if every and (kind != "training" or state.round % every == 0):
            test = self.test_set.observe(state.parameters)
            if test is not None:
                metrics |= {"test_loss": test.mean_loss, "test_score": test.mean_score}
                if named := test.named_metrics(self.test_set.task.metric_names):
                    metrics["test_metrics"] = named
        writer = self.clients.writer
        writer.record_round(
            RoundRecord(
                round=state.round, kind=kind, request_ids=request_ids, metrics=metrics, at=writer.now()
            )
        )
        score = metrics.get("test_score")
        _log.info(
            "Round %d (%s): %d of %d client(s), loss %s, test %s %s, %.1f s",
            state.round,
            kind,
            len(outcome.participants),
            len({*outcome.participants, *done.exchange.failures, *outcome.refused}),
            "–" if outcome.loss is None else f"{outcome.loss:.4f}",
            self.test_set.task.score_name,
            "–" if score is None else f"{score:.4f}",
            done.exchange.seconds,
        )
        if metrics["silent"]:
            self._name_silent()

    def _left_out(self, state: FederationState) -> dict[str, int]:
        """Return until which round each client is left out of the next ones; the log and the ledger's facts say so."""
        ledger, said = self.clients.ledger, sentences(state.suspensions, state.round + 1)
        known = dict(ledger.facts().get(LEFT_OUT) or {})
        if said != known:
            self.clients.writer.set_facts({LEFT_OUT: said})
        for client in sorted(set(said) - {name for name in known if known[name] == said.get(name)}):
            _log.error("Client %s: %s", client, said[client])
        return {client: one.until for client, one in suspended(state.suspensions, state.round + 1).items()}

    def _name_silent(self) -> None:
        """Say which clients count as online and answer no more."""
        for client, rounds in unresponsive_clients(self.clients.ledger).items():
            _log.error("%s %s", sentence(client, rounds), REMEDY)

    def _metrics(self, done: RoundResult) -> dict[str, Any]:
        exchange, outcome = done.exchange, done.outcome
        refused, self.clients.refused = self.clients.refused, {}
        asked_again, self.clients.asked_again = self.clients.asked_again, Counter()
        metrics: dict[str, Any] = {
            "participants": sorted(outcome.participants),
            "num_examples": sum(outcome.participants.values()),
            "loss": outcome.loss,
            "seconds": round(exchange.seconds, 3),
            "bytes_sent": exchange.bytes_sent,
            "bytes_received": exchange.bytes_received,
            "peak_memory": asdict(done.memory),
            "failed": {client: str(failure) for client, failure in sorted(exchange.failures.items())},
            "silent": sorted(
                client
                for client, failure in exchange.failures.items()
                if failure.reason.startswith(NO_ANSWER)
            ),
            "refused": {
                **self.clients.fedavg.roster.impostors,
                **refused,
                **exchange.refused,
                **outcome.refused,
            },
        }
        if outcome.total is not None:
            metrics["secure"] = {"in_sum": len(outcome.total.clients), "clipped": outcome.total.num_clipped}
        if outcome.release and (spent := TrainingPrivacy.of(self.clients.ledger.facts())):
            metrics["privacy"] = spent.text
        if accounts_said := note_sample_accounts(self.clients.ledger, self.clients.writer, exchange.values):
            metrics["privacy"] = accounts_said
        if outcome.held_back:
            metrics["held_back"] = dict(outcome.held_back)
        if asked_again:
            metrics["asked_again"] = dict(sorted(asked_again.items()))
        accounts = {
            client: SessionStatistics.from_json(values.get(ACCOUNT))
            for client, values in exchange.values.items()
        }
        said = {client: to_plain(one) for client, one in accounts.items() if one is not None}
        return {**metrics, "session": said} if said else metrics

    def _commitment(self, done: RoundResult) -> dict[str, Any]:
        """Return what the record says where an ordinary round was not committed."""
        if not done.outcome.problem:
            if done.outcome.participants:
                self.in_a_row = 0
            return {}
        self.in_a_row += 1
        _log.error(
            "Round %d is not committed, %d in a row; the model stays as it was: %s.",
            done.state.round,
            self.in_a_row,
            done.outcome.problem,
        )
        return {"not_committed": done.outcome.problem, "not_committed_in_a_row": self.in_a_row}
