"""Observations of one model: by the server on its own test examples, and by the clients on theirs."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Message

from server.federation.clients import Clients
from strategies.client_measurements import measuring, read_observations
from strategies.exchange import Exchange
from strategies.messages import MEASURE, Json, model_record
from strategies.settings.run_config import RunSettings
from unlearning.evaluation import evaluate
from unlearning.one_line import as_line
from unlearning.parameters import Vector
from unlearning.requests import Forget
from unlearning.tasks.task import Examples, Task, forgotten_mask
from unlearning.verification.discrimination import share
from unlearning.verification.figures import AttackFigure
from unlearning.verification.masked_counts import from_counts
from unlearning.verification.observations import Observations, observe_model


@dataclass(slots=True)
class ServerTestSet:
    """The server's own test examples, and what was observed on them last; `examples` is None where it has none."""

    task: Task
    examples: Examples | None
    settings: RunSettings
    _last: tuple[weakref.ref[Vector], Observations] | None = None

    def observe(self, parameters: Vector) -> Observations | None:
        """Return what the server observes of a model; None where it has no examples.

        A round's record, the stop rule and a deletion ask about one model, so it is observed once.
        """
        if self.examples is None:
            return None
        if self._last is None or self._last[0]() is not parameters:
            observed = observe_model(
                self.task,
                parameters,
                self.examples,
                max_samples=self.settings.attack_samples,
                generator=np.random.default_rng(self.settings.seed),
                with_outputs=True,
            )
            self._last = (weakref.ref(parameters), observed)
        return self._last[1]

    def recognised(self, parameters: Vector, label: int) -> AttackFigure | None:
        """Return which share of the test examples of a class a model assigns to it; None where there are none."""
        if self.examples is None:
            return None
        of_class = self.examples.select(forgotten_mask(self.examples, Forget(classes=frozenset({label}))))
        if not len(of_class):
            return None
        correct = evaluate(self.task, parameters, of_class).score > 0
        return AttackFigure(called=share(correct), num_forgotten=len(of_class))

    def score(self, parameters: Vector, *, without: frozenset[int] = frozenset()) -> float | None:
        """Return a model's score, `without` some classes; None where nothing is left to test on, or it is no number."""
        if self.examples is None:
            return None
        if not without:
            observed = self.observe(parameters)
            return None if observed is None else observed.mean_score
        kept = self.examples.select(~forgotten_mask(self.examples, Forget(classes=without)))
        if len(kept) == 0:
            return None
        scores = evaluate(self.task, parameters, kept).score
        total = float(scores.sum())
        return total / len(kept) if np.isfinite(total) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelObservations:
    """What was observed of one model: by the server on its test set, and by the clients.

    retained: over all retained clients that were asked; retained_by_client: of each.
    forgotten: by client, what it observed on its forgotten examples.
    missing: why a client gave no answer.
    together: under secure aggregation the clients that were asked for their forgotten examples, whose figures are one
        sum, `TOGETHER`; `retained_by_client` is the one sum too.
    """

    test: Observations | None
    retained: Observations | None
    retained_by_client: Mapping[str, Observations]
    forgotten: Mapping[str, Observations]
    missing: Mapping[str, str]
    exchange: Exchange
    together: frozenset[str] | None = None


TOGETHER = "all clients together"
"""In place of a client's id where only the sum over clients is known."""
_ONLY_SUMS = "secure aggregation shows the figures of all requests of this deletion together only"


def measuring_messages(
    clients: Clients,
    parameters: Vector,
    number: int,
    forgets: Mapping[str, Forget],
    also: Json | None = None,
) -> dict[str, Message]:
    """Return the messages by client that ask for the measurement of a model in round `number`.

    also: other values of each message.
    """
    retained = clients.sample(number, without=forgets)
    asked = clients.online_among({*retained, *forgets})
    fedavg = clients.fedavg
    every = fedavg.settings.secure_aggregation  # histograms are of all examples
    wanted = measuring(2**31 if every else fedavg.settings.attack_samples, forgets, also)
    return fedavg.plan.messages(MEASURE, number, asked, wanted, model_record(parameters))


def read_all(
    clients: Clients,
    test_set: ServerTestSet,
    parameters: Vector,
    forgets: Mapping[str, Forget],
    done: Exchange,
) -> ModelObservations:
    """Return what was observed of a model, by the server, and by the clients in the exchange `done`."""
    fedavg = clients.fedavg
    if fedavg.settings.secure_aggregation:
        return _read_sum(test_set, parameters, forgets, done)
    missing = {client: str(failure) for client, failure in done.failures.items()}
    absent = [client for client in forgets if client not in done.messages and client not in missing]
    missing |= dict.fromkeys(absent, "it is not online")
    check_count = fedavg.count_check()
    sets = {
        name: read_observations(done.replies, name, check_count) for name in ("retained", "forgotten", "test")
    }
    for name, one in sets.items():
        for client, reason in one.refused.items():
            missing[client] = clients.refused[client] = as_line(
                f"Its measurement ({name}) is refused: {reason}"
            )
    own_test = test_set.observe(parameters)
    return ModelObservations(
        test=own_test if own_test is not None else sets["test"].merged,
        retained=sets["retained"].merged,
        retained_by_client=sets["retained"].by_client,
        forgotten={client: one for client, one in sets["forgotten"].by_client.items() if client in forgets},
        missing=missing,
        exchange=done,
    )


def _read_sum(
    test_set: ServerTestSet, parameters: Vector, forgets: Mapping[str, Forget], done: Exchange
) -> ModelObservations:
    """Return what was observed where only the sum of all clients' measurements is known."""
    total, own_test = done.total, test_set.observe(parameters)
    found = {} if total is None else from_counts(total.counts)
    retained, forgotten = found.get("retained"), found.get("forgotten")
    missing = {client: str(failure) for client, failure in done.failures.items() if client in forgets}
    if total is not None:
        missing = {
            client: "it is not in the sum" for client in forgets if client not in total.clients
        } | missing
    return ModelObservations(
        test=own_test if own_test is not None else found.get("test"),
        retained=retained,
        retained_by_client={} if retained is None else {TOGETHER: retained},
        forgotten={} if forgotten is None else {TOGETHER: forgotten},
        missing=missing or dict.fromkeys(forgets, _ONLY_SUMS),
        exchange=done,
        together=frozenset() if missing else frozenset(forgets),
    )
