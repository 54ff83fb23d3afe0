"""What dies at a site with a warm worker, on real processes, beside what stock Flower makes of the same.

One federation for all: clients 0 to 3 and 6 have the worker, 4, 5 and 7 are Flower's own. Flower takes a minute to give
a process up that was killed, so those kills come first, all at once, and are looked at last.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import WORKER, supernode
from client.worker.fork_server import ask_status
from client.worker.paths import WorkerPaths
from server.operations.flower_control import flower_environment
from tests.integration.deployments import FrugalDeployment, restart
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

APP = Path(__file__).parent / "failing_app"
NUM_CLIENTS = 8
STOCK = (4, 5, 7)
TERMINATED = (2, 5)
START_S = 120.0
GIVEN_UP_S = 400.0
"""Flower gives a process up a minute after its last heartbeat; and a loaded machine takes minutes to start them all."""
ANSWER_S = 200.0
UNANSWERED_S, UNLIMITED_S = 10.0, 3600.0


class Asked:
    """One message to a client: its process while it waits, and what came of it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pid(self) -> int:
        """The message's process, once it runs."""
        wait_until(self._path.with_suffix(".pid").exists, ANSWER_S, f"the process of {self._path}")
        return int(self._path.with_suffix(".pid").read_text())

    def go(self) -> "Asked":
        """Let it answer."""
        self._path.with_suffix(".go").touch()
        return self

    @property
    def is_over(self) -> bool:
        """Whether there is an answer, or a reason why there is none."""
        return self._path.with_suffix(".result").exists()

    def result(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """What came of it."""
        wait_until(lambda: self.is_over, timeout_s, f"the result of {self._path}")
        found: dict[str, Any] = json.loads(self._path.with_suffix(".result").read_text())
        return found


class Site:
    """The federation, its worker, and its runs."""

    def __init__(self, deployment: FrugalDeployment, directory: Path) -> None:
        assert deployment.worker_dir is not None
        self.deployment = deployment
        self.places = WorkerPaths(deployment.worker_dir)
        self._directory = directory
        self._count = 0

    def submit(self, name: str) -> Path:
        """Start a run; messages are asked of it at the directory that comes back."""
        place = self._directory / name
        place.mkdir()
        self.deployment.submit_run({"place": str(place)})
        return place

    def ask(self, run: Path, client: int, do: str = "answer", timeout_s: float = ANSWER_S) -> Asked:
        """Send a message to a client: `answer`, `hold` (`hold-as-ours`) until it may go on, or `exhaust` its memory."""
        self._count += 1
        path = run / f"{self._count}-{client}-{do}"
        path.with_suffix(".new").write_text(
            json.dumps({"client": str(client), "do": do, "timeout_s": timeout_s})
        )
        path.with_suffix(".new").rename(path.with_suffix(".ask"))
        return Asked(path)

    def answers(self, run: Path, client: int) -> int:
        """Send a message that is answered at once; returns its process."""
        answer = self.ask(run, client).result()["answer"]
        assert answer["client-id"] == str(client)
        return int(answer["pid"])

    def restart(self, run: Path, *clients: int) -> None:
        """Start clients' SuperNodes again, after the end of what is left of them, and wait until the run knows them."""
        known = {client: len(list(run.glob(f"node-{client}-*"))) for client in clients}
        for client in clients:
            restart(self.deployment, supernode(client))
        for client, count in known.items():
            wait_until(
                lambda path=f"node-{client}-*", count=count: len(list(run.glob(path))) > count,
                ANSWER_S,
                f"client {client} is back",
            )

    def forked(self) -> int:
        """How many messages' processes this worker has forked."""
        forked = ask_status(self.places)["forked"]
        assert isinstance(forked, int)
        return forked

    def cold(self) -> int:
        """How many messages started cold so far."""
        return sum(self.places.cold_starts().values())

    def replace_worker(self) -> None:
        """Kill the worker and start another one."""
        restart(self.deployment, WORKER)
        wait_until(self.is_served, START_S, "a worker answers")

    def is_served(self) -> bool:
        """Whether a worker answers."""
        try:
            ask_status(self.places)
        except OSError:
            return False
        return True


def lives(pid: int) -> bool:
    """Whether this process has not ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The federation with its worker serving."""
    directory = tmp_path_factory.mktemp("worker-failures")
    installed = [str(APP / "installed"), *filter(None, [os.environ.get("PYTHONPATH")])]
    deployment = FrugalDeployment(
        directory / "federation",
        num_clients=NUM_CLIENTS,
        app_dir=APP,
        environment={"PYTHONPATH": os.pathsep.join(installed)},
    )
    for client in STOCK:
        deployment.group(supernode(client))._environment["PATH"] = flower_environment()["PATH"]
    with deployment:
        made = Site(deployment, directory)
        wait_until(made.is_served, START_S, "the worker answers")
        yield made


@pytest.fixture(scope="module")
def run(site: Site) -> Path:
    """The run that most tests ask."""
    return site.submit("run")


@pytest.fixture(scope="module", autouse=True)
def killed(site: Site, run: Path) -> dict[str, Asked]:
    """Processes that were killed in mid-message; what came of their messages is seen a minute later."""
    held = {
        "child killed": site.ask(run, 0, "hold", GIVEN_UP_S),
        "launcher killed": site.ask(run, 1, "hold", GIVEN_UP_S),
        "child terminated": site.ask(run, 2, "hold", UNLIMITED_S),
        "stock killed": site.ask(run, 4, "hold", GIVEN_UP_S),
        "stock terminated": site.ask(run, 5, "hold", UNLIMITED_S),
        "ours terminated": site.ask(run, 6, "hold-as-ours", GIVEN_UP_S),
        "ours terminated, cold": site.ask(run, 7, "hold-as-ours", GIVEN_UP_S),
    }
    pids = {name: asked.pid() for name, asked in held.items()}
    os.kill(pids["child killed"], signal.SIGKILL)
    os.kill(pids["stock killed"], signal.SIGKILL)
    for name, pid in pids.items():
        if "terminated" in name:
            os.kill(pid, signal.SIGTERM)
    # One that is stopped by name: `pkill flwr-clientapp` finds the launcher.
    (launcher,) = (
        member.pid
        for member in site.deployment.group(supernode(1)).members()
        if str(site.places.launchers) in member.command
    )
    os.kill(launcher, signal.SIGTERM)
    wait_until(lambda: not any(map(lives, pids.values())), ANSWER_S, "the end of these processes")
    return held


def test_messages_are_forked_and_stock_ones_are_not(site: Site, run: Path) -> None:
    """The arms are what they are said to be."""
    before = site.forked()
    site.answers(run, 3)
    assert site.forked() == before + 1
    assert site.cold() == 0


def test_a_message_without_memory_says_so_at_once(site: Site, run: Path) -> None:
    """An allocation that the system refuses is an error like any other; the site goes on."""
    found = site.ask(run, 3, "exhaust").result()
    assert "MemoryError" in found["failure"]
    site.answers(run, 3)


def test_two_runs_at_one_site_take_turns(site: Site, run: Path) -> None:
    """A SuperNode does one message at a time; the other run's waits its turn and is answered."""
    other = site.submit("other-run")
    held = site.ask(run, 3, "hold")
    held.pid()
    assert site.ask(other, 3, timeout_s=3.0).result()["failure"] == "no answer within 3 s"
    waiting = site.ask(other, 3)
    held.go()
    assert held.result()["answer"]
    assert waiting.result()["answer"]
    (other / "end").touch()


def test_a_message_that_hangs_ends_at_the_servers_deadline(site: Site, run: Path) -> None:
    """The server waits no longer; the site's next message waits for the one that hangs, until that is killed."""
    hanging = site.ask(run, 3, "hold", timeout_s=3.0)
    pid = hanging.pid()
    assert hanging.result()["failure"] == "no answer within 3 s"
    assert lives(pid)
    hanging.go()
    site.answers(run, 3)


def test_a_killed_supernode_takes_its_message_along(site: Site, run: Path) -> None:
    """The SuperNode's process alone is killed: launcher, SuperExec and the forked process end by themselves."""
    held = site.ask(run, 3, "hold", timeout_s=5.0)
    pid = held.pid()
    os.kill(site.deployment.group(supernode(3)).pid, signal.SIGKILL)
    wait_until(
        lambda: not site.deployment.group(supernode(3)).is_running, ANSWER_S, "the SuperNode is collected"
    )
    wait_until(lambda: not lives(pid), ANSWER_S, "the message's process has ended")
    wait_until(lambda: site.deployment.group(supernode(3)).is_gone, ANSWER_S, "its helpers have ended")
    assert held.result()["failure"]
    site.restart(run, 3)
    site.answers(run, 3)


def test_a_killed_worker_costs_no_message(site: Site, run: Path) -> None:
    """In mid-message: it is answered. Between messages: the next starts cold. A new worker serves again."""
    held = site.ask(run, 3, "hold")
    pid = held.pid()
    os.kill(
        site.deployment.group(WORKER).pid, signal.SIGKILL
    )  # not its process group, where the message's process is
    wait_until(lambda: not site.is_served(), ANSWER_S, "the worker is gone")
    assert lives(pid)
    assert held.go().result()["answer"]["pid"] == pid
    before = site.cold()
    site.answers(run, 3)
    assert site.cold() == before + 1
    site.replace_worker()
    site.answers(run, 3)
    assert site.forked() == 1


@pytest.mark.parametrize(
    ("name", "client"),
    [
        ("child killed", 0),
        ("launcher killed", 1),
        ("stock killed", 4),
        ("ours terminated", 6),
        ("ours terminated, cold", 7),
    ],
)
def test_a_killed_process_is_an_error_after_a_minute(
    site: Site, run: Path, killed: dict[str, Asked], name: str, client: int
) -> None:
    """With the worker as without it; then the site answers again. For want of memory the kernel kills the same way.

    And SIGTERM kills a process of this project's ClientApp in the same way.
    """
    found = killed[name].result(GIVEN_UP_S)
    assert found["answer"] is None
    assert found["failure"] == "ClientApp stopped responding."
    assert 30.0 < found["seconds"] < GIVEN_UP_S
    site.answers(run, client)


def test_a_terminated_process_leaves_its_supernode_waiting_until_that_is_restarted(
    site: Site, run: Path, killed: dict[str, Asked]
) -> None:
    """With the worker as without it, of a ClientApp that leaves SIGTERM to Flower.

    The server's deadlines hold, and it names the client (`server.federation.presence`).
    """
    assert not killed["child terminated"].is_over
    assert not killed["stock terminated"].is_over
    for asked in [site.ask(run, client, timeout_s=UNANSWERED_S) for client in TERMINATED]:
        assert asked.result()["failure"] == f"no answer within {UNANSWERED_S:g} s"
    site.restart(run, *TERMINATED)
    for client in TERMINATED:
        site.answers(run, client)
