"""Many kills at random places lose no request, serve none twice, and change no bit of the outcome.

The real server and client code runs in this process. A kill is an exception that nothing catches; it strikes
before or after a durable write, in the middle of one (inside a ledger transaction, between a file's content
and its rename) or at an exchange with clients. Then everything starts again: a new ServerApp, new nodes.
Killing real processes is in tests/integration.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from client.memory import ClientMemory
from server.federation.checkpoints import CheckpointStore
from server.ledger import Ledger, LedgerWriter, chain
from server.ledger.request_store import Requests
from server.report import html_page as page
from strategies.in_process_grid import InProcessGrid
from strategies.settings.run_config import RunSettings
from tests.federation import SMALL, InProcessFederation
from tests.kills import Killed, Killer
from unlearning.parameters import content_hash
from unlearning.requests import Exclusions, Status
from unlearning.runtime import durable_files
from unlearning.tasks import load_site

NUM_CLIENTS = 4
ROUNDS = 3
MOST_PLACES_BETWEEN = 90
"""Places passed before a kill: a dozen kills of each federation. With fewer places most of the time is starts."""
METHODS = ("puf-special", "puf-regular", "not", "gradient-ascent", "retrain", "newton-cg iterations=3")
PLACES: tuple[tuple[object, str], ...] = (
    (CheckpointStore, "save"),
    (CheckpointStore, "erase_older"),
    (Ledger, "acquire_fence"),
    (LedgerWriter, "register_clients"),
    (Requests, "submit"),
    (LedgerWriter, "move"),
    (LedgerWriter, "note"),
    (LedgerWriter, "record_round"),
    (chain, "append"),  # inside a transaction
    (durable_files.os, "fsync"),  # between a file's content and its name
    (ClientMemory, "add_tombstones"),
    (InProcessGrid, "push_messages"),
    (InProcessGrid, "pull_messages"),
)


@pytest.fixture
def killer() -> Iterator[Killer]:
    with pytest.MonkeyPatch.context() as patch:
        # The figures of the reports' pages take half of the time and change nothing that lasts.
        patch.setattr(page, "render_page", lambda data: f"<title>{data.request.id}</title>")
        yield Killer(patch, PLACES)


def script_of(generator: np.random.Generator, settings: RunSettings) -> str:
    """Three requests: two clients leave and one class or some samples go, by any methods, in any round.

    One in eight of the sample requests names samples that do not exist, so it ends as failed.
    """
    leaving = generator.permutation(NUM_CLIENTS)
    ids = load_site(settings.task(), int(leaving[2])).train.ids
    samples = "none" if generator.random() < 1 / 8 else ",".join(generator.choice(ids, 3, replace=False))
    others = (f"class={generator.integers(10)}", f"client={leaving[2]} samples={samples}")
    targets = [f"client={leaving[0]}", f"client={leaving[1]}", str(generator.choice(others))]
    generator.shuffle(targets)
    return "; ".join(
        f"at={generator.integers(ROUNDS)} {target} method={generator.choice(METHODS)}" for target in targets
    )


def run_until_done(one: InProcessFederation, killer: Killer, generator: np.random.Generator) -> int:
    """Run, kill and start again until the federation is done; give the number of kills."""
    for kills in range(500):
        killer.arm(int(generator.integers(1, MOST_PLACES_BETWEEN)))
        try:
            one.run()
        except Killed:
            one.new_grid()
        else:
            return kills
        finally:
            killer.disarm()
    raise AssertionError("The federation gets nowhere.")


def without_ids(exclusions: Exclusions) -> Exclusions:
    """With numbers in place of sample ids, which each federation keeps under a key of its own."""
    clients = {
        client: replace(forget, sample_ids=frozenset(map(str, range(len(forget.sample_ids)))))
        for client, forget in exclusions.clients.items()
    }
    return replace(exclusions, clients=clients)


def survive(make: Callable[..., InProcessFederation], killer: Killer, seed: int) -> Counter[str]:
    """One federation with kills beside the same without; fails where the two differ. Counts its requests and kills."""
    generator = np.random.default_rng(seed)
    settings = {
        **SMALL,
        "rounds": ROUNDS,
        "num_clients": NUM_CLIENTS,
        "max_examples": 200,
        "seed": seed,
    }
    whole = make(name=f"whole-{seed}", **settings)
    script = script_of(generator, whole.settings)
    expected = content_hash(whole.run(requests=script).parameters)
    one = make(name=f"killed-{seed}", **settings, requests=script)
    kills = run_until_done(one, killer, generator)
    about = f"seed {seed}, {kills} kills, {script}"
    state = one.checkpoint()
    assert state is not None
    assert content_hash(state.parameters) == expected, about
    requests = one.ledger.requests.select()
    assert {request.target.describe(): request.status for request in requests} == {
        request.target.describe(): request.status for request in whole.ledger.requests.select()
    }, about
    assert len(requests) == 3, about
    for request in requests:
        moves = [event.to_status for event in one.ledger.events.page(request.id)]
        served = request.status is Status.COMPLETED
        assert served or request.status is Status.FAILED, about
        assert moves.count(Status.COMPLETED) + moves.count(Status.FAILED) == 1, f"{request.id} of {about}"
        assert moves.count(Status.RECOVERING) == int(served), f"{request.id} of {about}"
        assert (one.directory / "reports" / request.id / "report.json").is_file() is served, about
    assert one.ledger.exclusions() == state.exclusions, about
    assert without_ids(state.exclusions) == without_ids(whole.ledger.exclusions()), about
    return Counter(requests=len(requests), kills=kills)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "requests", "kills"),
    [
        pytest.param(range(4), 12, 40, id="dozens"),
        pytest.param(range(4, 18), 42, 160, id="hundreds"),
    ],
)
@pytest.mark.long
def test_kills_at_random_places_change_nothing(federation, killer, seeds, requests, kills):
    """The seeds say how to see a failure again.

    In the gate test_crash_recovery.py and the tests of methods kill at chosen places.
    """
    tally = sum((survive(federation, killer, seed) for seed in seeds), Counter())
    print(tally)
    assert tally["requests"] >= requests
    assert tally["kills"] >= kills
