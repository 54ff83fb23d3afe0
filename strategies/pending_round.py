"""A training round that clients were asked for: which of the answers to it may be looked at."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Message

from strategies.exchange import Failure, read_values
from strategies.messages import reply_of
from strategies.roster import Roster
from strategies.round_plan import RoundRules
from strategies.update_checks import check_norm, check_vector
from unlearning.buffers import check_variances, without_buffers
from unlearning.errors import UpdateRefused
from unlearning.methods.method import Reply
from unlearning.parameters import Vector
from unlearning.runtime.stores import Arrays
from unlearning.tasks.task import Task
from unlearning.untrusted import reason_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRound:
    """What was sent to whom, and so what an answer has to be like.

    task: what is learnt. model: the global one (d,). sent: the arrays beside it.
    clients: by the id of the node that was asked. max_norm: of the change of the model; 0 for no bound.
    """

    task: Task
    model: Vector
    sent: Arrays
    clients: Mapping[int, str]
    rules: RoundRules
    max_norm: float

    def read(
        self, server_round: int, answers: Iterable[Message], roster: Roster
    ) -> tuple[dict[str, Reply], dict[str, str]]:
        """Return what is sound by itself, by client, and why the rest is refused, by client or `node N`.

        The first answer of a client counts, whatever comes after it.
        """
        accepted: dict[str, Reply] = {}
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
                accepted[client] = reply
        return accepted, refused

    def _read_one(self, client: str | None, message: Message, server_round: int, roster: Roster) -> Reply:
        """Read one answer.

        Raises:
            UpdateRefused: what is wrong.
        """
        if message.metadata.group_id != str(server_round):
            raise UpdateRefused(f"It belongs to round {message.metadata.group_id}.")
        if client is None:
            known = roster.client_of(message.metadata.src_node_id)
            speaks = "nobody that is known" if known is None else f"client {known}"
            raise UpdateRefused(f"It was not asked in this round; it speaks for {speaks}.")
        values = read_values(message.content)
        if isinstance(values, Failure):
            if values.is_lasting:
                roster.set_aside(message.metadata.src_node_id, values.reason)
            raise UpdateRefused(values.reason)
        reply = reply_of(message.content, max_size=self.model.size)
        if reply.num_examples < 1:
            raise UpdateRefused("It was trained on no example.")
        check_vector(reply.vector, like=self.model)
        check_variances(self.task, reply.vector)
        check_norm(without_buffers(self.task, reply.vector - self.model), self.max_norm)
        self.rules.check(self.sent, reply.arrays)
        return reply
