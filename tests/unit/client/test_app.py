import pickle

from client.app import app
from strategies.in_process_grid import InProcessGrid
from strategies.roster import Roster


def test_the_app_travels_to_another_process_by_what_it_is_made_of() -> None:
    """A simulation hands it to a Ray process with every message: its code stays where it is installed."""
    written = pickle.dumps(app)
    assert len(written) < 500
    there = InProcessGrid(pickle.loads(written), [{"client-id": "a"}], {})
    assert list(Roster().online(there)) == ["a"]
