"""A story of an own app on real processes, told by a Python that has no repository on its path.

Arguments: a directory for the federation, the app's directory, and `messages`, `session` or `simulation`. Prints the
deletion's report as JSON.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.demo.simulation import LocalSimulation
from benchmarks.demo.story import MAX_STARTS, RAY_GAVE_UP
from benchmarks.deployment import LocalDeployment
from server.ledger import Ledger
from server.operations.flower_control import ConfigValue
from server.service.client import DeletionClient
from unlearning.requests import Granularity, Target

HANGS_S = 1800.0
"""As in `tests.waiting`, which this Python does not find."""

CHANGED = """
    Path(str(node_config["state-dir"]), "second-version").touch()
    site, num_sites"""
"""What the second version of the app does at a site, beside what the first one did."""


def main(directory: Path, app_dir: Path, kind: str) -> None:
    """Train, forget client 1, and print the report."""
    if kind == "simulation":
        settings = {"rounds": 3, "requests": "at=2 client=1 method=puf-special", "recovery-max-rounds": 2}
        state_dir = simulate(directory, app_dir, settings, num_clients=3)
    else:
        state_dir = deploy(directory, app_dir, kind)
    (report,) = state_dir.glob("reports/*/report.json")
    print(report.read_text(encoding="utf-8"))


def simulate(
    directory: Path, app_dir: Path, settings: Mapping[str, ConfigValue], *, num_clients: int
) -> Path:
    """Let the run itself file the deletion, in Flower's simulation."""
    with LocalSimulation(
        directory, num_clients=num_clients, app_dir=app_dir, run_config=settings
    ) as simulation:
        for _ in range(MAX_STARTS):
            run_id = simulation.submit_run()
            status = simulation.wait_until_finished(run_id, HANGS_S)
            if RAY_GAVE_UP not in simulation.control.log(run_id):
                break
        assert status == "finished:completed", simulation.control.log(run_id)
        return simulation.layout.state_dir


def deploy(directory: Path, app_dir: Path, transport: str) -> Path:
    """File the deletion with the deletion service; then run another version of the app on the same nodes."""
    settings = {"rounds": 0, "round-interval-s": 1.0, "transport": transport, "recovery-max-rounds": 2}
    started = time.monotonic()
    with LocalDeployment(
        directory,
        num_clients=2,
        app_dir=app_dir,
        run_config={**settings, "num-clients": 2},
        with_deletion_service=True,
        with_sessions=transport == "session",
        environment={"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1.0"},  # others take the processors meanwhile
    ) as deployment:
        layout = deployment.layout
        run_id = deployment.submit_run()
        ledger = Ledger.open(layout.ledger_url)
        deployment.wait_until(lambda: len(list(ledger.all_rounds())) >= 2, HANGS_S, "two rounds are over")
        print(f"two rounds after {time.monotonic() - started:.0f} s", file=sys.stderr)
        service = DeletionClient(layout.deletion_address, timeout_s=HANGS_S)
        request = service.submit(Target(Granularity.CLIENT, "1"), method="puf-special", idempotency_key="")
        deployment.wait_until(
            lambda: not ledger.requests.get(request.id).is_open, HANGS_S, "the deletion is completed"
        )
        print(f"{request.id} is completed after {time.monotonic() - started:.0f} s", file=sys.stderr)
        deployment.control.stop_run(run_id)
        task = app_dir / "hospital" / "task.py"
        text = task.read_text(encoding="utf-8").replace("\n    site, num_sites", CHANGED)
        task.write_text(f"from pathlib import Path\n{text}", encoding="utf-8")
        deployment.submit_run()
        mark = layout.client_dir(0) / "state" / "second-version"
        deployment.wait_until(mark.exists, HANGS_S, "the second version runs")
        print(f"the second version runs after {time.monotonic() - started:.0f} s", file=sys.stderr)
        return layout.state_dir


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
