"""One peer: a state machine that knows no network, no thread and no clock.

It takes what came (`take_payload`) and requests (`file`), and gives work: a round of training (`next_round`,
`finish_round`) or something that a request needs (`owed_items.next_work`). The work itself is computed elsewhere, so a
peer goes on answering meanwhile. An `Outbox` per neighbour holds what is still to be sent.

From the wire to the model: `grpc_transport` → `take_payload` → `receive` → `KnownItems.take` (checked, durable) →
`Models.catch_up` (added to the model, durable) → the outboxes of all neighbours.

Exactness. Every peer adds each correction to its own model once: model and list of corrections are one file.
A neighbour's model that does not include a correction yet gets it added before it is mixed in. An offer that includes
corrections that are not known here waits until they are. So the mean of all models moves by exactly the correction.
"""

import math
from dataclasses import dataclass, replace
from logging import getLogger

from client.peer.gossip import GossipMessage, Greeting, Kind, ModelOffer, Payload, validate_offer
from client.peer.journal import Journal, PeerModel
from client.peer.known_items import KnownItems
from client.peer.learner import Learner, Round
from client.peer.outbox import Outbox
from client.peer.peer_models import Models
from client.peer.record import PeerRules, forget_at
from client.peer.signatures import Seals
from unlearning.decentralised.dpsgd import example_scale
from unlearning.decentralised.graphs import Graph
from unlearning.decentralised.mixing import check_mixing, metropolis_weights
from unlearning.errors import AlreadyForgotten, ConflictingRequest, SessionError
from unlearning.parameters import Vector
from unlearning.requests import NOTHING, Forget, Granularity, Target

_log = getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """The address at which others reach a peer, and how it proves what it says; None: peers believe each other."""

    address: str = ""
    seals: Seals | None = None


class Peer:
    """The peer `name`.

    start: the untrained model (d,), the same at every peer. models: its own and its neighbours'.

    Raises:
        CheckpointError: the journal is damaged.
        NumericalError: the graph is not connected.
    """

    def __init__(
        self,
        name: str,
        graph: Graph,
        learner: Learner,
        journal: Journal,
        rules: PeerRules,
        start: Vector,
        place: Place | None = None,
    ) -> None:
        self.name, self.rules, self.learner = name, rules, learner
        self._journal, self._place = journal, place or Place()
        self._items = KnownItems(name, graph, journal, rules, self._place.seals, start.size)
        self.record = self._items.record
        self.models = Models(name, journal, self._items, start, rules.buffers)
        self._outboxes: dict[str, Outbox] = {}
        self._graph = self._contacts = graph
        self._regraph()
        self._items.restore(self.model.applied)
        self._regraph()
        self.models.catch_up()
        self._items.drop_all_curvatures()  # the process may have ended before it did
        member = GossipMessage(
            kind=Kind.MEMBER,
            origin=name,
            values={
                "address": self._place.address,
                "neighbours": list(graph.neighbours(name)),
                "num_examples": learner.count(Forget(everything=True), outside=NOTHING),
            },
        )
        self.receive(member)

    @property
    def model(self) -> PeerModel:
        """The present model."""
        return self.models.own

    @property
    def graph(self) -> Graph:
        """The graph without those who have left."""
        return self._graph

    @property
    def has_left(self) -> bool:
        """Whether this peer was forgotten as a whole."""
        return self.name not in self._graph.nodes

    @property
    def contacts(self) -> tuple[str, ...]:
        """The peers that this one sends to: its neighbours, and after it has left those that it had."""
        return self._contacts.neighbours(self.name)

    def target(self, request_id: str) -> Forget:
        """Return what one of this peer's own requests forgets."""
        return self._journal.targets.get(request_id, NOTHING)

    def forget_set(self, *, before: str | None = None) -> Forget:
        """Return what this peer must not train on: all requests' targets, or those of the requests before one."""
        total, targets = NOTHING, self._journal.targets
        for request in self.record.of(Kind.REQUEST):
            if request.subject == before:
                return total
            total |= forget_at(self.name, request, targets)
        for request_id, target in targets.items():
            # its request may be lost or moved aside; the promise is not
            if not self.record.has(Kind.REQUEST, self.name, request_id):
                total |= target
        return total

    def file(self, target: Target, key: str) -> str:
        """Take a deletion request issued at this peer; return its id. Durable when this returns; again is the same.

        Raises:
            InvalidRequest: sample ids that this peer does not have.
            AlreadyForgotten: everything at this peer is forgotten.
            ConflictingRequest: the key is that of a request for something else.
        """
        request_id = f"{self.name}-{key}"
        if self.record.has(Kind.REQUEST, self.name, request_id):
            if self.target(request_id) != target.forget:
                raise ConflictingRequest(
                    f"The key {key!r} is that of a request for something else. Use another one."
                )
            return request_id
        if self.forget_set().everything:
            raise AlreadyForgotten(f"Everything of peer {self.name!r} is forgotten already.")
        self.learner.check(target.forget)
        self._journal.put_target(request_id, target.forget)
        values = {
            "granularity": str(target.granularity),
            "class_label": target.class_label,
            "curvature": self.rules.shared_curvature or target.granularity is Granularity.CLIENT,
        }
        self.receive(GossipMessage(kind=Kind.REQUEST, origin=self.name, subject=request_id, values=values))
        return request_id

    def outbox(self, to: str) -> Outbox:
        """Return what is still to be sent to `to`."""
        if to not in self._outboxes:
            self._outboxes[to] = Outbox(self.name, self._items, self.models)
        return self._outboxes[to]

    def take_payload(self, sender: str, payload: Payload) -> frozenset[str]:
        """Take a payload, as every transport delivers it; return the answer to a greeting, else nothing.

        Raises:
            SessionError, UpdateRefused: the sender is no member, or the payload cannot be what it says.
        """
        if not self.record.admits(sender):
            raise SessionError(
                f"Peer {sender!r:.60} is no member of this federation.", code="no-member", peer=sender
            )
        match payload:
            case Greeting():
                if payload.is_new and sender in self._outboxes:
                    self._outboxes[sender].queue_recent()
                return frozenset(self._items.by_id)
            case GossipMessage():
                self.receive(payload, sender)
            case ModelOffer():
                self.accept(replace(payload, sender=sender))
        return frozenset()

    def receive(self, item: GossipMessage, sender: str = "") -> bool:
        """Take an item; return whether it is new. A new one is durable, and in the model, when this returns.

        sender: whose connection brought it; empty for this peer's own items.

        Raises:
            SessionError, UpdateRefused: it cannot be what it says, does not fit, or is not its origin's.
        """
        is_new = item.id not in self._items.by_id
        kept = self._items.take(item, is_own=not sender)
        if is_new and self._items.is_whole(kept):
            for outbox in self._outboxes.values():
                outbox.add(kept.id)
        if sender in self._outboxes:
            self._outboxes[sender].note_known(kept.id)
        if is_new:
            self._learn(kept)
        return is_new

    def _learn(self, item: GossipMessage) -> None:
        """Draw the consequences of a new item."""
        if item.values.get("leaves") or (item.kind is Kind.MEMBER and self._is_news(item)):
            self._regraph()
        if item.kind is Kind.CORRECTION:
            self.models.catch_up()
            self._items.drop_curvatures(item.subject)

    def accept(self, offer: ModelOffer) -> None:
        """Take a neighbour's model for a round; models of other peers are dropped.

        A peer without any round behind it that meets a federation that has trained takes over its model: one that
        two neighbours have outdone, or that of its only neighbour.

        Raises:
            SessionError, UpdateRefused: it cannot be mixed.
        """
        validate_offer(offer, self.model.vector.size)
        neighbours = self._graph.neighbours(self.name)
        if offer.sender not in neighbours:
            return
        self.models.take(offer)
        if not self.models.has_moved:
            found = self.models.usable_offers(max(2, self.model.round + 1))
            if len(found) >= min(2, len(neighbours)):
                outdone = sorted(found.values(), key=lambda one: one.round)[-2:][0]
                self.models.take_over(outdone, min(outdone.round, self._last()))
                self._publish()

    def waits_for(self) -> list[str]:
        """Return the peers whose number of examples is not known yet; training begins when all are known."""
        counts = self.record.counts()
        return [peer for peer in self._graph.nodes if peer not in counts and not self.models.is_silent(peer)]

    def missing(self) -> list[str]:
        """Return the peers that the next round waits for: silent members, then neighbours without a model."""
        if self.has_left or self._has_ended():
            return []
        usable = self.models.usable_offers()
        return self.waits_for() or [
            name
            for name in self._graph.neighbours(self.name)
            if name not in usable and not self.models.is_silent(name)
        ]

    def next_round(self, *, patient: bool = True) -> Round | None:
        """Return the round to train; None after the last, or while peers are missing; impatient: they are left out."""
        if self.has_left or self._has_ended() or (patient and self.missing()):
            return None
        while missing := self.missing():
            self.models.leave_out(missing)
        counts = self.record.counts()
        total = sum(counts.get(peer, 0) for peer in self._graph.nodes)
        scale = 1.0
        if self.rules.weighs_examples and total:
            scale = example_scale(counts[self.name], total, len(self._graph.nodes))
        parameters = self.models.mixture() if self.rules.mixes_first else self.model.vector
        return Round(number=self.model.round, parameters=parameters, without=self.forget_set(), scale=scale)

    def _has_ended(self) -> bool:
        return self.model.round >= self._last()

    def _last(self) -> float:
        """Return the number of the last round; infinite where training has no end."""
        rules = self.rules
        if not rules.rounds:
            return math.inf
        return rules.rounds + rules.fine_tuning_rounds * self.record.num_corrected()

    def finish_round(self, begun: Round, move: Vector) -> None:
        """Mix, add the move (d,), and offer the result. Nothing happens if the round was overtaken.

        Mixed again where the round began with that: corrections may have come since.
        """
        if begun.number == self.model.round and not self.has_left:
            self.models.advance(move, self._last())
            self._publish()

    def _is_news(self, member: GossipMessage) -> bool:
        """Return whether the member, or one of its edges, is not in the graph yet."""
        return not set(member.values["neighbours"]) <= set(self._graph.neighbours(member.origin))

    def _regraph(self) -> None:
        before, self._graph = self._graph, self.record.graph()
        self._contacts = self.record.graph(including=self.name)
        if len(self._graph.nodes) > 1:
            report = check_mixing(metropolis_weights(self._graph))
            if before.nodes != self._graph.nodes:
                _log.info("%s", report.describe())
        self.models.move_to(self._graph)

    def _publish(self) -> None:
        for to in self.contacts:
            self.outbox(to).queue(self.models.offer())
