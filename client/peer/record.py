"""What the items that a peer has say, by the rules of its federation: members, requests, what is still owed, (ε, δ).

Everything here follows from the items alone, not from their order as far as others are concerned, so peers that have
the same items agree, and a peer that restarts knows again what it owes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from client.peer.gossip import RELEASE, GossipMessage, Kind
from unlearning.certified.privacy_accountant import Account, AccountedRelease
from unlearning.certified.sensitivity import Constants
from unlearning.decentralised.graphs import Graph, from_edges
from unlearning.parameters import Vector
from unlearning.requests import NOTHING, Forget, Granularity
from unlearning.runtime.json_codec import from_plain

_BUDGET = ("num_releases", "spent_epsilon", "spent_delta", "delta", "budget_epsilon", "basis", "unmet")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRules:
    """The rules that all peers of a federation must agree on, and the bounds on what one peer may bring to the others.

    rounds: of training; 0 for no end. fine_tuning_rounds: after each deletion, when training has ended.
    shared_curvature: deletions of samples and classes wait for every peer's curvature, too.
    weighs_examples: every example counts the same; else every peer does.
    mixes_first: a round's training begins at the mixture of models, as more than one step needs (`local_move`).
    buffers: where the model's vector holds statistics, which are no part of its length.
    members: who may join beside the configured peers. max_neighbours: of one joiner. max_requests: of one peer, ever.
    class_requests_from: who may request that a class is forgotten; empty for every peer.
    correction_norm: ‖w x^Δ‖ of one correction. constants: L and λ, None where they are not known.
    shares_matrices: whether curvatures are d² numbers instead of d.
    count_factor: a declared number of examples counts up to this multiple of the median of all declared ones.
    """

    rounds: int = 0
    fine_tuning_rounds: int = 1
    shared_curvature: bool = False
    weighs_examples: bool = True
    mixes_first: bool = False
    buffers: tuple[int, ...] = ()
    members: frozenset[str] = frozenset()
    max_neighbours: int = 32
    max_requests: int = 1_000
    class_requests_from: frozenset[str] = frozenset()
    correction_norm: float = math.inf
    constants: Constants | None = None
    shares_matrices: bool = True
    count_factor: float = 10.0


@dataclass(frozen=True, slots=True)
class Record:
    """The items by id, in the order of arrival, the graph of the configuration, and its rules."""

    initial: Graph
    items: Mapping[str, GossipMessage]
    rules: PeerRules

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

    def admits(self, name: str) -> bool:
        """Return whether the peer of this name belongs to the federation, or may join it."""
        return name in self.initial.nodes or name in self.rules.members

    def graph(self, *, including: str = "") -> Graph:
        """Return the configuration's graph, with those who joined and without those who left.

        including: a peer that is counted even if it has left.
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
        if not capped or not positive or math.isinf(self.rules.count_factor):
            return counts
        most = math.ceil(self.rules.count_factor * median(positive))
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

    def owes_statistics(self, peer: str, request: GossipMessage) -> bool:
        """Return whether `peer` has still to send its numbers for this request."""
        if not needs_statistics(request) or self.has(Kind.STATISTICS, peer, request.subject):
            return False
        if granularity_of(request) is Granularity.CLASS:
            return True
        leaves = granularity_of(request) is Granularity.CLIENT and request.origin == peer
        return not leaves and not self.is_corrected(request)

    def curvatures_for(self, request: GossipMessage) -> dict[str, tuple[int, Vector]]:
        """Return the curvatures that came for the request, with their numbers of examples, by peer."""
        return {
            item.origin: (int(item.values["num_examples"]), item.vector)
            for item in self.of(Kind.STATISTICS, request.subject)
            if item.vector is not None and item.values["num_examples"]
        }

    def spent_budget(self, *, delta: float, epsilon: float) -> dict[str, Any] | None:
        """Return how much of (`epsilon`, `delta`) the known corrections with noise have used up; None without noise.

        Each correction carries the release that its noise makes, so every peer can add up those that it knows of.
        Corrections of one request add up too: a reader of all models has seen all of them.
        """
        releases = [
            from_plain(AccountedRelease, account[RELEASE], exactly=True)
            for request in self.of(Kind.REQUEST)
            for correction in self.of(Kind.CORRECTION, request.subject)
            if RELEASE in (account := correction.values.get("account", {}))
        ]
        if not releases:
            return None
        values = Account(releases=tuple(releases), delta=delta, epsilon=epsilon or None).values()
        return {name: values[name] for name in _BUDGET}


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
    """Return whether a correction of this request is `peer`'s to make: its own, and for a class every peer's."""
    return request.origin == peer or granularity_of(request) is Granularity.CLASS
