"""A worker of its own process, whose messages run small programs in place of Flower's."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from client.worker.fork_server import ask_status
from client.worker.paths import WorkerPaths
from tests.waiting import wait_until
from unlearning.errors import ConfigurationError

WAIT_S, START_S = 20.0, 90.0
FAKE_GPU = Path(__file__).parents[3] / "integration" / "fake_gpu"

SERVE = """
import os, sys
from pathlib import Path
if "PRELOAD" in os.environ:
    from client.worker.message_process import preload
    assert preload().__name__ == "flwr_clientapp"
from client.worker.paths import WorkerPaths
from client.worker import fork_server, message_process
from tests.waiting import wait_until

code = Path(sys.argv[2])
message_process.installed_code = lambda: code.read_text()
def entry():
    return eval(compile(sys.argv[1], "message", "exec"), {})
if "NO_FORK" in os.environ:
    def fork(): raise BlockingIOError(11, "Resource temporarily unavailable")
    os.fork = fork
if "DIE_AT_FORK" in os.environ:
    os.fork = lambda: os._exit(1)
try:
    fork_server.Worker(WorkerPaths(Path(sys.argv[1]))).run()
except fork_server.Child as child:
    launch = child.launch
else:
    sys.exit(0)
fork_server.become(launch, entry)
"""


class Site:
    """A worker's directory with a launcher; entered, with a worker that serves until it is left."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.places = WorkerPaths(directory)
        self.launcher = self.places.launchers / "flwr-clientapp"
        self.cold = directory / "cold-program"
        self.places.directory.mkdir(mode=0o700, exist_ok=True)
        self.cold.write_text('#!/bin/sh\necho "cold: $1"\n', encoding="utf-8")
        self.cold.chmod(0o700)
        self.places.prepare(program=str(self.cold))
        self.code = directory / "code"
        self.code.write_text("1", encoding="utf-8")
        self.environment = {**os.environ, **environment}

    def __enter__(self) -> "Site":
        """Start a worker and wait until it listens."""
        self.worker = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(self.places.directory), str(self.code)], env=self.environment
        )
        try:
            wait_until(self.places.socket.exists, START_S)
        except AssertionError:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextmanager
    def launch(
        self, code: str, cwd: Path | None = None, **environment: str
    ) -> Iterator["subprocess.Popen[str]"]:
        """Start a message's process by the launcher; it is killed at the end, if it lives."""
        with subprocess.Popen(
            [str(self.launcher), code],
            cwd=cwd,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, code: str, cwd: Path | None = None, **environment: str) -> tuple[int, str, str]:
        """Run a message's process to its end: status, output, errors."""
        with self.launch(code, cwd, **environment) as process:
            output, errors = process.communicate(timeout=WAIT_S)
            return process.returncode, output, errors

    def stop(self) -> None:
        """Kill the worker, if it lives."""
        self.worker.kill()
        self.worker.wait()


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short name: a Unix socket's address has a hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="worker-") as name:
        yield Path(name) / "w"


@pytest.fixture
def site(directory: Path) -> Iterator[Site]:
    """A worker of this test's own."""
    with Site(directory) as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[Site]:
    """A worker for tests that leave it as it was: it imports for seconds all that a message needs.

    On a machine with what passes for a GPU; `cuda` beside the worker's directory says which processes began it.
    """
    with tempfile.TemporaryDirectory(prefix="worker-") as name:
        path = os.pathsep.join([str(FAKE_GPU), *filter(None, [os.environ.get("PYTHONPATH")])])
        log = str(Path(name) / "cuda")
        with Site(Path(name) / "w", PRELOAD="1", PYTHONPATH=path, FAKE_GPU_LOG=log) as made:
            yield made


def test_a_message_has_its_launchers_arguments_environment_and_directory(shared, tmp_path):
    """Nothing of the worker's own."""
    code = "import os, sys, json; print(json.dumps([sys.argv[1][:6], os.environ['WHO'], os.getcwd(), os.getpid()]))"
    status, output, _ = shared.run(code, tmp_path, WHO="hospital")
    found = json.loads(output)
    assert (status, found[:3]) == (0, ["import", "hospital", str(tmp_path)])
    assert found[3] != shared.worker.pid
    assert shared.places.cold_starts() == {}


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('a sentence')", 1, "a sentence"),
        ("1/0", 1, "ZeroDivisionError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + 9, ""),
    ],
)
def test_the_launcher_ends_as_the_message_did(shared, code, status, said):
    """With the status and the trace on its stream that a Python of its own would have ended with."""
    ended, _, errors = shared.run(code)
    assert ended == status
    assert said in errors


def test_random_numbers_begin_as_in_a_fresh_process(shared):
    """From the system's entropy: no two messages draw the same, unless they set a seed."""
    code = "import random, numpy, torch; print(torch.rand(1).item(), random.random(), numpy.random.rand())"
    first, second = (shared.run(code)[1].split() for _ in range(2))
    assert len(first) == len(second) == 3
    assert not {*first} & {*second}


def test_what_ends_at_exit_is_run(shared):
    """Functions registered for the end, and threads that are no daemons."""
    code = (
        "import atexit, threading, time\natexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()"
    )
    assert shared.run(code)[1].split("\n")[:2] == ["thread", "at exit"]


def test_without_a_worker_a_message_starts_cold_and_says_so_once(directory):
    """A silent fallback must not hide a failure, nor a thousand lines."""
    site = Site(directory)
    first, second = site.run("x"), site.run("x")
    assert first[:2] == second[:2] == (0, "cold: x\n")
    assert "No warm worker" in first[2]
    assert second[2] == ""
    assert list(site.places.cold_starts().values()) == [2]


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "PYTHONHASHSEED", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"]
)
def test_other_variables_that_are_read_at_import_start_cold(shared, name):
    """What a library read when the worker imported it cannot be changed by a fork."""
    status, output, errors = shared.run("x", **{name: "3"})
    assert (status, output) == (0, "cold: x\n")
    assert name in errors


def test_a_worker_of_older_code_serves_no_more_and_ends(site):
    """What is installed now is what runs."""
    site.code.write_text("2", encoding="utf-8")
    _, output, errors = site.run("x")
    assert output == "cold: x\n"
    assert "code has changed" in errors
    assert site.worker.wait(WAIT_S) == 0


def waits_for(go: Path) -> str:
    """A message that says that it is on, and goes on when the file is there."""
    return (
        f"import os, time\nprint('on', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    )


def test_a_message_that_runs_keeps_a_stale_worker_until_it_has_ended(site, tmp_path):
    """Its launcher still waits for the status."""
    go = tmp_path / "go"
    with site.launch(waits_for(go)) as process:
        assert process.stdout.readline() == "on\n"
        site.code.write_text("2", encoding="utf-8")
        assert site.run("x")[1] == "cold: x\n"
        go.touch()
        assert process.wait(WAIT_S) == 0
    assert site.worker.wait(WAIT_S) == 0


def test_a_killed_launcher_takes_its_message_along(shared):
    """As a kill of Flower's own process would."""
    with shared.launch("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)") as process:
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{child}").exists())
    assert ask_status(shared.places)["running"] == 0


def test_a_killed_worker_lets_its_message_finish_and_the_next_starts_cold(site, tmp_path):
    """A message must not be lost with the worker."""
    go, done = tmp_path / "go", tmp_path / "done"
    with site.launch(waits_for(go) + f"open({str(done)!r}, 'w').close()") as process:
        assert process.stdout.readline() == "on\n"
        site.stop()
        assert process.wait(WAIT_S) == 1
        go.touch()
        wait_until(done.exists)
    assert site.run("x")[1] == "cold: x\n"


def test_a_worker_that_dies_at_the_fork_starts_nothing_cold(directory):
    """There may be a process already, and a message must not have two."""
    with Site(directory, DIE_AT_FORK="1") as site:
        status, output, errors = site.run("x")
    assert (status, output) == (1, "")
    assert "The warm worker ended" in errors
    assert site.places.cold_starts() == {}


def test_a_machine_without_room_for_a_process_starts_cold(directory):
    """The worker lives on and says why."""
    with Site(directory, NO_FORK="1") as site:
        _, output, errors = site.run("x")
        assert output == "cold: x\n"
        assert "no process could be forked" in errors
        assert "Resource temporarily unavailable" in errors
        assert ask_status(site.places)["forked"] == 0


def test_a_worker_that_hangs_before_it_accepts_starts_cold_and_never_twice(site):
    """A launcher that has timed out never sends its go, so the message has one process."""
    text = site.launcher.read_text().replace("ANSWER_TIMEOUT_S = 10.0", "ANSWER_TIMEOUT_S = 0.3")
    site.launcher.write_text(text)
    site.worker.send_signal(signal.SIGSTOP)
    with site.launch("x") as process:
        assert process.stdout.readline() == "cold: x\n"
        site.worker.send_signal(signal.SIGCONT)
    assert ask_status(site.places)["forked"] == 0


def test_messages_run_side_by_side(shared, tmp_path):
    """Several SuperNodes of a host share a worker."""
    go = tmp_path / "go"
    with ExitStack() as stack:
        processes = [stack.enter_context(shared.launch(waits_for(go))) for _ in range(4)]
        assert [process.stdout.readline() for process in processes] == ["on\n"] * 4
        assert ask_status(shared.places)["running"] == 4
        go.touch()
        assert [process.wait(WAIT_S) for process in processes] == [0] * 4


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\0\0\0\4nope", b"\0\0\0\5a\0b\0c", b"\0"])
def test_what_no_launcher_sends_does_no_harm(shared, sent):
    """The worker goes on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(str(shared.places.socket))
        line.sendall(sent)
        forked = ask_status(shared.places)["forked"]
        assert shared.run("pass")[0] == 0
    assert ask_status(shared.places)["forked"] == forked + 1


def test_only_its_user_reaches_the_worker(shared):
    """A connection runs programs as the worker's user."""
    assert stat.S_IMODE(shared.places.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(shared.places.directory.stat().st_mode) == 0o700


def test_a_directory_that_others_may_enter_is_refused(directory):
    """Somebody else could have laid a launcher there."""
    directory.mkdir()
    directory.chmod(0o755)
    with pytest.raises(ConfigurationError):
        WorkerPaths(directory).prepare()


def test_the_launcher_can_be_run_at_every_moment_while_another_node_writes_it(directory, monkeypatch):
    """SuperNodes of one host share it, and one may start while another's message does."""
    places = WorkerPaths(directory)
    places.prepare()
    program = places.launchers / "flwr-clientapp"
    seen = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (seen.append(os.access(program, os.X_OK)), sync(file)))
    places.prepare()
    assert len(seen) == 2, "once before it has its name and once after"
    assert all(seen)


def test_a_second_worker_is_refused(directory):
    """The first keeps its place until it ends."""
    places = WorkerPaths(directory)
    places.prepare()
    with places.lock(), pytest.raises(ConfigurationError), places.lock():
        pass


def test_a_worker_has_one_thread_after_all_its_imports(shared):
    """A fork takes along one thread."""
    assert len(list(Path(f"/proc/{shared.worker.pid}/task").iterdir())) == 1


def test_a_message_reaches_its_supernode_without_importing_anything(shared):
    """Flower's client speaks by httpx, which imports with its first use what took half of a message's time."""
    code = "import sys, httpx\nbefore = {*sys.modules}\nhttpx.Client()\nprint(len({*sys.modules} - before))"
    assert shared.run(f"exec({code!r})")[:2] == (0, "0\n")


def test_a_message_finds_imported_what_it_uses_and_nothing_else(shared):
    """SciPy for its measures; scikit-learn, 60 MiB and most of a second, serves the server alone."""
    code = "import sys\nprint('scipy.special' in sys.modules, 'sklearn' in sys.modules)"
    assert shared.run(f"exec({code!r})")[:2] == (0, "True False\n")


def test_on_a_gpu_site_each_message_begins_cuda_and_the_worker_never(shared):
    """CUDA does not survive a fork: not even whether there is a GPU may be asked before it."""
    code = (
        "import os, torch\nfrom unlearning.tasks import TaskSettings, load_site, make_task\n"
        "from unlearning.training import TrainingSettings, initial_parameters, train\n"
        "settings = TaskSettings(dataset='digits', num_clients=4, max_examples=100)\ntask = make_task(settings)\n"
        "train(task, initial_parameters(task, 0), load_site(settings, 0).train, TrainingSettings())\n"
        "print(os.getpid())"
    )
    ran = [shared.run(code) for _ in range(2)]
    assert [status for status, *_ in ran] == [0, 0], ran
    began = (shared.places.directory.parent / "cuda").read_text().split()
    assert [began.count(output.strip()) for _, output, _ in ran] == [1, 1]
    assert str(shared.worker.pid) not in began
