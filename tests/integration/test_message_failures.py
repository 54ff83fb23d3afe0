"""What dies at a site while it answers a message, on real processes.

One federation for all. Flower takes a minute to give a process up that was killed, so those kills come first, all at
once, and are looked at last.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import supernode
from tests.integration.deployments import FrugalDeployment, restart
from tests.programs import lives
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.long]

APP = Path(__file__).parent / "failing_app"
NUM_CLIENTS = 4
TERMINATED = 1
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
    """The federation and its runs."""

    def __init__(self, deployment: FrugalDeployment, directory: Path) -> None:
        self.deployment = deployment
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

    def restart(self, run: Path, client: int) -> None:
        """Start a client's SuperNode again, after the end of what is left of it, and wait until the run knows it."""
        known = len(list(run.glob(f"node-{client}-*")))
        restart(self.deployment, supernode(client))
        wait_until(
            lambda: len(list(run.glob(f"node-{client}-*"))) > known, ANSWER_S, f"client {client} is back"
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The federation."""
    directory = tmp_path_factory.mktemp("message-failures")
    installed = [str(APP / "installed"), *filter(None, [os.environ.get("PYTHONPATH")])]
    deployment = FrugalDeployment(
        directory / "federation",
        num_clients=NUM_CLIENTS,
        app_dir=APP,
        environment={"PYTHONPATH": os.pathsep.join(installed)},
    )
    with deployment:
        yield Site(deployment, directory)


@pytest.fixture(scope="module")
def run(site: Site) -> Path:
    """The run that most tests ask."""
    return site.submit("run")


@pytest.fixture(scope="module", autouse=True)
def killed(site: Site, run: Path) -> dict[str, Asked]:
    """Processes that were killed in mid-message; what came of their messages is seen a minute later."""
    held = {
        "killed": site.ask(run, 0, "hold", GIVEN_UP_S),
        "terminated": site.ask(run, TERMINATED, "hold", UNLIMITED_S),
        "ours terminated": site.ask(run, 2, "hold-as-ours", GIVEN_UP_S),
    }
    pids = {name: asked.pid() for name, asked in held.items()}
    for name, pid in pids.items():
        os.kill(pid, signal.SIGKILL if name == "killed" else signal.SIGTERM)
    wait_until(lambda: not any(map(lives, pids.values())), ANSWER_S, "the end of these processes")
    return held


def test_a_message_without_memory_says_so_at_once(site: Site, run: Path) -> None:
    """An allocation that the system refuses is an error like any other; the site goes on."""
    found = site.ask(run, 3, "exhaust").result()
    assert "MemoryError" in found["failure"]
    site.answers(run, 3)


def test_two_runs_at_one_site_take_turns(site: Site, run: Path) -> None:
    """A SuperNode does one message at a time; the other run's waits its turn and is answered."""
    other = site.submit("other-run")
    wait_until(lambda: any(other.glob("node-3-*")), ANSWER_S, "the other run knows client 3")
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
    """The SuperNode's process alone is killed: SuperExec and the message's process end by themselves."""
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


@pytest.mark.parametrize(("name", "client"), [("killed", 0), ("ours terminated", 2)])
def test_a_killed_process_is_an_error_after_a_minute(
    site: Site, run: Path, killed: dict[str, Asked], name: str, client: int
) -> None:
    """Then the site answers again. For want of memory the kernel kills the same way.

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
    """Of a ClientApp that leaves SIGTERM to Flower.

    The server's deadlines hold, and it names the client (`server.federation.presence`).
    """
    assert not killed["terminated"].is_over
    failure = site.ask(run, TERMINATED, timeout_s=UNANSWERED_S).result()["failure"]
    assert failure == f"no answer within {UNANSWERED_S:g} s"
    site.restart(run, TERMINATED)
    site.answers(run, TERMINATED)
