"""Who talks to whom: undirected graphs of peers, and how they change when one joins or leaves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from unlearning.errors import ConfigurationError

_ATTEMPTS = 1_000


@dataclass(frozen=True, slots=True)
class Graph:
    """Peers by id, sorted, and undirected edges, each as (smaller id, larger id).

    Raises:
        ConfigurationError: an edge names an unknown peer, or a peer twice; lists all.
    """

    nodes: tuple[str, ...]
    edges: frozenset[tuple[str, str]]

    def __post_init__(self) -> None:
        known = set(self.nodes)
        problems = [
            f"The edge {one} - {other} must join two different peers that exist."
            for one, other in sorted(self.edges)
            if one == other or not {one, other} <= known
        ]
        if len(known) != len(self.nodes) or list(self.nodes) != sorted(self.nodes):
            problems.append("The peers of a graph must be sorted and each named once.")
        if problems:
            raise ConfigurationError(problems)

    def neighbours(self, node: str) -> tuple[str, ...]:
        """Return the peers that `node` has an edge to, sorted; none where it is not in the graph."""
        return tuple(
            sorted({other for edge in self.edges if node in edge for other in edge if other != node})
        )

    def degree(self, node: str) -> int:
        """Return how many neighbours `node` has."""
        return len(self.neighbours(node))

    @property
    def is_connected(self) -> bool:
        """Whether a message reaches every peer from every other one."""
        return len(self.components()) <= 1

    def components(self) -> list[tuple[str, ...]]:
        """Return the connected parts, each sorted, in the order of their smallest ids."""
        near: dict[str, set[str]] = {node: set() for node in self.nodes}
        for one, other in self.edges:
            near[one].add(other)
            near[other].add(one)
        seen: set[str] = set()
        parts: list[tuple[str, ...]] = []
        for node in self.nodes:
            if node in seen:
                continue
            part, frontier = {node}, [node]
            while frontier:
                new = near[frontier.pop()] - part
                part |= new
                frontier.extend(new)
            seen |= part
            parts.append(tuple(sorted(part)))
        return parts

    def join(self, node: str, neighbours: Iterable[str]) -> "Graph":
        """Return the graph with `node` and its edges; neighbours that are not in the graph are left out."""
        nodes = {*self.nodes, node}
        edges = {_edge(node, other) for other in neighbours if other in nodes and other != node}
        return Graph(tuple(sorted(nodes)), self.edges | edges)

    def without(self, node: str) -> "Graph":
        """Return the graph that `node` has left, kept in one piece.

        Where the rest falls apart, the smallest ids of its parts are joined in a row. Every peer that knows the
        same members computes the same graph.
        """
        rest = Graph(
            tuple(other for other in self.nodes if other != node),
            frozenset(edge for edge in self.edges if node not in edge),
        )
        parts = rest.components()
        if len(parts) <= len(self.components()):
            return rest
        heads = [part[0] for part in parts]
        bridges = {_edge(one, other) for one, other in pairwise(heads)}
        return Graph(rest.nodes, rest.edges | bridges)


def ring(nodes: Iterable[str]) -> Graph:
    """Return each peer beside the next one in the order of ids, the last beside the first."""
    order = sorted(nodes)
    return from_edges(order, [(one, order[(at + 1) % len(order)]) for at, one in enumerate(order)])


def complete(nodes: Iterable[str]) -> Graph:
    """Return every peer beside every other one."""
    order = sorted(nodes)
    return from_edges(order, [(one, other) for at, one in enumerate(order) for other in order[at + 1 :]])


def erdos_renyi(nodes: Iterable[str], probability: float, generator: np.random.Generator) -> Graph:
    """Return each pair of peers is an edge with this probability; drawn again until the graph is connected.

    Raises:
        ConfigurationError: the probability is not between 0 and 1, or no connected graph was drawn.
    """
    order = sorted(nodes)
    if not 0 < probability <= 1:
        raise ConfigurationError([f"probability must be above 0 and at most 1, got {probability}."])
    first, second = np.triu_indices(len(order), k=1)
    for _ in range(_ATTEMPTS):
        is_edge = generator.random(first.size) < probability
        pairs = zip(first[is_edge], second[is_edge], strict=True)
        graph = from_edges(order, [(order[one], order[other]) for one, other in pairs])
        if graph.is_connected:
            return graph
    raise ConfigurationError(
        [
            f"No connected graph of {len(order)} peers came out of {_ATTEMPTS} draws with the edge probability "
            f"{probability}. Use a larger one; ln(N)/N = {np.log(len(order)) / len(order):.2g} is where it begins."
        ]
    )


def from_edges(nodes: Iterable[str], edges: Iterable[Sequence[str]]) -> Graph:
    """Return the graph with these edges, given in any order and direction; an edge of a peer to itself is
    dropped.

    Raises:
        ConfigurationError: an edge names an unknown peer; lists all.
    """
    pairs = frozenset(_edge(one, other) for one, other in edges if one != other)
    return Graph(tuple(sorted(set(nodes))), pairs)


def _edge(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
