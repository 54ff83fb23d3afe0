"""FedAvg over the clients that may still take part.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data".
It samples among *eligible* clients, goes on with those that answered, and refuses an update that is not
finite, not of the model's shape, too large, of another round, answered twice, from a node that was not asked,
or that counts too many examples. It runs under Flower's stock `start()` and under the live loop.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from logging import getLogger
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from strategies.averaging import Averaging
from strategies.exchange import read_each
from strategies.influence import Judge
from strategies.messages import (
    CLIENT_ID,
    FROZEN_PART,
    MEASURE,
    NOTICE,
    NUM_EXAMPLES,
    TRAIN,
    Json,
    beside_the_model,
    compose,
    model_record,
    training_values,
    vector_of,
)
from strategies.observations import mean_figures
from strategies.pending_round import PendingRound
from strategies.prepared_rounds import KeptInMemory
from strategies.roster import Member, Roster
from strategies.round_plan import RoundOutcome, RoundPlan
from strategies.settings.run_config import RunSettings
from strategies.settings.task_source import MakeTask, TaskSource
from strategies.update_checks import STATISTICS, over_the_median
from strategies.waiting import wait_for
from unlearning.buffers import deviations, without_buffers
from unlearning.methods.method import Reply
from unlearning.methods.preparation import FederatedRound
from unlearning.requests import NOTHING, Exclusions, Forget
from unlearning.runtime.json_codec import to_plain
from unlearning.tasks.task import Task
from unlearning.training import frozen_part, initial_parameters

_log = getLogger(__name__)


class FedAvg(Strategy):
    """Federated averaging among eligible clients.

    task: what is learnt; `self.task` is it as the methods train it that the settings prepare for.
    settings: those of the run, its defaults if none are given; `changes` are settings by name, in place of theirs.
    plan: what rounds go by; `follow` gives it another one, and `aggregate` the counts of the round. Without one, what
        the settings prepare for is kept in memory.
    rounds_trained: under Flower's `start()`, which counts its rounds anew each time.

    Raises:
        ConfigurationError: lists every setting that is wrong, or does not fit the task.
    """

    def __init__(
        self,
        task: Task,
        settings: RunSettings | None = None,
        roster: Roster | None = None,
        plan: RoundPlan | None = None,
        **changes: Any,
    ) -> None:
        self.settings = settings = (settings or RunSettings()).with_changes(changes)
        self.task = settings.prepared_task(task)
        self._frozen_part = frozen_part(self.task)
        self.roster = roster or Roster()
        self.plan = plan or RoundPlan(rules=KeptInMemory(prepared=settings.preparations()))
        self.rounds_trained = 0
        self._count_limits = settings.count_limits()
        self._asked: PendingRound | None = None
        self._was_complete = False

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
        return model_record(initial_parameters(self.task, self.settings.seed))

    def follow(self, plan: RoundPlan) -> None:
        """Go by `plan` from now on."""
        self.plan = plan

    @property
    def allowed(self) -> Collection[str]:
        """The clients whose counts an operator allows."""
        return self._count_limits.own

    def site_values(self, client: str) -> Json:
        """Return what every message tells a client; the hash of the frozen part too, where there is one."""
        values = self.plan.site_values(client)
        return {**values, FROZEN_PART: self._frozen_part} if self._frozen_part else values

    def summary(self) -> None:
        """Log the settings that decide a round."""
        _log.info(
            "FedAvg: fraction %g, at least %d client(s), %d local epoch(s), learning rate %g",
            self.settings.fraction,
            self.settings.min_clients,
            self.settings.epochs,
            self.settings.learning_rate,
        )

    def eligible(self, grid: Grid) -> Mapping[str, Member]:
        """Return the clients online now that may train, by id."""
        return {
            client: member
            for client, member in self.roster.online(grid).items()
            if not self.plan.left_out(client).everything
        }

    def await_clients(self, grid: Grid, tell: Callable[[str], None] = lambda _: None) -> None:
        """Wait, with a limit, for the clients expected at the start, later for the fewest allowed.

        A simulation starts the server before its nodes; without this the first round would lack most.
        `tell` is as in `wait_for`.
        """
        wanted, setting = self._wanted_clients()
        wait_for(wanted, setting, lambda: self._present(grid), self.settings.wait_timeout_s, tell)
        self._was_complete = True

    def _present(self, grid: Grid) -> Collection[str]:
        """Return the clients that may train; before the first round, those that cannot take part as well."""
        eligible = self.eligible(grid)
        unable = {one for one in self.roster.unable if not self.plan.left_out(one).everything}
        return eligible if self._was_complete else sorted({*eligible, *unable})

    def _wanted_clients(self) -> tuple[int, str]:
        """Return how many clients are waited for, and the setting that says so."""
        settings = self.settings
        if self._was_complete:
            return settings.min_clients, "min-clients"
        gone = sum(1 for forget in self.plan.exclusions.clients.values() if forget.everything)
        expected, setting = (
            (settings.start_clients, "start-clients")
            if settings.start_clients
            else (settings.num_clients, "num-clients; start-clients is not set")
        )
        return max((settings.min_clients, "min-clients"), (expected - gone, setting))

    def sample(self, eligible: Iterable[str], server_round: int) -> list[str]:
        """Return a seeded sample of the eligible clients, sorted; the same for the same seed and round.

        A suspended client is not in it.
        """
        candidates = sorted(set(eligible) - self.plan.suspended)
        wanted = math.ceil(self.settings.fraction * len(candidates))
        count = min(len(candidates), max(wanted, self.settings.min_clients))
        generator = np.random.default_rng([self.settings.seed, server_round])
        return sorted(generator.choice(candidates, size=count, replace=False).tolist()) if count else []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask a sample of the eligible clients to train; none if too few are online."""
        self.await_clients(grid)
        rules = self.plan.rules
        if isinstance(rules, KeptInMemory) and (sent := rules.to_send(server_round, self.plan.exclusions)):
            arrays = model_record(vector_of(arrays), sent)
        return list(self.train_messages(server_round, arrays, grid).values())

    def train_messages(
        self, server_round: int, arrays: ArrayRecord, grid: Grid, among: Iterable[str] | None = None
    ) -> dict[str, Message]:
        """Return the round's messages by client id, to the sample or to the clients `among` that are online."""
        asked = PendingRound(
            task=self.task,
            model=vector_of(arrays),
            sent=beside_the_model(arrays),
            clients={},
            rules=self.plan.rules,
            max_norm=self.settings.max_update_norm,
        )
        self._asked = asked
        eligible = self.eligible(grid)
        if len(eligible) < self.settings.min_clients:
            _log.warning(
                "Round %d is skipped: %d eligible client(s) online, min-clients is %d.",
                server_round,
                len(eligible),
                self.settings.min_clients,
            )
            return {}
        chosen = (
            self.round_sample(eligible, server_round) if among is None else sorted(set(among) & set(eligible))
        )
        self._asked = replace(asked, clients={eligible[client].node_id: client for client in chosen})
        return self.round_messages(TRAIN, server_round, arrays, {name: eligible[name] for name in chosen})

    def round_sample(self, eligible: Iterable[str], server_round: int) -> list[str]:
        """Return a seeded sample of the eligible clients whose turn it is in this round, sorted.

        Where nobody's turn has come, as when those that begin have left, the others begin at once.
        """
        everyone = list(eligible)
        turn = [client for client in everyone if self.plan.rules.takes_part(client, server_round)]
        return self.sample(turn or everyone, server_round)

    def round_messages(
        self,
        message_type: str,
        server_round: int,
        arrays: ArrayRecord,
        members: Mapping[str, Member],
        also: Json | None = None,
    ) -> dict[str, Message]:
        """Ask `members` to train as the settings say; `also` is told beside."""
        training = training_values(self.settings.training(server_round))
        return {
            client: compose(
                member.node_id,
                message_type,
                server_round,
                {**training, **(also or {}), CLIENT_ID: client, **self.site_values(client)},
                arrays,
            )
            for client, member in members.items()
        }

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the round's model as Flower's loop wants it, or None if there is none."""
        outcome = self.aggregate(server_round, replies)
        if outcome.model is None:
            return None, None
        self._keep(server_round, outcome)
        loss = math.nan if outcome.loss is None else outcome.loss
        total = sum(outcome.participants.values())
        return model_record(outcome.model), MetricRecord({NUM_EXAMPLES: total, "loss": loss})

    def _keep(self, number: int, outcome: RoundOutcome) -> None:
        """Let the methods that are prepared for keep what they need of a round, until something is forgotten."""
        self.rounds_trained += 1
        rules, asked = self.plan.rules, self._asked
        if not isinstance(rules, KeptInMemory) or self.plan.exclusions != Exclusions():
            return
        assert asked is not None, "train_messages came first"
        assert outcome.model is not None, "there is a round to keep"
        done = FederatedRound(
            number=number,
            before=asked.model,
            after=outcome.model,
            models=outcome.models,
            arrays=outcome.arrays,
            refused=frozenset(outcome.refused),
            task=self.task,
            training=self.settings.training(number),
        )
        rules.keep(done)

    def aggregate(
        self, server_round: int, replies: Iterable[Message], judge: Judge | None = None
    ) -> RoundOutcome:
        """Average the models that may enter, and take the counts of their clients into the plan."""
        assert self._asked is not None, "train_messages comes first"
        accepted, refused = self._asked.read(server_round, replies, self.roster)
        too_many = self._too_many(accepted)
        sound = {client: reply.vector for client, reply in accepted.items() if client not in too_many}
        changes = {
            client: without_buffers(self.task, model - self._asked.model) for client, model in sound.items()
        }
        spread = {client: deviations(self.task, model) for client, model in sound.items()}
        factor = self.settings.max_norm_factor
        too_large = over_the_median(spread, factor, what=STATISTICS) | over_the_median(changes, factor)
        changes = {client: change for client, change in changes.items() if client not in too_large}
        averaging = Averaging(
            before=self._asked.model,
            rules=self.plan.rules,
            factor=self.settings.max_influence_factor,
            allowed=self.allowed,
            judge=judge,
        )
        outcome = averaging.outcome({client: accepted[client] for client in changes}, changes)
        refused |= {**too_many, **too_large, **outcome.refused}
        for who, reason in refused.items():
            speaker = who if who.startswith("node ") else f"client {who}"
            _log.warning("The update of %s is refused: %s", speaker, reason)
        for client, reason in outcome.held_back.items():
            _log.warning("Client %s counts %d examples: %s", client, outcome.participants[client], reason)
        self.follow(self.plan.including(counts=outcome.participants))
        return replace(outcome, refused=refused)

    def _too_many(self, accepted: Mapping[str, Reply]) -> dict[str, str]:
        """Return which clients count too many examples, and why."""
        declared = {client: reply.num_examples for client, reply in accepted.items()}
        _, refused = read_each(declared, lambda client, count: self.check_count(client, count, declared))
        return refused

    def check_count(self, client: str, num_examples: int, declared: Mapping[str, int] | None = None) -> None:
        """Refuse a count that is too large beside what is known of all clients, and what they declared now.

        Raises:
            UpdateRefused: it is too large.
        """
        known = {**self.plan.num_examples, **(declared or {})}
        self._count_limits.check(client, num_examples, known.values())

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask every eligible client to measure the model on its own data."""
        return list(self.measure_messages(server_round, arrays, self.eligible(grid)).values())

    def measure_messages(
        self,
        server_round: int,
        arrays: ArrayRecord,
        members: Mapping[str, Member],
        forgets: Mapping[str, Forget] | None = None,
        *,
        message_type: str = MEASURE,
        also: Json | None = None,
    ) -> dict[str, Message]:
        """Ask `members` to measure the model; `forgets` says what each counts as its forgotten set.

        also: what is told beside, for a measurement of another `message_type`.
        """
        forgets = forgets or {}
        return {
            client: compose(
                member.node_id,
                message_type,
                server_round,
                {
                    **(also or {}),
                    **self.site_values(client),
                    "forget": to_plain(forgets.get(client, NOTHING)),
                    "samples": self.settings.attack_samples,
                },
                arrays,
            )
            for client, member in members.items()
        }

    def notices(self, server_round: int, members: Mapping[str, Member]) -> dict[str, Message]:
        """Tell `members` what every message tells a client, and nothing else."""
        return {
            client: compose(member.node_id, NOTICE, server_round, self.site_values(client))
            for client, member in members.items()
        }

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return loss and score over all clients' training data, and over their test data where they have any."""
        contents = {
            client: message.content
            for message in replies
            if not message.has_error()
            and (client := self.roster.client_of(message.metadata.src_node_id)) is not None
        }
        found = mean_figures(contents, self.check_count)
        return MetricRecord({**found}) if found else None
