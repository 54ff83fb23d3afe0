"""FedAvg over the clients that may still take part.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data".
It samples among *eligible* clients, goes on with those that answered, and refuses an update that is not
finite, not of the model's shape, too large, of another round, answered twice, from a node that was not asked,
or that counts too many examples. It runs under Flower's stock `start()` and under the live loop.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import getLogger

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from strategies.messages import (
    CLIENT_ID,
    MEASURE,
    NOTICE,
    NUM_EXAMPLES,
    SUBJECT_KEY,
    TRAIN,
    Json,
    beside_the_model,
    compose,
    exclusion_values,
    model_record,
    reply_of,
    training_values,
    vector_of,
)
from strategies.observations import merged
from strategies.roster import Member, Roster
from strategies.run_config import RunSettings
from strategies.update_checks import check_norm, checked, over_the_median
from unlearning.errors import UpdateRefused
from unlearning.methods.method import Reply
from unlearning.parameters import Vector, weighted_mean
from unlearning.pseudonyms import SubjectKeys
from unlearning.requests import NOTHING, Exclusions, Forget
from unlearning.stores import Arrays
from unlearning.untrusted import reason_of

_log = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """Who took part in the round that was aggregated last, and whose update was refused and why.

    refused: by client id; by `node N` where the node speaks for nobody, or for a client that another node is.
    """

    participants: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    loss: float | None = None


class FedAvg(Strategy):
    """Federated averaging among eligible clients.

    A client is eligible unless it was forgotten (`exclusions`) or a request that would forget it is
    waiting (`withheld`); single samples and classes are left out by the client itself.

    subject_keys: where sample ids are keyed hashes, the keys by which each client finds its own.
    combine: makes one model of the one before a round and its local ones; their mean by numbers of examples.
    takes_part: whether a client is asked in the round of a number; every one is, unless a preparation says so.
    models: number of examples and local model of each client of the last round, where `keeps_models` asks
        for them; they take as much memory as all models of a round.
    check_arrays: refuses what a client returned beside its model, given what was sent beside the global one.
    arrays: what each client of the last round returned beside its model, where `keeps_models` asks for it.
    """

    def __init__(self, settings: RunSettings, roster: Roster | None = None) -> None:
        self.settings = settings
        self._count_limits = settings.count_limits()
        self.roster = roster or Roster()
        self.exclusions = Exclusions()
        self.withheld = Exclusions()
        self.answers: Mapping[str, Mapping[str, str]] = {}
        self.subject_keys: SubjectKeys | None = None
        self.outcome = RoundOutcome()
        self._counts: Mapping[str, int] = {}
        self.combine: Callable[[Vector, Mapping[str, tuple[int, Vector]]], Vector] = _mean
        self.takes_part: Callable[[str, int], bool] = _everybody
        self.keeps_models = False
        self.models: Mapping[str, tuple[int, Vector]] = {}
        self.check_arrays: Callable[[Arrays, Arrays], None] = _any_arrays
        self.arrays: Mapping[str, Arrays] = {}
        self._global: Vector | None = None
        self._sent: Arrays = {}
        self._asked: Mapping[int, str] = {}
        self._was_complete = False

    @property
    def num_examples(self) -> Mapping[str, int]:
        """How many examples each client trained on when it last did; the forgotten count no more."""
        return {name: count for name, count in self._counts.items() if not self.exclusions.is_forgotten(name)}

    @num_examples.setter
    def num_examples(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

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
        """The clients online now that may train, by id."""
        return {
            client: member
            for client, member in self.roster.online(grid).items()
            if not (self.exclusions.of(client) | self.withheld.of(client)).everything
        }

    def site_values(self, client: str) -> Json:
        """What every message tells a client: what it must leave out, and answers to what it filed."""
        excluded, withheld = self.exclusions.of(client), self.withheld.of(client)
        values = exclusion_values(excluded, withheld)
        if self.subject_keys is not None and (excluded.sample_ids or withheld.sample_ids):
            values[SUBJECT_KEY] = self.subject_keys.of(client).hex()
        answers = self.answers.get(client, {})
        return {**values, "answers": dict(answers)} if answers else values

    def await_clients(self, grid: Grid, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait, with a limit, for the clients expected at the start, later for the fewest allowed.

        A simulation starts the server before its nodes; without this the first round would lack most.
        """
        wanted = self.settings.min_clients
        if not self._was_complete:
            gone = sum(1 for forget in self.exclusions.clients.values() if forget.everything)
            wanted = max(wanted, (self.settings.start_clients or self.settings.num_clients) - gone)
        deadline = time.monotonic() + self.settings.wait_timeout_s
        while (count := len(self.eligible(grid))) < wanted:
            if time.monotonic() >= deadline or is_stopped():
                _log.warning("Going on with %d client(s), expected %d.", count, wanted)
                break
            time.sleep(0.5)
        self._was_complete = True

    def sample(self, eligible: Iterable[str], server_round: int) -> list[str]:
        """A seeded sample of the eligible clients, sorted; the same for the same seed and round."""
        candidates = sorted(eligible)
        wanted = math.ceil(self.settings.fraction * len(candidates))
        count = min(len(candidates), max(wanted, self.settings.min_clients))
        generator = np.random.default_rng([self.settings.seed, server_round])
        return sorted(generator.choice(candidates, size=count, replace=False).tolist()) if count else []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask a sample of the eligible clients to train; none if too few are online."""
        self.await_clients(grid)
        return list(self.train_messages(server_round, arrays, grid).values())

    def train_messages(
        self, server_round: int, arrays: ArrayRecord, grid: Grid, among: Iterable[str] | None = None
    ) -> dict[str, Message]:
        """The round's messages by client id, to the sample or to the clients `among` that are online."""
        self._global, self._sent, self._asked = vector_of(arrays), beside_the_model(arrays), {}
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
        self._asked = {eligible[client].node_id: client for client in chosen}
        return self.round_messages(TRAIN, server_round, arrays, {name: eligible[name] for name in chosen})

    def round_sample(self, eligible: Iterable[str], server_round: int) -> list[str]:
        """A seeded sample of the eligible clients whose turn it is in this round, sorted.

        Where nobody's turn has come, as when those that begin have left, the others begin at once.
        """
        everyone = list(eligible)
        turn = [client for client in everyone if self.takes_part(client, server_round)]
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
        """The weighted mean of the models that may enter, or None if there is none."""
        assert self._global is not None, "configure_train comes first"
        accepted: dict[str, Reply] = {}
        refused = dict(self.roster.impostors)
        for message in replies:
            if message.has_error():
                continue
            node_id = message.metadata.src_node_id
            who = self._asked.get(node_id, f"node {node_id}")
            try:
                client, reply = self._accepted(message, server_round)
                if client in accepted:
                    raise UpdateRefused("It has answered this round already; the first answer counts.")
            except Exception as exc:  # noqa: BLE001 - the answer is the client's, and so is what it leads to
                refused[who] = reason_of(exc)
            else:
                accepted[client] = reply
        declared = {client: reply.num_examples for client, reply in accepted.items()}
        for client, count in declared.items():
            try:
                self.check_count(client, count, declared)
            except UpdateRefused as exc:
                refused[client] = str(exc)
                del accepted[client]
        changes = {client: reply.vector - self._global for client, reply in accepted.items()}
        too_large = over_the_median(changes, self.settings.max_norm_factor)
        refused |= too_large
        for who, reason in refused.items():
            _log.warning("The update of %s is refused: %s", _named(who), reason)
        entering = {client: reply for client, reply in accepted.items() if client not in too_large}
        return self._averaged(entering, refused)

    def check_count(self, client: str, num_examples: int, declared: Mapping[str, int] | None = None) -> None:
        """Refuse a count that is too large beside what is known of all clients, and what they declared now.

        Raises:
            UpdateRefused: it is too large.
        """
        known = {**self.num_examples, **(declared or {})}
        self._count_limits.check(client, num_examples, known.values())

    def _accepted(self, message: Message, server_round: int) -> tuple[str, Reply]:
        """The client and its answer, if it was asked in this round and its update may enter the model.

        Raises:
            UpdateRefused: what is wrong.
        """
        assert self._global is not None, "configure_train comes first"
        if message.metadata.group_id != str(server_round):
            raise UpdateRefused(f"It belongs to round {message.metadata.group_id}.")
        client = self._asked.get(message.metadata.src_node_id)
        if client is None:
            known = self.roster.client_of(message.metadata.src_node_id)
            speaks = "nobody that is known" if known is None else f"client {known}"
            raise UpdateRefused(f"It was not asked in this round; it speaks for {speaks}.")
        reply = checked(reply_of(message.content, max_size=self._global.size), like=self._global)
        check_norm(reply.vector - self._global, self.settings.max_update_norm)
        self.check_arrays(self._sent, reply.arrays)
        return client, reply

    def _averaged(
        self, accepted: Mapping[str, Reply], refused: Mapping[str, str]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        total = sum(reply.num_examples for reply in accepted.values())
        losses = [reply.num_examples * reply.metrics.get("loss", math.nan) for reply in accepted.values()]
        loss = sum(losses) / total if total else None
        self.outcome = RoundOutcome(
            participants={client: reply.num_examples for client, reply in sorted(accepted.items())},
            refused=refused,
            loss=loss,
        )
        self.num_examples = {**self.num_examples, **self.outcome.participants}
        if not accepted:
            return None, None
        metrics = MetricRecord({NUM_EXAMPLES: total, "loss": math.nan if loss is None else loss})
        models = {client: (reply.num_examples, reply.vector) for client, reply in accepted.items()}
        self.models = models if self.keeps_models else {}
        self.arrays = (
            {client: reply.arrays for client, reply in accepted.items()} if self.keeps_models else {}
        )
        assert self._global is not None, "configure_train comes first"
        return model_record(self.combine(self._global, models)), metrics

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
                    "forget": forgets.get(client, NOTHING).to_json(),
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
        """Loss and score over all clients' training data, and over their test data where they have any."""
        contents = {
            client: message.content
            for message in replies
            if not message.has_error()
            and (client := self.roster.client_of(message.metadata.src_node_id)) is not None
        }
        found: dict[str, int | float | list[int] | list[float]] = {}
        for name, observations in (
            ("train", merged(contents, "retained", self.check_count)),
            ("test", merged(contents, "test", self.check_count)),
        ):
            if observations is not None and observations.num_examples:
                found[f"{name}-examples"] = observations.num_examples
                found[f"{name}-loss"] = observations.loss_sum / observations.num_examples
                found[f"{name}-score"] = observations.score_sum / observations.num_examples
        return MetricRecord(found) if found else None


def _everybody(_client: str, _number: int) -> bool:
    return True


def _any_arrays(_sent: Arrays, _returned: Arrays) -> None:
    pass


def _mean(_before: Vector, models: Mapping[str, tuple[int, Vector]]) -> Vector:
    return weighted_mean(models)


def _named(who: str) -> str:
    return who if who.startswith("node ") else f"client {who}"
