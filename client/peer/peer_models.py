"""The own model and the neighbours', each with the corrections that it includes, and how they are mixed.

A neighbour may claim any round. The own one moves on by one, and further only to a round that two neighbours have
reached, so that a peer that was away catches up and one liar moves no peer. A neighbour that is silent for a whole
wait is left out, and waited for again when it sends a model of a later round than before; each time it is silent again
the wait is half as long, down to a sixty-fourth.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from client.peer.gossip import GossipMessage, Kind, ModelOffer
from client.peer.journal import Journal, PeerModel
from client.peer.known_items import KnownItems
from unlearning.decentralised.dpsgd import mix
from unlearning.decentralised.graphs import Graph
from unlearning.decentralised.mixing import mixing_row
from unlearning.errors import UpdateRefused
from unlearning.parameters import Vector, norm

OFFERS_KEPT = 2
"""In lockstep a neighbour is one round ahead at most."""
_MOST_HALVINGS = 6
_MODEL_FACTOR = 10.0
"""A neighbour's model may be longer than the own one, the start and √d by this factor at most."""


class Models:
    """The models of the peer `name` and of its neighbours on `graph`; the own one is durable.

    start: the untrained model (d,). has_moved: whether the own one has a round behind it. buffers: as in `PeerRules`.
    """

    def __init__(
        self, name: str, journal: Journal, items: KnownItems, start: Vector, buffers: Sequence[int] = ()
    ) -> None:
        self._name, self._journal, self._items, self._buffers = name, journal, items, list(buffers)
        self.own = journal.model or PeerModel(round=0, vector=start)
        self.has_moved = self.own.round > 0
        self._graph = items.record.initial
        self._offers: dict[str, list[ModelOffer]] = {}
        self._silent: set[str] = set()
        self._absences: dict[str, int] = {}
        self._start_length = max(self._length(start), math.sqrt(start.size))
        self._last_round: ModelOffer | None = None

    def move_to(self, graph: Graph) -> None:
        """Mix along this graph from now on; drop the models of peers that are no neighbours on it."""
        self._graph = graph
        for gone in self._offers.keys() - set(graph.neighbours(self._name)):
            del self._offers[gone]

    def offer(self) -> ModelOffer:
        """Return the own model for neighbours."""
        return ModelOffer(
            sender=self._name, round=self.own.round, vector=self.own.vector, applied=self.own.applied
        )

    def recent(self) -> list[ModelOffer]:
        """Return the model, and that of the round before, which a neighbour that restarted may need to keep step."""
        return [self.offer(), *([] if self._last_round is None else [self._last_round])]

    def take(self, offer: ModelOffer) -> None:
        """Keep a neighbour's model, of each neighbour those of the latest rounds.

        Raises:
            UpdateRefused: it is too long.
        """
        longest = _MODEL_FACTOR * max(self._start_length, self._length(self.own.vector))
        if (norm := self._length(offer.vector)) > longest:
            raise UpdateRefused(
                f"The model of {offer.sender!r:.60} has the norm {norm:.4g}, more than {longest:.4g}, "
                f"which is {_MODEL_FACTOR:g} times the own model's.",
                code="model-too-long",
                norm=norm,
            )
        before = self._offers.get(offer.sender, [])
        offers = {one.round: one for one in (*before, offer)}
        self._offers[offer.sender] = [offers[number] for number in sorted(offers)][-OFFERS_KEPT:]
        if all(offer.round > one.round for one in before):
            self._silent.discard(offer.sender)  # even if it is behind: a peer that is waited for catches up

    def take_over(self, offer: ModelOffer, number: float) -> None:
        """Go on from a neighbour's model, as after the round `number`."""
        vector = offer.vector.astype(self.own.vector.dtype, copy=False)
        self.keep(PeerModel(round=int(number), vector=vector, applied=offer.applied))
        self.catch_up()

    def usable_offers(self, number: int | None = None) -> dict[str, ModelOffer]:
        """Return of each neighbour the earliest model that is not older than round `number`, or the present one.

        A model that includes corrections that are not known here is not usable yet.
        """
        first = self.own.round if number is None else number
        known = self._items.by_id.keys() | self.own.applied
        usable: dict[str, ModelOffer] = {}
        for sender in self._graph.neighbours(self._name):
            fresh = [
                one for one in self._offers.get(sender, ()) if one.round >= first and one.applied <= known
            ]
            if fresh:
                usable[sender] = min(fresh, key=lambda offer: offer.round)
        return usable

    def leave_out(self, names: Iterable[str]) -> None:
        """Go on without these peers, which were silent for a whole wait, until they send a newer model."""
        for name in set(names) - self._silent:
            self._silent.add(name)
            self._absences[name] = self._absences.get(name, 0) + 1

    def is_silent(self, name: str) -> bool:
        """Return whether this peer is not waited for."""
        return name in self._silent

    def patience(self, names: Iterable[str]) -> float:
        """Return the share of the configured wait that these peers together are still waited for."""
        return max((0.5 ** min(self._absences.get(name, 0), _MOST_HALVINGS) for name in names), default=1.0)

    def advance(self, move: Vector, last: float) -> None:
        """Mix and add the move (d,): one round further, or to the round that is believed. last: of training."""
        own = self.own
        rounds = sorted((offer.round for offer in self.usable_offers().values()), reverse=True)
        believed = max([own.round, *rounds[1:2]])  # two neighbours have reached it
        vector = self.mixture() + move
        self._last_round, self.has_moved = self.offer(), True
        self.keep(
            replace(
                own,
                round=int(min(believed + 1, max(last, own.round + 1))),
                vector=vector.astype(own.vector.dtype, copy=False),
                has_trained=own.has_trained or bool(np.any(move)),
            )
        )

    def mixture(self) -> Vector:
        """Return the own model and the neighbours', mixed, with every correction that the own one has."""
        models: Mapping[str, Vector] = {
            self._name: self.own.vector,
            **{sender: self._correct(offer) for sender, offer in self.usable_offers().items()},
        }
        return mix(self._name, mixing_row(self._graph, self._name), models)

    def catch_up(self) -> None:
        """Add the corrections that are known and not in the model."""
        own = self.own
        missing = [item for item in self._items.record.of(Kind.CORRECTION) if item.id not in own.applied]
        if missing:
            applied = own.applied | {item.id for item in missing}
            self.keep(replace(own, vector=_add_corrections(own.vector, missing), applied=applied))

    def keep(self, model: PeerModel) -> None:
        """Make this the own model; durable when this returns."""
        self._journal.put_model(model)
        self.own = model

    def _correct(self, offer: ModelOffer) -> Vector:
        """Return the offer's model with the corrections that this peer's model has and it has not."""
        by_id = self._items.by_id
        missing = sorted(self.own.applied - offer.applied)
        return _add_corrections(offer.vector, [by_id[item_id] for item_id in missing if item_id in by_id])

    def _length(self, vector: Vector) -> float:
        """Compute the norm of parameters."""
        return norm(np.delete(vector, self._buffers))


def _add_corrections(vector: Vector, corrections: list[GossipMessage]) -> Vector:
    """Return `vector` (d,) plus weight times vector of each correction that has one."""
    total = vector.astype(np.float64)
    for item in corrections:
        if item.vector is not None:
            total += float(item.values["weight"]) * item.vector.astype(np.float64)
    return total.astype(vector.dtype, copy=False)
