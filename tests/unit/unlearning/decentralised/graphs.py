"""Random connected graphs for property tests."""

from hypothesis import strategies as st

from unlearning.decentralised.graphs import Graph, from_edges


@st.composite
def connected_graphs(draw: st.DrawFn, most: int = 12) -> Graph:
    """A random tree with random further edges."""
    count = draw(st.integers(2, most))
    edges = [(str(draw(st.integers(0, index - 1))), str(index)) for index in range(1, count)]
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges += [(str(one), str(other)) for one, other in draw(st.lists(pairs, max_size=count))]
    return from_edges([str(index) for index in range(count)], edges)
