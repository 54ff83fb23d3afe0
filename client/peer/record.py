"""What the items that a peer has say: who is a member, what was requested, what is still owed.

Everything here follows from the items alone, not from their order as far as others are concerned, so peers that have
the same items agree, and a peer that restarts knows again what it owes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from client.peer.gossip import GossipMessage, Kind
from unlearning.decentralised import Graph, from_edges
from unlearning.parameters import Vector
from unlearning.requests import NOTHING, Forget, Granularity


@dataclass(frozen=True, slots=True)
class Record:
    """The items by id, in the order of arrival, and the graph of the configuration.

    count_factor: a declared number of examples counts up to so many times the median of all declared ones.
    """

    initial: Graph
    items: Mapping[str, GossipMessage]
    count_factor: float = math.inf

    def of(self, kind: Kind, subject: str | None = None) -> Iterable[GossipMessage]:
        """Return the items of a kind, about one request where it is named."""
        return (
            item
            for item in self.items.values()
            if item.kind is kind and (subject is None or item.subject == subject)
        )

    def has(self, kind: Kind, origin: str, subject: str) -> bool:
        """Return whether `origin` has said this about the request."""
        return GossipMessage(kind=kind, origin=origin, subject=subject).id in self.items

    def graph(self, *, including: str = "") -> Graph:
        """Return who is beside whom: the configuration's graph, those who joined, without those who left.

        `including`: a peer that is counted even if it has left.
        """
        members = list(self.of(Kind.MEMBER))
        nodes = {*self.initial.nodes, *(item.origin for item in members)}
        named = ((item.origin, other) for item in members for other in item.values["neighbours"])
        graph = from_edges(nodes, [*self.initial.edges, *(edge for edge in named if edge[1] in nodes)])
        gone = {item.origin for item in self.of(Kind.CORRECTION) if item.values.get("leaves")}
        for peer in sorted(gone - {including}):
            graph = graph.without(peer)
        return graph

    def addresses(self) -> dict[str, str]:
        """Return where peers said that they can be reached."""
        return {item.origin: item.values["address"] for item in self.of(Kind.MEMBER)}

    def declared_counts(self, *, capped: bool = True) -> dict[str, int]:
        """Return how many examples each peer said it has, deleted ones too; `capped` as the others count them."""
        counts = {item.origin: int(item.values["num_examples"]) for item in self.of(Kind.MEMBER)}
        positive = [count for count in counts.values() if count]
        if not capped or not positive or math.isinf(self.count_factor):
            return counts
        most = math.ceil(self.count_factor * median(positive))
        return {name: min(count, most) for name, count in counts.items()}

    def counts(self, *, before: str = "") -> dict[str, int]:
        """Return how many examples each peer trains on; those that the request `before` takes out are still counted."""
        counts = self.declared_counts()
        for item in self.of(Kind.CORRECTION):
            if item.origin in counts and item.subject != before:
                counts[item.origin] = max(0, counts[item.origin] - int(item.values["deleted"]))
        return counts

    def num_corrected(self) -> int:
        """Return how many requests have at least one correction."""
        return len({item.subject for item in self.of(Kind.CORRECTION)})

    def is_corrected(self, request: GossipMessage) -> bool:
        """Return whether the origin of the request has sent its correction."""
        return self.has(Kind.CORRECTION, request.origin, request.subject)


def granularity_of(request: GossipMessage) -> Granularity:
    """Return what kind of thing the request forgets."""
    return Granularity(request.values["granularity"])


def needs_statistics(request: GossipMessage) -> bool:
    """Return whether other peers' numbers or curvature are needed before the request can be corrected."""
    return bool(request.values["curvature"]) or granularity_of(request) is not Granularity.SAMPLE


def forget_at(peer: str, request: GossipMessage, targets: Mapping[str, Forget]) -> Forget:
    """Return what the request forgets at `peer`, whose own targets these are."""
    if granularity_of(request) is Granularity.CLASS:
        return Forget(classes=frozenset({int(request.values["class_label"])}))
    return targets.get(request.subject, NOTHING) if request.origin == peer else NOTHING


def owes_correction(peer: str, request: GossipMessage) -> bool:
    """Return whether a correction of this request is `peer`'s to make: its own, and for a class everybody's."""
    return request.origin == peer or granularity_of(request) is Granularity.CLASS


def owes_statistics(peer: str, request: GossipMessage, record: Record) -> bool:
    """Return whether `peer` has still to send its numbers for this request."""
    if not needs_statistics(request) or record.has(Kind.STATISTICS, peer, request.subject):
        return False
    if granularity_of(request) is Granularity.CLASS:
        return True
    leaves = granularity_of(request) is Granularity.CLIENT and request.origin == peer
    return not leaves and not record.is_corrected(request)


def curvatures_for(request: GossipMessage, record: Record) -> dict[str, tuple[int, Vector]]:
    """Return the curvatures that came for the request, with their numbers of examples, by peer."""
    return {
        item.origin: (int(item.values["num_examples"]), item.vector)
        for item in record.of(Kind.STATISTICS, request.subject)
        if item.vector is not None and item.values["num_examples"]
    }
