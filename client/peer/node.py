"""One peer: a state machine that knows no network, no thread and no clock.

It is told what came (`receive`, `accept`, `greeted`), what was asked of it (`file`), and hands out work: a round of
training (`next_round`, `finish_round`) or something that a request needs (`next_work`). The work itself is computed
elsewhere, so a peer goes on answering meanwhile. Links say what each neighbour is still to be sent.

Exactness. Every peer adds each correction to its own model once: model and list of corrections are one file.
A neighbour's model that does not include a correction yet gets it added before it is mixed in. An offer that includes
corrections that are not known here waits until they are. So the mean of all models moves by exactly the correction.
"""

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from logging import getLogger

import numpy as np

from client.peer.admission import Limits, check_fits, may_speak
from client.peer.checks import validate_item, validate_offer
from client.peer.items import Greeting, Item, Kind, Offer, Payload, length, same_dtype
from client.peer.journal import Journal, PeerModel
from client.peer.learner import Learner
from client.peer.links import Link
from client.peer.offers import Offers, believed_round
from client.peer.record import Record, forget_at, granularity_of
from client.peer.seals import NoSeals, Seals, content_of
from unlearning.decentralised import Graph, check_mixing, example_scale, metropolis_weights, mix, mixing_row
from unlearning.errors import AlreadyForgotten, SessionError, UpdateRefused
from unlearning.parameters import Vector
from unlearning.requests import NOTHING, Forget, Granularity, Target

_log = getLogger(__name__)

_MODEL_FACTOR = 10.0
"""A neighbour's model may be so many times as long as the own one, the start or √d, whichever is longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRules:
    """What all peers of a federation must agree on.

    rounds: of training; 0 goes on for ever. fine_tuning_rounds: after each deletion, when training has ended.
    shared_curvature: deletions of samples and classes wait for everybody's curvature, too.
    weighs_examples: every example counts the same; else every peer does.
    mixes_first: a round's training begins at the mixture of models, as more than one step needs (`local_move`).
    limits: what one peer may bring to the others. count_factor: see `Record`.
    """

    rounds: int = 0
    fine_tuning_rounds: int = 1
    shared_curvature: bool = False
    weighs_examples: bool = True
    mixes_first: bool = False
    limits: Limits = field(default_factory=Limits)
    count_factor: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round's local training, to be computed: from `parameters` (d,), without what is forgotten."""

    number: int
    parameters: Vector
    without: Forget
    scale: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where others reach a peer, and how it proves what it says."""

    address: str = ""
    seals: Seals = field(default_factory=NoSeals)


class Peer:
    """The peer `name`.

    start: the untrained model (d,), the same at every peer.

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
        self._items: dict[str, Item] = {}
        self.record = Record(graph, self._items, rules.count_factor)
        self._targets = journal.targets()
        self._model = journal.model() or PeerModel(round=0, vector=start)
        self._start_length = max(length(start), math.sqrt(start.size))
        self._has_moved = self._model.round > 0
        self._offers = Offers()
        self._last_round: Offer | None = None
        self._links: dict[str, Link] = {}
        self._graph = self._contacts = graph
        self._regraph()
        self._restore()
        self._catch_up()
        member = Item(
            kind=Kind.MEMBER,
            origin=name,
            values={
                "address": self._place.address,
                "neighbours": list(graph.neighbours(name)),
                "num_examples": learner.count(Forget(everything=True), outside=NOTHING),
            },
        )
        self.receive(member)

    def _restore(self) -> None:
        """Take what the journal has. What does not fit is moved aside: nothing that came may keep a peer down."""
        for item in self._journal.items():
            try:
                self._check(item, is_kept=True)
            except Exception as exc:  # noqa: BLE001 - whatever it is, the peer must start
                where = self._journal.quarantine(item)
                stays = " Its correction stays in the model." if item.id in self._model.applied else ""
                _log.error("%.200s was moved to %s, for it does not fit: %s%s", item.id, where, exc, stays)
                continue
            if item.origin == self.name and item.seal is None and self._lacks_seal(item):
                item = self._place.seals.seal(item)
                self._journal.put(item)
            self._items[item.id] = item
        self._regraph()

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
        for request_id, target in self._targets.items():
            # its request may be lost or moved aside; the promise is not
            if not self.record.has(Kind.REQUEST, self.name, request_id):
                total |= target
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

        sender: whose connection brought it; empty for what this peer says itself.

        Raises:
            SessionError, UpdateRefused: it cannot be what it says, does not fit, or is not its origin's.
        """
        known = self._items.get(item.id)
        if known is None:
            if not sender and item.origin == self.name:
                item = self._place.seals.seal(item)
            self._check(item)
            if item.kind is Kind.STATISTICS and self._is_over(item.subject):
                item = replace(item, vector=None)  # too late to be of use
        else:
            item = self._proven(known, item) if sender else known
        if item is not known:
            self._journal.put(item)
            self._items[item.id] = item
            for link in self._links.values():
                if link.pending is not None and self._is_whole(item):
                    link.pending[item.id] = None
        from_link = self._links.get(sender)
        if from_link is not None and from_link.pending is not None:
            from_link.pending.pop(item.id, None)  # who sent it has it
        if known is None:
            self._learn(item)
        return known is None

    def _check(self, item: Item, *, is_kept: bool = False) -> None:
        """Refuse what cannot be, is not its origin's, or does not fit. is_kept: it was in the journal."""
        limits = self.rules.limits
        validate_item(item, self._model.vector.size, shares_matrices=limits.shares_matrices)
        if item.seal is not None or not is_kept:  # journals of version 0.1 have no seals
            self._place.seals.check(item)
        check_fits(item, self.record, limits, is_applied=is_kept and item.id in self._model.applied)

    def _proven(self, known: Item, item: Item) -> Item:
        """What is known already, or the same with the seal that it lacks.

        Raises:
            SessionError: the origin signed something else under this id.
        """
        old, new, seals = known.seal, item.seal, self._place.seals
        if not seals.is_required or new is None:
            return known
        is_same = dict(known.values) == dict(item.values) and new.content in (content_of(known), "")
        if is_same and (old is not None or not self._lacks_seal(known)):
            return known
        validate_item(item, self._model.vector.size)
        seals.check(item)
        if not is_same:
            raise SessionError(f"Peer {item.origin!r:.60} has said two different things as {item.id!r:.200}.")
        return item

    def _lacks_seal(self, item: Item) -> bool:
        """Whether it came before items were signed, and others may still need it."""
        is_past = item.kind is Kind.STATISTICS and self._is_over(item.subject)
        return item.seal is None and self._place.seals.is_required and not is_past

    def _is_whole(self, item: Item) -> bool:
        """Whether others can take it: with its seal, and with the vector that the seal speaks of."""
        if not self._place.seals.is_required:
            return True
        return item.seal is not None and bool(item.seal.content) == (item.vector is not None)

    def _is_over(self, subject: str) -> bool:
        """Whether the request has its correction, so that nobody needs curvatures any more."""
        return any(
            granularity_of(request) is not Granularity.CLASS and self.record.is_corrected(request)
            for request in self.record.of(Kind.REQUEST, subject)
        )

    def _learn(self, item: Item) -> None:
        """Draw the consequences of a new item."""
        if item.values.get("leaves") or (item.kind is Kind.MEMBER and self._is_news(item)):
            self._regraph()
        if item.kind is Kind.CORRECTION:
            self._catch_up()
            self._slim(item.subject)

    def admits(self, name: str) -> bool:
        """Whether this peer listens to the one of that name: a member, or who may become one."""
        return may_speak(name, self.record, self.rules.limits)

    def accept(self, offer: Offer) -> None:
        """Take a neighbour's model for a round; what others send is nothing to this peer.

        A peer without any round behind it that meets a federation that has trained takes over its model: one that
        two neighbours have outdone, or that of its only neighbour.

        Raises:
            SessionError, UpdateRefused: it cannot be mixed.
        """
        validate_offer(offer, self._model.vector.size)
        neighbours = self._graph.neighbours(self.name)
        if offer.sender not in neighbours:
            return
        longest = _MODEL_FACTOR * max(self._start_length, length(self._model.vector))
        if length(offer.vector) > longest:
            raise UpdateRefused(
                f"The model of {offer.sender!r:.60} has the norm {length(offer.vector):.4g}, more than {longest:.4g}, "
                f"which is {_MODEL_FACTOR:g} times the own model's."
            )
        self._offers.keep(offer)
        if not self._has_moved:
            later = max(2, self._model.round + 1)
            found = self._offers.usable_offers(neighbours, later, self._known_corrections())
            if len(found) >= min(2, len(neighbours)):
                self._take_over(sorted(found.values(), key=lambda one: one.round)[-2:][0])

    def _take_over(self, offer: Offer) -> None:
        vector = same_dtype(offer.vector, self._model.vector)
        self._keep(PeerModel(round=int(min(offer.round, self._last())), vector=vector, applied=offer.applied))
        self._catch_up()
        self._publish()

    def greeted(self, greeting: Greeting) -> frozenset[str]:
        """A neighbour has connected: the ids of all items here. A new process is sent the newest models again."""
        if greeting.is_new and greeting.sender in self._links:
            self._queue_recent(self._links[greeting.sender])
        return frozenset(item_id for item_id, item in self._items.items() if not self._lacks_seal(item))

    def offer(self) -> Offer:
        """The model for neighbours."""
        model = self._model
        return Offer(sender=self.name, round=model.round, vector=model.vector, applied=model.applied)

    def next_payload(self, to: str) -> Payload | None:
        """What `to` is to be sent next; items come before models. None: it has everything."""
        link = self._links.setdefault(to, Link())
        if link.pending is None:
            return Greeting(self.name, is_new=not link.has_met)
        if link.pending:
            item = self._items[next(iter(link.pending))]
            if self._is_whole(item):
                return item
            link.pending.pop(item.id)
            return self.next_payload(to)
        return link.offers[0] if link.offers else None

    def delivered(self, to: str, payload: Payload, known: frozenset[str] = frozenset()) -> None:
        """`to` has confirmed the payload; for a greeting, with the ids that it knows."""
        link = self._links.setdefault(to, Link())
        if isinstance(payload, Greeting):
            link.pending = dict.fromkeys(
                item_id
                for item_id, item in self._items.items()
                if item_id not in known and self._is_whole(item)
            )
            if not link.has_met:
                self._queue_recent(link)
            link.has_met = True
        elif isinstance(payload, Item):
            if link.pending is not None:
                link.pending.pop(payload.id, None)
        else:
            link.mark_sent(payload)

    def broke(self, to: str) -> None:
        """`to` could not be reached: begin with a greeting again, since it may have restarted."""
        self._links.setdefault(to, Link()).pending = None

    def waits_for(self) -> list[str]:
        """Whose number of examples is not known yet; training begins when all are."""
        counts = self.record.counts()
        return [peer for peer in self._graph.nodes if peer not in counts and not self._offers.is_silent(peer)]

    def missing(self) -> list[str]:
        """Whom the next round waits for: members that have said nothing yet, then neighbours without a model for it."""
        if self.has_left or self._has_ended():
            return []
        usable = self._usable()
        return self.waits_for() or [
            name
            for name in self._graph.neighbours(self.name)
            if name not in usable and not self._offers.is_silent(name)
        ]

    def patience(self, names: Iterable[str]) -> float:
        """The share of the configured wait that is due to these peers: see `offers`."""
        return self._offers.patience(names)

    def leave_out(self, names: Iterable[str]) -> None:
        """Go on without these peers until they send a newer model."""
        self._offers.leave_out(names)

    def next_round(self, *, patient: bool = True) -> Round | None:
        """The round to train; None while it has ended or somebody is missing. Impatient: who is missing is left out."""
        if self.has_left or self._has_ended() or (patient and self.missing()):
            return None
        while missing := self.missing():
            self.leave_out(missing)
        counts = self.record.counts()
        total = sum(counts.get(peer, 0) for peer in self._graph.nodes)
        scale = 1.0
        if self.rules.weighs_examples and total:
            scale = example_scale(counts[self.name], total, len(self._graph.nodes))
        parameters = self._mixed() if self.rules.mixes_first else self._model.vector
        return Round(number=self._model.round, parameters=parameters, without=self.forgotten(), scale=scale)

    def _has_ended(self) -> bool:
        return self._model.round >= self._last()

    def _last(self) -> float:
        """How many rounds there are to be; infinite where training goes on for ever."""
        rules = self.rules
        if not rules.rounds:
            return math.inf
        return rules.rounds + rules.fine_tuning_rounds * self.record.num_corrected()

    def finish_round(self, begun: Round, move: Vector) -> None:
        """Mix, add the move (d,), and offer the result. Nothing happens if the round was overtaken.

        Mixed again where the round began with that: corrections may have come since.
        """
        model = self._model
        if begun.number != model.round or self.has_left:
            return
        vector = self._mixed() + move
        self._last_round, self._has_moved = self.offer(), True
        after = int(
            min(believed_round(self._usable().values(), model.round) + 1, max(self._last(), model.round + 1))
        )
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
        return mix(self.name, mixing_row(self._graph, self.name), models)

    def _usable(self) -> dict[str, Offer]:
        """The neighbours' models for this round."""
        neighbours = self._graph.neighbours(self.name)
        return self._offers.usable_offers(neighbours, self._model.round, self._known_corrections())

    def _known_corrections(self) -> Set[str]:
        """What a model may include without being strange: what is known, and what the own model has."""
        return self._items.keys() | self._model.applied

    def _corrected(self, offer: Offer) -> Vector:
        """The offer's model with the corrections that this peer's model has and it has not."""
        missing = sorted(self._model.applied - offer.applied)
        return _added(offer.vector, [self._items[item_id] for item_id in missing if item_id in self._items])

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
        self._offers.keep_only(self._graph.neighbours(self.name))

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
