"""FedAvg over the clients that may still take part.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", Algorithm 1.

    each round t:   S_t ← a sample of the eligible clients     `sample`
                    each k in S_t trains from w_t              `train_messages`
                    w_{t+1} ← Σ_k (n_k / n) w_k                `combine`

A strategy of your own overrides `sample` or `combine`. It goes on with those that answered, and refuses what the limits
of the run refuse (`strategies.update_limits`). It runs under Flower's stock `start()` and under the live loop.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, replace
from logging import getLogger
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from strategies.aggregation import Combined, KeptAggregation, OwnAggregation, shown_reply
from strategies.averaging import Averaging, Judge
from strategies.client_measurements import mean_figures, measuring
from strategies.messages import (
    CLIENT_ID,
    CONFIG,
    MEASURE,
    NUM_EXAMPLES,
    TRAIN,
    Json,
    beside_the_model,
    model_record,
    records_of,
    vector_of,
)
from strategies.pending_round import PendingRound, RoundAnswers
from strategies.roster import Member, Roster
from strategies.round_plan import RoundOutcome, RoundPlan
from strategies.round_rules import KeptInMemory
from strategies.settings.run_config import RunSettings
from strategies.settings.task_source import MakeTask, TaskSource
from strategies.update_limits import CheckCount
from strategies.waiting import ClientWait
from unlearning.certified.private_training import PrivateMean
from unlearning.errors import ConfigurationError, NumericalError
from unlearning.parameters import Models, Vector, content_hash
from unlearning.requests import Exclusions
from unlearning.secure_aggregation.addends import SecureTotal
from unlearning.tasks.task import Task
from unlearning.training import frozen_part, starting_parameters

_log = getLogger(__name__)


class FedAvg(Strategy):
    """Federated averaging among eligible clients.

    task: what is learnt; `self.task` is it as the methods train it that the settings prepare for.
    settings: those of the run, its defaults if none are given; `changes` are settings by name, in place of theirs.
    plan: what rounds go by; `follow` gives it another one, and `aggregate` the counts of the round. Without one, what
        the settings prepare for is kept in memory.
    aggregation: what makes the model of the local ones in place of `combine`, for the live loop.
    private: makes the model, and draws who takes part, where the settings say `privacy`.
    rounds_trained: under Flower's `start()`, which counts its rounds from 1 each time.

    Raises:
        ConfigurationError: lists every setting that is wrong, or does not fit the task.
    """

    plan: RoundPlan

    def __init__(
        self,
        task: Task,
        settings: RunSettings | None = None,
        roster: Roster | None = None,
        plan: RoundPlan | None = None,
        aggregation: OwnAggregation | None = None,
        private: PrivateMean | None = None,
        **changes: Any,
    ) -> None:
        self.aggregation = aggregation
        self.private = private
        self.settings = settings = (settings or RunSettings()).with_changes(changes)
        self.task = settings.prepared_task(task)
        if settings.augment and (task.augment is None or task.train is not None):
            why = "has no random change of inputs" if task.train is None else "trains by its own function"
            _log.warning("augment = true changes nothing: %s %s.", task.name, why)
        self.limits = settings.limits(self.task)
        self.roster = roster or Roster()
        self._frozen_part = frozen_part(self.task)
        self.follow(plan or RoundPlan(rules=KeptInMemory(prepared=settings.preparations())))
        self.rounds_trained = 0
        self._wait = ClientWait(settings)
        self._pending: PendingRound | None = None
        self._begun: KeptAggregation | None = None

    @classmethod
    def of(cls, run_config: Mapping[str, Any], make_task: MakeTask, *, table: str | None = None) -> "FedAvg":
        """Return the strategy of a run's configuration and an app's task, as the clients understand both.

        table: of the app's settings in `run_config`; the name of make_task's package, if not given.

        Raises:
            ConfigurationError: lists every setting that is wrong, or does not fit the task.
            AppError: `make_task` raised, or returned no task.
        """
        source = TaskSource.of(make_task, table)
        settings = source.read(run_config)
        return cls(source.task(settings), settings.run)

    def initial_arrays(self) -> ArrayRecord:
        """Return the model that training starts from, for Flower's `start`: the same for the same seed."""
        return model_record(starting_parameters(self.task, self.settings.seed))

    def follow(self, plan: RoundPlan) -> None:
        """Go by `plan` from now on."""
        self.plan = replace(plan, frozen_part=self._frozen_part)

    def summary(self) -> None:
        """Log the settings that decide a round."""
        _log.info(
            "FedAvg: fraction %g, at least %d client(s), %d local epoch(s), learning rate %g",
            self.settings.fraction,
            self.settings.min_clients,
            self.settings.epochs,
            self.settings.learning_rate,
        )

    def await_clients(self, grid: Grid, tell: Callable[[str], None] = lambda _: None) -> None:
        """Wait, with a limit, for the clients that the next round needs; `tell` is as in `ClientWait.wait`."""
        self._wait.wait(grid, self.roster, self.plan, tell)

    def eligible(self, grid: Grid) -> Mapping[str, Member]:
        """Return the clients online now that may train, by id."""
        return self.plan.eligible(self.roster.online(grid))

    def sample(self, eligible: Iterable[str], server_round: int) -> list[str]:
        """Return a seeded sample of the eligible clients, sorted; the same for the same seed and round.

        A suspended client is not in it. In private training each is in it by itself, drawn in secret.
        """
        candidates = sorted(set(eligible) - self.plan.suspended)
        if self.private is not None:
            return [client for client in candidates if self.private.takes_part(client, server_round)]
        wanted = math.ceil(self.settings.fraction * len(candidates))
        fewest = max(self.settings.min_clients, self.settings.fewest_in_sum)
        count = min(len(candidates), max(wanted, fewest))
        generator = np.random.default_rng([self.settings.seed, server_round])
        return sorted(generator.choice(candidates, size=count, replace=False).tolist()) if count else []

    def choose(self, server_round: int, grid: Grid) -> Mapping[str, Member]:
        """Return the round's sample of the clients whose turn it is; none if too few are online."""
        eligible = self.eligible(grid)
        if len(eligible) < (fewest := self.plan.fewest(self.settings.min_clients)):
            _log.warning(
                "Round %d is skipped: %d eligible client(s) online, %d are needed (min-clients).",
                server_round,
                len(eligible),
                fewest,
            )
            return {}
        turn = self.plan.turn(eligible, server_round)
        return {client: eligible[client] for client in self.sample(turn, server_round)}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the round's clients to train, once enough are online.

        Raises:
            ConfigurationError: of secure aggregation, for a round of Flower's loop has one exchange; and of privacy,
                which no ledger would count.
        """
        if self.settings.is_private:
            raise ConfigurationError(
                ["privacy: it runs in the live federation (make_server_app), not under Flower's start()."]
            )
        if self.settings.secure_aggregation:
            raise ConfigurationError(
                [
                    "secure-aggregation: it runs in the live federation (make_server_app), not under Flower's start()."
                ]
            )
        self.await_clients(grid)
        if sent := self.plan.rules.arrays_for(server_round, self.plan.exclusions):
            arrays = model_record(vector_of(arrays), sent)
        return list(self.train_messages(server_round, arrays, grid).values())

    def train_messages(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> dict[str, Message]:
        """Return the round's messages by client id."""
        chosen = self.choose(server_round, grid)
        self._pending = PendingRound(
            model=vector_of(arrays),
            sent=beside_the_model(arrays),
            clients={member.node_id: client for client, member in chosen.items()},
            rules=self.plan.rules,
            limits=self.limits,
            is_skipped=not chosen and len(self.eligible(grid)) < self.plan.fewest(self.settings.min_clients),
        )
        messages = self.plan.messages(TRAIN, server_round, chosen, self.training(server_round), arrays)
        self._begun = self.tell(messages.values(), self._pending.model)
        return messages

    @property
    def skips_round(self) -> bool:
        """Whether the round that was begun last is none, as too few clients are online."""
        return self._pending is not None and self._pending.is_skipped

    def tell(self, messages: Collection[Message], model: Vector) -> KeptAggregation | None:
        """Add what the user's own strategy tells clients of a round from `model` (d,); return what it keeps of that."""
        if self.aggregation is None or not messages:
            return None
        nodes = [message.metadata.dst_node_id for message in messages]
        begun, told = self.aggregation.configure(self.plan.kept, model, nodes)
        for message in messages:
            records_of(message.content, ConfigRecord)[CONFIG].update(told[message.metadata.dst_node_id])
        return begun

    def training(self, server_round: int, also: Json | None = None) -> Callable[[str], Json]:
        """Return what a message that asks to train as the settings say tells each client; `also`: other values."""
        values = {"training": asdict(self.settings.training(server_round)), **(also or {})}
        return lambda client: {**values, CLIENT_ID: client}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the round's model as Flower's loop wants it, or None if there is none."""
        pending, outcome = self._pending, self.aggregate(server_round, replies)
        if outcome.model is None:
            return None, None
        self.rounds_trained += 1
        if self.plan.exclusions == Exclusions():  # methods keep what they need until something is forgotten
            assert pending is not None, "aggregate had one"
            self.plan.rules.keep(pending.done(server_round, outcome, self.settings.training(server_round)))
        loss = math.nan if outcome.loss is None else outcome.loss
        total = sum(outcome.participants.values())
        return model_record(outcome.model), MetricRecord({NUM_EXAMPLES: total, "loss": loss})

    def aggregate(
        self, server_round: int, replies: Iterable[Message], judge: Judge | None = None
    ) -> RoundOutcome:
        """Combine the models that may enter, and take the counts of their clients into the plan."""
        pending = self._take_pending()
        before = pending.model
        answers = pending.read(server_round, replies, self.roster, self.count_check)
        if self.private is not None:
            return self._aggregate_privately(self.private, server_round, pending, answers, judge)
        averaging = Averaging(
            combine=lambda models: self._combined(before, models, answers),
            rules=self.plan.rules,
            limits=self.limits,
            judge=judge,
        )
        outcome = averaging.outcome(answers.accepted, answers.changes)
        outcome = replace(outcome, refused={**answers.refused, **outcome.refused})
        outcome.log()
        self.follow(self.plan.including(counts=outcome.participants))
        return outcome

    def _take_pending(self) -> PendingRound:
        """Return the round that is answered now; its model is held no longer, for a deletion may follow."""
        assert self._pending is not None, "train_messages comes first"
        pending, self._pending = self._pending, None
        return pending

    def _aggregate_privately(
        self,
        private: PrivateMean,
        server_round: int,
        pending: PendingRound,
        answers: RoundAnswers,
        judge: Judge | None,
    ) -> RoundOutcome:
        """Make the model with noise, of no answer too: that a client answered must not show. None of a skipped round.

        The model alone is judged, never one without a client.
        """
        if pending.is_skipped:
            return RoundOutcome(refused=answers.refused)
        before, accepted = pending.model, answers.accepted
        counts = {client: reply.num_examples for client, reply in sorted(accepted.items())}
        updates = (accepted[client].vector - before for client in counts)  # one at a time
        model = private.model(before, updates, server_round)
        losses = [counts[client] * accepted[client].metrics.get("loss", math.nan) for client in counts]
        outcome = RoundOutcome(
            model=model,
            participants=counts,
            refused=answers.refused,
            loss=sum(losses) / sum(counts.values()) if counts else None,
            problem="" if judge is None else judge.problem(model),
            release=content_hash(model),
        )
        outcome.log()
        self.follow(self.plan.including(counts=counts))
        return outcome

    def aggregate_sum(self, total: SecureTotal | None, judge: Judge | None = None) -> RoundOutcome:
        """Make the model of a sum over clients, and take their mean count into the plan; None: there is no sum."""
        before = self._take_pending().model
        if total is None or not total.num_examples:
            return RoundOutcome()
        try:
            model = self.plan.rules.model_of_sum(self.task, before, total)
        except NumericalError as exc:
            return RoundOutcome(problem=str(exc), total=total)
        problem = "" if judge is None else judge.problem(model)
        outcome = RoundOutcome(
            model=model, participants=total.shares, loss=total.loss, problem=problem, total=total
        )
        self.follow(self.plan.including(counts=outcome.participants))
        return outcome

    def _combined(self, before: Vector, models: Models, answers: RoundAnswers) -> Combined:
        if self.aggregation is None or self._begun is None:
            return Combined(model=self.combine(before, models))
        shown = [
            shown_reply(answers.messages[client], answers.accepted[client], *one)
            for client, one in sorted(models.items())
        ]
        return self.aggregation.combine(self._begun, shown, before)

    def combine(self, before: Vector, models: Models) -> Vector:
        """Make one model (d,) of the one `before` (d,) and the local ones, each with its number of examples."""
        return self.plan.rules.combine(before, models)

    def count_check(self, declared: Mapping[str, int] = MappingProxyType({})) -> CheckCount:
        """Return what refuses a count that is too large beside the known ones of all clients and those declared now."""
        return self.limits.counts.among({**self.plan.num_examples, **declared}.values())

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask every eligible client to measure the model on its own data."""
        wanted = measuring(self.settings.attack_samples)
        return list(self.plan.messages(MEASURE, server_round, self.eligible(grid), wanted, arrays).values())

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return loss and score over all clients' training data, and over their test data where they have any."""
        contents = {client: one.content for client, one in self.roster.by_client(replies).items()}
        found = mean_figures(contents, self.count_check(), self.task.metric_names)
        return MetricRecord({**found}) if found else None
