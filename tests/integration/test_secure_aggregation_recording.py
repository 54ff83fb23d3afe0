"""Everything that the server's processes received in a federation with one deletion: no client's part is in it.

All frames of its sessions, and after the run every file of its host: superlink.db, ledger, checkpoints, logs, reports.
The needles are what the clients themselves have worked out. With secure aggregation off the same search finds them.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from tests.integration.conftest import REPOSITORY
from tests.integration.deployments import FrugalDeployment
from tests.waiting import HANGS_S
from unlearning.tasks import TaskSettings, load_site

pytestmark = [pytest.mark.slow, pytest.mark.long]

SITES = {"dataset": "digits", "model": "logistic", "num-clients": 4, "partition": "dirichlet", "alpha": 1.0}
SETTINGS = {
    **SITES,
    "learning-rate": 0.5,
    "rounds": 3,
    "recovery-max-rounds": 1,
    "max-score-loss": 0.0,
    "threshold": 0.5,
    "attack-samples": 200,
    "wait-timeout-s": 120.0,
    "round-timeout-s": 150.0,
}
FEWEST_NUMBERS = 8
"""A needle is so many numbers from an array's middle: 64 bytes of float64 or of the ring, 32 of float32."""


@dataclass(frozen=True)
class Recording:
    """What the clients had, and what the server's host has; `worked` are their answers, `added` what they masked."""

    received: bytes
    files: dict[str, bytes]
    worked: list[dict[str, Any]]
    added: list[dict[str, Any]]

    def places(self, needle: bytes) -> set[str]:
        """Where these bytes are."""
        found = {name for name, content in self.files.items() if needle in content}
        return found | ({"received"} if needle in self.received else set())


def recorded(directory: Path, *, is_secure: bool) -> Recording:
    """Run a federation of real processes with one deletion to its end."""
    directory.mkdir()
    app = directory / "app"
    app.mkdir()
    shutil.copy(REPOSITORY / "README.md", app)
    text = (REPOSITORY / "pyproject.toml").read_text()
    for half in ("client", "server"):
        text = text.replace(f'"{half}.app:app"', f'"tests.integration.recording_app:{half}_app"')
    (app / "pyproject.toml").write_text(text)
    task = TaskSettings(**{name.replace("-", "_"): value for name, value in SITES.items()})
    samples = " ".join(sorted(load_site(task, 1).train.ids.tolist())[:6])
    deployment = FrugalDeployment(
        directory / "federation",
        num_clients=4,
        app_dir=app,
        run_config={
            **SETTINGS,
            "transport": "session",
            "requests": f"at=1 client=1 samples={samples.replace(' ', ',')} method=puf-regular",
        },
        with_sessions=True,
        secure_aggregation=is_secure,
        environment={"PYTHONPATH": str(REPOSITORY), "TEST_RECORDING": str(directory)},
    )
    deployment.run_config |= {"state-dir": str(deployment.layout.server_dir / "state")}
    with deployment:
        run_id = deployment.submit_run()
        assert deployment.wait_until_finished(run_id, HANGS_S) == "finished:completed"
    server = deployment.layout.server_dir
    files = {str(path.relative_to(server)): path.read_bytes() for path in server.rglob("*") if path.is_file()}
    kept = [dict(np.load(path)) for path in sorted((directory / "clear").iterdir())]
    return Recording(
        received=(directory / "received").read_bytes(),
        files=files,
        worked=[one for one in kept if "addend" not in one],
        added=[one for one in kept if "addend" in one],
    )


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("recording") / "secure", is_secure=True)


@pytest.fixture(scope="module")
def clear(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("recording") / "clear", is_secure=False)


def middle(array: Any) -> bytes:
    start = (array.size - FEWEST_NUMBERS) // 2
    return bytes(np.ascontiguousarray(array).reshape(-1)[start : start + FEWEST_NUMBERS].tobytes())


def vectors(recording: Recording) -> Iterator[bytes]:
    """Some numbers of each vector, loss and confidence array that a client worked out, in both widths."""
    for one in [*recording.worked, *recording.added]:
        for name, array in one.items():
            if name != "masked" and array.size >= FEWEST_NUMBERS and array.dtype.kind in "fu":
                needle = middle(array)
                if len(set(needle)) > len(needle) // 4:  # zeros lie everywhere
                    yield needle
                if array.dtype.kind == "f":
                    yield middle(array.astype(np.float64 if array.itemsize == 4 else np.float32))


def figures(recording: Recording) -> set[bytes]:
    """Each loss that a client worked out, as a double and as JSON writes it."""
    losses = {float(one["metric loss"]) for one in recording.worked if "metric loss" in one}
    return {np.float64(loss).tobytes() for loss in losses} | {repr(loss).encode() for loss in losses}


def counts(recording: Recording) -> set[int]:
    """How many examples clients trained on."""
    found = {int(one["metric num-examples"]) for one in recording.worked if "metric num-examples" in one}
    return {count for count in found if count > 50}


def told_counts(recording: Recording) -> set[int]:
    """Those of them that are in frames, the ledger, checkpoints or reports as a number."""
    kept = [content for name, content in recording.files.items() if name.startswith("state/")]
    texts = [recording.received, *kept]
    found = set()
    for count in counts(recording):
        number = re.compile(rb"(?<![\w.:\-])%d(?:\.0)?(?![\w:\-])" % count)
        found |= {count for text in texts if number.search(text)}
    return found


def test_no_vector_loss_or_confidence_of_a_client_is_in_what_the_server_has(secure: Recording) -> None:
    """Neither in a frame nor in a file, in single or double precision."""
    needles = [*vectors(secure), *figures(secure)]
    assert len(needles) > 50
    assert len(secure.added) > 15
    assert [secure.places(needle) for needle in needles if secure.places(needle)] == []


def test_no_count_of_a_client_is_in_what_the_server_has(secure: Recording) -> None:
    """As a number in text: frames, ledger, checkpoints, reports."""
    assert len(counts(secure)) >= 4
    assert told_counts(secure) == set()


def test_without_it_the_same_search_finds_them(clear: Recording) -> None:
    """Vectors, losses and counts of every client: a control of the search."""
    assert not clear.added
    found = [needle for needle in vectors(clear) if "received" in clear.places(needle)]
    assert len(found) > 20
    assert any("received" in clear.places(needle) for needle in figures(clear))
    assert told_counts(clear)


def test_masked_vectors_are_uniform_and_clear_ones_are_not(secure: Recording, clear: Recording) -> None:
    """Every byte value is as frequent, at each place of a number; fails once in a million runs."""
    masked = np.concatenate([one["masked"] for one in secure.added])
    assert secure.places(middle(secure.added[0]["masked"])) >= {"received"}
    assert p_of_uniform(masked) > 1e-6
    sent = np.concatenate([one["vector"] for one in clear.worked if "vector" in one])
    assert p_of_uniform(sent) < 1e-100


def p_of_uniform(numbers: Any) -> float:
    """The smallest p value of Pearson's test of the bytes at each place of a number, times the number of places."""
    places = numbers.view(np.uint8).reshape(numbers.size, -1).T
    tests = [scipy.stats.chisquare(np.bincount(place, minlength=256)).pvalue for place in places]
    return float(min(tests)) * len(tests)
