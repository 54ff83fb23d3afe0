"""The own model and the neighbours', each with the corrections that it includes, and how they are mixed."""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from client.peer.gossip import GossipMessage, Kind, ModelOffer, length
from client.peer.journal import Journal, PeerModel
from client.peer.known_items import KnownItems
from client.peer.offers import Offers, believed_round
from unlearning.decentralised import Graph, mix, mixing_row
from unlearning.errors import UpdateRefused
from unlearning.parameters import Vector

_MODEL_FACTOR = 10.0
"""A neighbour's model may be so many times as long as the own one, the start or √d, whichever is longest."""


class Models:
    """The models of the peer `name` and of its neighbours; the own one is durable.

    start: the untrained model (d,). offers: the neighbours'. has_moved: whether the own one has a round behind it.
    buffers: as in `PeerRules`.
    """

    def __init__(
        self, name: str, journal: Journal, items: KnownItems, start: Vector, buffers: Sequence[int] = ()
    ) -> None:
        self._name, self._journal, self._items, self._buffers = name, journal, items, list(buffers)
        self.own = journal.model() or PeerModel(round=0, vector=start)
        self.offers = Offers()
        self.has_moved = self.own.round > 0
        self._start_length = max(self._length(start), math.sqrt(start.size))
        self._last_round: ModelOffer | None = None

    def offer(self) -> ModelOffer:
        """Return the own model for neighbours."""
        return ModelOffer(
            sender=self._name, round=self.own.round, vector=self.own.vector, applied=self.own.applied
        )

    def recent(self) -> list[ModelOffer]:
        """Return the model, and that of the round before, which a neighbour that restarted may need to keep step."""
        return [self.offer(), *([] if self._last_round is None else [self._last_round])]

    def take(self, offer: ModelOffer) -> None:
        """Keep a neighbour's model.

        Raises:
            UpdateRefused: it is too long.
        """
        longest = _MODEL_FACTOR * max(self._start_length, self._length(self.own.vector))
        if (norm := self._length(offer.vector)) > longest:
            raise UpdateRefused(
                f"The model of {offer.sender!r:.60} has the norm {norm:.4g}, more than {longest:.4g}, "
                f"which is {_MODEL_FACTOR:g} times the own model's."
            )
        self.offers.keep(offer)

    def take_over(self, offer: ModelOffer, number: float) -> None:
        """Go on from a neighbour's model, as after the round `number`."""
        vector = offer.vector.astype(self.own.vector.dtype, copy=False)
        self.keep(PeerModel(round=int(number), vector=vector, applied=offer.applied))
        self.catch_up()

    def usable_offers(self, neighbours: Iterable[str], number: int | None = None) -> dict[str, ModelOffer]:
        """Return the neighbours' models for the round `number`, or the present one."""
        known = self._known_corrections()
        return self.offers.usable_offers(neighbours, self.own.round if number is None else number, known)

    def advance(self, graph: Graph, move: Vector, last: float) -> None:
        """Mix and add the move (d,): one round further, or to the round that is believed. last: of training."""
        own, usable = self.own, self.usable_offers(graph.neighbours(self._name))
        vector = self.mixture(graph) + move
        self._last_round, self.has_moved = self.offer(), True
        after = int(min(believed_round(usable.values(), own.round) + 1, max(last, own.round + 1)))
        has_trained = own.has_trained or bool(np.any(move))
        self.keep(
            replace(
                own, round=after, vector=vector.astype(own.vector.dtype, copy=False), has_trained=has_trained
            )
        )

    def mixture(self, graph: Graph) -> Vector:
        """Return the own model and the neighbours', mixed, with every correction that the own one has."""
        usable = self.usable_offers(graph.neighbours(self._name))
        models: Mapping[str, Vector] = {
            self._name: self.own.vector,
            **{sender: self._correct(offer) for sender, offer in usable.items()},
        }
        return mix(self._name, mixing_row(graph, self._name), models)

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

    def _known_corrections(self) -> Set[str]:
        """Return what a model may include without being strange: what is known, and what the own model has."""
        return self._items.by_id.keys() | self.own.applied

    def _correct(self, offer: ModelOffer) -> Vector:
        """Return the offer's model with the corrections that this peer's model has and it has not."""
        by_id = self._items.by_id
        missing = sorted(self.own.applied - offer.applied)
        return _add_corrections(offer.vector, [by_id[item_id] for item_id in missing if item_id in by_id])

    def _length(self, vector: Vector) -> float:
        """Compute the norm of parameters."""
        return length(np.delete(vector, self._buffers))


def _add_corrections(vector: Vector, corrections: list[GossipMessage]) -> Vector:
    """Return `vector` (d,) plus weight times vector of each correction that has one."""
    total = vector.astype(np.float64)
    for item in corrections:
        if item.vector is not None:
            total += float(item.values["weight"]) * item.vector.astype(np.float64)
    return total.astype(vector.dtype, copy=False)
