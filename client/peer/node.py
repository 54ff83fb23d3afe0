"""One peer: a state machine that knows no network, no thread and no clock.

It is told what came (`receive`, `accept`, `greeted`), what was asked of it (`file`), and hands out work: a round of
training (`next_round`, `finish_round`) or something that a request needs (`next_work`). The work itself is computed
elsewhere, so a peer goes on answering meanwhile. Links say what each neighbour is still to be sent.

Exactness. Every peer adds each correction to its own model once: model and list of corrections are one file.
A neighbour's model that does not include a correction yet gets it added before it is mixed in. An offer that includes
corrections that are not known here waits until they are. So the mean of all models moves by exactly the correction.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from logging import getLogger

import numpy as np

from client.peer.items import Greeting, Item, Kind, Offer, Parcel, checked_item, checked_offer, same_dtype
from client.peer.journal import Journal, PeerModel
from client.peer.learner import Learner
from client.peer.record import Record, forget_at
from unlearning.decentralised import Graph, check_mixing, example_scale, metropolis_weights, mixed, mixing_row
from unlearning.errors import AlreadyForgotten
from unlearning.parameters import Vector
from unlearning.requests import NOTHING, Forget, Granularity, Target

_log = getLogger(__name__)

OFFERS_KEPT = 2
"""In lockstep a neighbour is one round ahead at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRules:
    """What all peers of a federation must agree on.

    rounds: of training; 0 goes on for ever. fine_tuning_rounds: after each deletion, when training has ended.
    shared_curvature: deletions of samples and classes wait for everybody's curvature, too.
    weighs_examples: every example counts the same; else every peer does.
    mixes_first: a round's training begins at the mixture of models, as more than one step needs (`local_move`).
    """

    rounds: int = 0
    fine_tuning_rounds: int = 1
    shared_curvature: bool = False
    weighs_examples: bool = True
    mixes_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round's local training, to be computed: from `parameters` (d,), without what is forgotten."""

    number: int
    parameters: Vector
    without: Forget
    scale: float


@dataclass(slots=True)
class Link:
    """What is still to be sent to one neighbour.

    pending: ids of the items that it lacks, in order; None before it has said what it has. has_met: whether it ever
    has said so to this process.
    """

    pending: dict[str, None] | None = None
    has_met: bool = False
    offers: deque[Offer] = field(default_factory=lambda: deque(maxlen=OFFERS_KEPT))

    def queue(self, offer: Offer) -> None:
        """Let this model be sent, unless it waits already."""
        if not any((one.round, one.applied) == (offer.round, offer.applied) for one in self.offers):
            self.offers.append(offer)


class Peer:
    """The peer `name`.

    start: the untrained model (d,), the same at every peer. address: where others reach this one.

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
        address: str = "",
    ) -> None:
        self.name, self.rules, self.learner = name, rules, learner
        self._journal = journal
        self._items = {item.id: item for item in journal.items()}
        self._targets = journal.targets()
        kept = journal.model()
        self._model = kept or PeerModel(round=0, vector=start)
        self._offers: dict[str, list[Offer]] = {}
        self._last_round: Offer | None = None
        self._links: dict[str, Link] = {}
        self.record = Record(graph, self._items)
        self._graph = self._contacts = self.record.graph()
        self._regraph()
        self._catch_up()
        member = Item(
            kind=Kind.MEMBER,
            origin=name,
            values={
                "address": address,
                "neighbours": list(graph.neighbours(name)),
                "num_examples": learner.count(Forget(everything=True), outside=NOTHING),
            },
        )
        self.receive(member)

    @property
    def model(self) -> PeerModel:
        """The model as it stands."""
        return self._model

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
        """Whom this peer sends to: its neighbours, and after it has left those that it had."""
        return self._contacts.neighbours(self.name)

    def target(self, request_id: str) -> Forget:
        """What one of this peer's own requests forgets."""
        return self._targets.get(request_id, NOTHING)

    def forgotten(self, *, before: str | None = None) -> Forget:
        """What this peer must not train on: all requests' targets, or those that came before one."""
        total = NOTHING
        for request in self.record.of(Kind.REQUEST):
            if request.subject == before:
                return total
            total |= forget_at(self.name, request, self._targets)
        return total

    def file(self, target: Target, key: str) -> str:
        """Take a deletion request issued at this peer; its id. Durable when this returns; again is the same.

        Raises:
            InvalidRequest: sample ids that this peer does not have.
            AlreadyForgotten: everything at this peer is forgotten.
        """
        request_id = f"{self.name}-{key}"
        if self.record.has(Kind.REQUEST, self.name, request_id):
            return request_id
        if self.forgotten().everything:
            raise AlreadyForgotten(f"Everything of peer {self.name!r} is forgotten already.")
        self.learner.check(target.forget)
        self._journal.put_target(request_id, target.forget)
        self._targets[request_id] = target.forget
        values = {
            "granularity": str(target.granularity),
            "class_label": target.class_label,
            "curvature": self.rules.shared_curvature or target.granularity is Granularity.CLIENT,
        }
        self.receive(Item(kind=Kind.REQUEST, origin=self.name, subject=request_id, values=values))
        return request_id

    def receive(self, item: Item, sender: str = "") -> bool:
        """Take an item; whether it is new. A new one is durable, and in the model, when this returns.

        Raises:
            SessionError, UpdateRefused: it cannot be what it says.
        """
        is_new = item.id not in self._items
        if is_new:
            checked_item(item, self._model.vector.size)
            self._journal.put(item)
            self._items[item.id] = item
            for link in self._links.values():
                if link.pending is not None:
                    link.pending[item.id] = None
        from_link = self._links.get(sender)
        if from_link is not None and from_link.pending is not None:
            from_link.pending.pop(item.id, None)  # who sent it has it
        if is_new:
            self._learn(item)
        return is_new

    def _learn(self, item: Item) -> None:
        """Draw the consequences of a new item."""
        if item.values.get("leaves") or (item.kind is Kind.MEMBER and self._is_news(item)):
            self._regraph()
        if item.kind is Kind.CORRECTION:
            self._catch_up()
            self._slim(item.subject)

    def accept(self, offer: Offer) -> None:
        """Take a neighbour's model for a round.

        A peer without any round behind it that meets a federation that has trained takes over its model.

        Raises:
            SessionError, UpdateRefused: it cannot be mixed.
        """
        checked_offer(offer, self._model.vector.size)
        if offer.sender not in self._graph.nodes or offer.sender == self.name:
            return
        if self._model.round == 0 and offer.round > 1 and offer.applied <= self._items.keys():
            vector = same_dtype(offer.vector, self._model.vector)
            self._keep(PeerModel(round=offer.round, vector=vector, applied=offer.applied))
            self._catch_up()
            self._publish()
        offers = {one.round: one for one in (*self._offers.get(offer.sender, ()), offer)}
        self._offers[offer.sender] = [offers[number] for number in sorted(offers)][-OFFERS_KEPT:]

    def greeted(self, greeting: Greeting) -> frozenset[str]:
        """A neighbour has connected: the ids of all items here. A new process is sent the newest models again."""
        if greeting.is_new and greeting.sender in self._links:
            self._queue_recent(self._links[greeting.sender])
        return frozenset(self._items)

    def offer(self) -> Offer:
        """The model for neighbours."""
        model = self._model
        return Offer(sender=self.name, round=model.round, vector=model.vector, applied=model.applied)

    def next_parcel(self, to: str) -> Parcel | None:
        """What `to` is to be sent next; items come before models. None: it has everything."""
        link = self._links.setdefault(to, Link())
        if link.pending is None:
            return Greeting(self.name, is_new=not link.has_met)
        if link.pending:
            return self._items[next(iter(link.pending))]
        return link.offers[0] if link.offers else None

    def delivered(self, to: str, parcel: Parcel, known: frozenset[str] = frozenset()) -> None:
        """`to` has confirmed the parcel; for a greeting, with the ids that it knows."""
        link = self._links.setdefault(to, Link())
        if isinstance(parcel, Greeting):
            link.pending = dict.fromkeys(item_id for item_id in self._items if item_id not in known)
            if not link.has_met:
                self._queue_recent(link)
            link.has_met = True
        elif isinstance(parcel, Item):
            if link.pending is not None:
                link.pending.pop(parcel.id, None)
        elif link.offers and link.offers[0] is parcel:
            link.offers.popleft()

    def broke(self, to: str) -> None:
        """`to` could not be reached: begin with a greeting again, since it may have restarted."""
        self._links.setdefault(to, Link()).pending = None

    def waits_for(self) -> list[str]:
        """Whose number of examples is not known yet; training begins when all are."""
        counts = self.record.counts()
        return [peer for peer in self._graph.nodes if peer not in counts]

    def next_round(self, *, patient: bool = True) -> Round | None:
        """The round to train; None while it has ended, or (if `patient`) a neighbour's model is missing."""
        rules, ended = self.rules, False
        if rules.rounds:
            ended = self._model.round >= rules.rounds + rules.fine_tuning_rounds * self.record.num_corrected()
        if ended or self.has_left or self.waits_for():
            return None
        if patient and len(self._usable()) < self._graph.degree(self.name):
            return None
        counts = self.record.counts()
        total = sum(counts[peer] for peer in self._graph.nodes)
        scale = 1.0
        if rules.weighs_examples and total:
            scale = example_scale(counts[self.name], total, len(self._graph.nodes))
        parameters = self._mixed() if rules.mixes_first else self._model.vector
        return Round(number=self._model.round, parameters=parameters, without=self.forgotten(), scale=scale)

    def finish_round(self, begun: Round, move: Vector) -> None:
        """Mix, add the move (d,), and offer the result. Nothing happens if the round was overtaken.

        Mixed again where the round began with that: corrections may have come since.
        """
        model = self._model
        if begun.number != model.round or self.has_left:
            return
        vector = self._mixed() + move
        self._last_round = self.offer()
        after = max([model.round, *(offer.round for offer in self._usable().values())]) + 1
        has_trained = model.has_trained or bool(np.any(move))
        self._keep(
            replace(model, round=after, vector=same_dtype(vector, model.vector), has_trained=has_trained)
        )
        self._publish()

    def _mixed(self) -> Vector:
        """The own model and the neighbours', mixed, with every correction that the own one has."""
        models: Mapping[str, Vector] = {
            self.name: self._model.vector,
            **{sender: self._corrected(offer) for sender, offer in self._usable().items()},
        }
        return mixed(self.name, mixing_row(self._graph, self.name), models)

    def _usable(self) -> dict[str, Offer]:
        """Of each neighbour the earliest model that is not older than the own one, if its corrections are known."""
        usable: dict[str, Offer] = {}
        for sender in self._graph.neighbours(self.name):
            fresh = [
                offer
                for offer in self._offers.get(sender, ())
                if offer.round >= self._model.round and offer.applied <= self._items.keys()
            ]
            if fresh:
                usable[sender] = min(fresh, key=lambda offer: offer.round)
        return usable

    def _corrected(self, offer: Offer) -> Vector:
        """The offer's model with the corrections that this peer's model has and it has not."""
        missing = [self._items[item_id] for item_id in sorted(self._model.applied - offer.applied)]
        return _added(offer.vector, missing)

    def _catch_up(self) -> None:
        """Add the corrections that are known and not in the model."""
        missing = [item for item in self.record.of(Kind.CORRECTION) if item.id not in self._model.applied]
        if missing:
            applied = self._model.applied | {item.id for item in missing}
            self._keep(replace(self._model, vector=_added(self._model.vector, missing), applied=applied))

    def _slim(self, subject: str) -> None:
        """Drop the curvatures of a request that has all it needs: a matrix from every peer is a lot to keep."""
        request = next(iter(self.record.of(Kind.REQUEST, subject)), None)
        if request is None or request.values["granularity"] == Granularity.CLASS:
            return
        for item in list(self.record.of(Kind.STATISTICS, subject)):
            if item.vector is not None:
                self._items[item.id] = replace(item, vector=None)
                self._journal.put(self._items[item.id])

    def _is_news(self, member: Item) -> bool:
        """Whether the member, or one of its edges, is not in the graph yet."""
        return not set(member.values["neighbours"]) <= set(self._graph.neighbours(member.origin))

    def _regraph(self) -> None:
        before, self._graph = self._graph, self.record.graph()
        self._contacts = self.record.graph(including=self.name)
        if len(self._graph.nodes) > 1:
            report = check_mixing(metropolis_weights(self._graph))
            if before.nodes != self._graph.nodes:
                _log.info("%s", report.describe())
        for gone in self._offers.keys() - set(self._graph.nodes):
            del self._offers[gone]

    def _keep(self, model: PeerModel) -> None:
        self._journal.put_model(model)
        self._model = model

    def _queue_recent(self, link: Link) -> None:
        """The model, and that of the round before, which a neighbour that restarted may need to keep step."""
        link.queue(self.offer())
        if self._last_round is not None:
            link.queue(self._last_round)

    def _publish(self) -> None:
        for to in self.contacts:
            self._links.setdefault(to, Link()).queue(self.offer())


def _added(vector: Vector, corrections: list[Item]) -> Vector:
    """`vector` (d,) plus weight times vector of each correction that has one."""
    total = vector.astype(np.float64)
    for item in corrections:
        if item.vector is not None:
            total += float(item.values["weight"]) * item.vector.astype(np.float64)
    return same_dtype(total, vector)
