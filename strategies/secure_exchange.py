"""A round of secure aggregation over the exchange with clients that all work goes by, over messages and sessions alike.

    advertise → share → the work itself, answered with a masked vector → confirm → unmask

Each is an exchange of its own; who does not answer one has dropped out of the round. Nothing of a round is kept at the
server: where one of its processes dies, the round is given up, for clients answer none a second time.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from strategies.exchange import Exchange, Failure, read_each
from strategies.messages import (
    ARRAYS,
    CONFIG,
    MEASURE,
    SECURE,
    SECURE_STAGE,
    UNLEARN,
    Json,
    compose,
    instruction_of,
    json_record,
    named_arrays,
    records_of,
    round_of,
    told_values,
    vector_of,
    with_content,
)
from strategies.settings.run_config import RunSettings
from unlearning.errors import SecureAggregationError, UpdateRefused
from unlearning.methods.preparation import training_by
from unlearning.methods.registry import method_named
from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.secure_aggregation.addends import (
    MOST_EXAMPLES,
    MOST_RATE,
    TAIL,
    SecureTotal,
    check_ones,
    read_total,
)
from unlearning.secure_aggregation.ring import Ring, is_fine
from unlearning.secure_aggregation.server_round import ServerRound
from unlearning.secure_aggregation.terms import Advertisement, RoundTerms, Unmasking
from unlearning.tasks.task import Task
from unlearning.verification.masked_counts import LENGTH

_log = getLogger(__name__)

Send = Callable[[Mapping[str, Message]], Exchange]
"""Does one exchange."""
_Read = TypeVar("_Read")

_SHARED_WORK = ("training", "method", "values", "samples")


def sequence_of(message: Message) -> int:
    """Return the number of the round that the work of a message is: a model is measured after its round was trained."""
    return 2 * round_of(message) + (message.metadata.message_type == MEASURE)


def work_hash(kind: str, content: RecordDict) -> bytes:
    """Return the hash of what all clients of a round are asked alike: the model, and how to train or to measure."""
    told = told_values(content)
    shared = {name: told.get(name) for name in _SHARED_WORK}
    digest = hashlib.sha256(json.dumps([kind, shared], sort_keys=True).encode())
    for name, array in sorted(named_arrays(content).items()):
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def exchange_securely(
    send: Send, messages: Mapping[str, Message], settings: RunSettings, task: Task, run_id: int
) -> Exchange:
    """Do the work of `messages` as a round of secure aggregation; what is learnt of it is the exchange's `total`."""
    first = next(iter(messages.values()))
    kind, is_measurement = first.metadata.message_type, first.metadata.message_type == MEASURE
    terms = RoundTerms(
        federation=settings.federation,
        run=run_id,
        sequence=sequence_of(first),
        purpose=kind,
        length=LENGTH + 1 if is_measurement else _size(first, settings, task) + TAIL,
        num_clients=len(messages),
        min_cohort=settings.min_cohort,
        threshold=settings.threshold,
        clip_norm=settings.secure_clip_norm,
        max_weight=(settings.max_client_examples or MOST_EXAMPLES) * MOST_RATE,
    )
    round_ = SecureExchange(send=send, messages=messages, terms=terms)
    try:
        if not is_fine(len(messages), terms.max_weight):
            raise SecureAggregationError("The sum would be too coarse. Set a smaller max-client-examples.")
        ring, clients = round_.sum()
        return replace(round_.joined(), total=_read_total(task, ring, terms, clients))
    except SecureAggregationError as exc:
        _log.error("The round %d of secure aggregation is given up: %s", terms.sequence, exc)
        return round_.joined(str(exc))


def _size(work: Message, settings: RunSettings, task: Task) -> int:
    """Return how many numbers each client adds, beside what is counted."""
    model = vector_of(records_of(work.content, ArrayRecord)[ARRAYS])
    if work.metadata.message_type == UNLEARN:
        name, _ = instruction_of(work)
        return method_named(name).sum_size(task, model)
    return training_by(settings.preparations().values()).sum_size(task, model)


def _read_total(task: Task, ring: Ring, terms: RoundTerms, clients: tuple[str, ...]) -> SecureTotal:
    if terms.purpose != MEASURE:
        return read_total(task, ring, terms, clients)
    counts = ring.view(np.int64)
    check_ones(int(counts[-1]), clients)
    return SecureTotal(clients=clients, step=np.zeros(0), counts=counts[:-1])


@dataclass(slots=True, kw_only=True)
class SecureExchange:
    """A round with the clients of `messages`, which carry the work. done: its exchanges so far."""

    send: Send
    messages: Mapping[str, Message]
    terms: RoundTerms
    done: list[Exchange] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def sum(self) -> tuple[Ring, tuple[str, ...]]:
        """Return the sum, and the clients in it.

        Raises:
            SecureAggregationError: the round is given up.
        """
        plain = to_plain(self.terms)
        advertised = self._stage(
            "advertise", {key: {"terms": plain} for key in self.messages}, _advertisement
        )
        server = ServerRound.begin(self.terms, advertised)
        members = [to_plain(one) for one in server.cohort.members.values()]
        sealed = self._stage(
            "share",
            {key: {"members": members} for key in advertised},
            lambda _, said: from_plain(dict[str, bytes], said["sealed"]),
        )
        server = server.with_shares(sealed)
        server = server.with_masked(self._work(server))
        told: Json = {"survivors": list(server.survivors)}
        signatures = self._stage(
            "confirm",
            dict.fromkeys(server.survivors, told),
            lambda _, said: from_plain(bytes, said["signature"]),
        )
        signed: Json = {"signatures": to_plain(signatures)}
        unmasking = self._stage(
            "unmask",
            dict.fromkeys(signatures, signed),
            lambda _, said: from_plain(Unmasking, said["shares"]),
        )
        first = next(iter(self.messages.values()))
        work = work_hash(first.metadata.message_type, first.content)
        return server.sum(unmasking, work), server.survivors

    def _stage(
        self, stage: str, told: Mapping[str, Json], read: Callable[[str, Json], _Read]
    ) -> dict[str, _Read]:
        """Do one stage's exchange; return what `read` makes of each answer."""
        asked = {}
        for client, values in told.items():
            work = self.messages[client]
            secure = {SECURE: {"stage": stage, **values}}
            asked[client] = compose(work.metadata.dst_node_id, SECURE_STAGE, round_of(work), secure)
        answers = self._exchange(asked).values
        found, refused = read_each(answers, lambda client, values: read(client, values[SECURE]))
        self.refused |= refused
        return found

    def _work(self, server: ServerRound) -> dict[str, Ring]:
        """Let clients do the work; return their masked vectors."""
        asked = {}
        for client in server.sealed:
            message, content = self.messages[client], self.messages[client].content
            told = {**told_values(content), SECURE: {"sealed": to_plain(server.shares_for(client))}}
            config = ConfigRecord({**records_of(content, ConfigRecord)[CONFIG], **json_record(told)})
            asked[client] = with_content(message, RecordDict({**content, CONFIG: config}))
        most = self.terms.length
        found, refused = read_each(
            self._exchange(asked).replies,
            lambda client, reply: server.check_masked(
                client, np.asarray(vector_of(records_of(reply, ArrayRecord)[ARRAYS], max_size=most))
            ),
        )
        self.refused |= refused
        return found

    def _exchange(self, asked: Mapping[str, Message]) -> Exchange:
        done = self.send(asked)
        self.done.append(replace(done, messages={}))
        return done

    def joined(self, problem: str = "") -> Exchange:
        """Return all exchanges as one. A round that is given up has failed with every client, with its own reason."""
        failures: dict[str, Failure] = dict.fromkeys(self.messages, Failure(problem)) if problem else {}
        failures |= {client: Failure(why, is_refusal=True) for client, why in self.refused.items()}
        for one in self.done:
            failures |= one.failures
        refused = {client: why for one in self.done for client, why in one.refused.items()}
        return Exchange(
            values={client: one for exchange in self.done for client, one in exchange.values.items()},
            failures=failures,
            refused={**refused, **self.refused},
            bytes_sent=sum(one.bytes_sent for one in self.done),
            bytes_received=sum(one.bytes_received for one in self.done),
            seconds=sum(one.seconds for one in self.done),
        )


def _advertisement(client: str, said: Json) -> Advertisement:
    found = from_plain(Advertisement, said["keys"])
    if found.client != client:
        raise UpdateRefused(f"Its key is that of client {found.client!r:.60}.", code="other-name")
    return found
