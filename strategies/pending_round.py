"""A training round that clients were asked for: which of the answers to it may enter the model."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Message

from strategies.exchange import Failure, read_each, read_values
from strategies.messages import reply_of
from strategies.roster import Roster
from strategies.round_plan import RoundOutcome
from strategies.round_rules import RoundRules
from strategies.update_limits import CheckCount, Limits
from unlearning.buffers import Change
from unlearning.errors import UpdateRefused
from unlearning.methods.method import Replies, Reply
from unlearning.methods.preparation import FederatedRound
from unlearning.parameters import Vector
from unlearning.runtime.stores import Arrays
from unlearning.training import TrainingSettings
from unlearning.untrusted import reason_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAnswers:
    """The answers that may enter the model, what each changes of it, and why others are refused, all by client.

    messages: those that the answers came in.
    """

    accepted: Replies
    messages: Mapping[str, Message]
    changes: Mapping[str, Change]
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRound:
    """What was sent to whom, and so what an answer has to be like.

    model: the global one (d,). sent: the arrays that went with it. clients: by the id of the node that was asked.
    is_skipped: whether too few clients are online for a round.
    """

    model: Vector
    sent: Arrays
    clients: Mapping[int, str]
    rules: RoundRules
    limits: Limits
    is_skipped: bool = False

    def read(
        self,
        server_round: int,
        answers: Iterable[Message],
        roster: Roster,
        count_check: Callable[[Mapping[str, int]], CheckCount],
    ) -> RoundAnswers:
        """Return what may enter the model, and why the rest is refused, by client or `node N`.

        count_check: gives what refuses a client's count, by the counts that all declare now.
        """
        sound, messages, refused = self._read_each(server_round, answers, roster)
        declared = {client: reply.num_examples for client, (reply, _) in sound.items()}
        _, too_many = read_each(declared, count_check(declared))
        changes = {client: change for client, (_, change) in sound.items() if client not in too_many}
        too_large = self.limits.outliers(changes, {client: one.after for client, one in changes.items()})
        return RoundAnswers(
            accepted={client: sound[client][0] for client in changes if client not in too_large},
            messages=messages,
            changes={client: change for client, change in changes.items() if client not in too_large},
            refused={**refused, **too_many, **too_large},
        )

    def done(self, number: int, outcome: RoundOutcome, training: TrainingSettings) -> FederatedRound:
        """Return the round as preparations keep it."""
        assert outcome.model is not None, "there is a round to keep"
        return FederatedRound(
            number=number,
            before=self.model,
            after=outcome.model,
            models=outcome.models,
            arrays=outcome.arrays,
            refused=frozenset(outcome.refused),
            task=self.limits.task,
            training=training,
        )

    def _read_each(
        self, server_round: int, answers: Iterable[Message], roster: Roster
    ) -> tuple[dict[str, tuple[Reply, Change]], dict[str, Message], dict[str, str]]:
        """Return what is sound by itself, with what it changes of the model; a client's first answer counts."""
        accepted: dict[str, tuple[Reply, Change]] = {}
        messages: dict[str, Message] = {}
        refused = dict(roster.impostors)
        for message in answers:
            if message.has_error():
                continue
            node_id = message.metadata.src_node_id
            client = self.clients.get(node_id)
            try:
                reply = self._read_one(client, message, server_round, roster)
                if client in accepted:
                    raise UpdateRefused("It has answered this round already; the first answer counts.")
            except Exception as exc:  # noqa: BLE001 - the answer is the client's, and so is what it leads to
                refused[client or f"node {node_id}"] = reason_of(exc)
            else:
                assert client is not None
                accepted[client], messages[client] = reply, message
        return accepted, messages, refused

    def _read_one(
        self, client: str | None, message: Message, server_round: int, roster: Roster
    ) -> tuple[Reply, Change]:
        """Read one answer, and what it changes of the model.

        Raises:
            UpdateRefused: what is wrong.
        """
        if message.metadata.group_id != str(server_round):
            raise UpdateRefused(f"It belongs to round {message.metadata.group_id}.")
        if client is None:
            known = roster.client_of(message.metadata.src_node_id)
            speaks = "no known client" if known is None else f"client {known}"
            raise UpdateRefused(f"It was not asked in this round; it speaks for {speaks}.")
        values = read_values(message.content)
        if isinstance(values, Failure):
            if values.is_lasting:
                roster.set_aside(message.metadata.src_node_id, values.reason)
            raise UpdateRefused(values.reason)
        reply = reply_of(message.content, max_size=self.model.size)
        if reply.num_examples < 1:
            raise UpdateRefused("It was trained on no example.")
        change = self.limits.check_model(reply.vector, self.model)
        self.rules.check(self.sent, reply.arrays)
        return reply, change
