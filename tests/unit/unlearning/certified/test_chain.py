"""The whole chain, from training to what is certified, on random federations whose settings change at restarts."""

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.certified.random_federation import RandomFederation


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_what_is_certified_is_never_less_than_the_distance_to_exact_retraining(seed) -> None:
    """Or it is not certified, and says why. `make bench` runs thousands."""
    for stated in RandomFederation.draw(seed).run():
        if stated.is_certified:
            assert stated.delta is not None
            assert stated.distance <= stated.delta
        else:
            assert stated.unmet
