"""A story of an own app on real processes, told by a Python that has no repository on its path.

Arguments: a directory for the federation, the app's directory, `messages` or `session`. Prints the report as JSON.
"""

import sys
import time
from pathlib import Path

import server
from server.api.client import DeletionClient
from server.ledger import Ledger
from server.processes.deployment import LocalDeployment
from unlearning.requests import Granularity, Target

WAIT_S = 400.0


def main(directory: Path, app_dir: Path, transport: str) -> None:
    """Train, file a deletion through the deletion service, and print its report."""
    print(f"packages from {Path(server.__file__).parents[1]}", file=sys.stderr)
    settings = {"rounds": 0, "round-interval-s": 0.5, "transport": transport, "recovery-max-rounds": 2}
    started = time.monotonic()
    with LocalDeployment(
        directory,
        num_clients=3,
        app_dir=app_dir,
        run_config=settings,
        with_deletion_service=True,
        with_sessions=transport == "session",
    ) as deployment:
        deployment.submit_run()
        ledger = Ledger.open(deployment.layout.ledger_url)
        deployment.wait_until(lambda: len(list(ledger.all_rounds())) >= 2, WAIT_S, "two rounds are over")
        print(f"two rounds after {time.monotonic() - started:.0f} s", file=sys.stderr)
        service = DeletionClient(deployment.layout.deletion_address)
        request = service.submit(Target(Granularity.CLIENT, "1"), method="puf-special", idempotency_key="")
        deployment.wait_until(lambda: not ledger.get(request.id).is_open, WAIT_S, "the deletion is over")
        print(f"{ledger.get(request.id)} after {time.monotonic() - started:.0f} s", file=sys.stderr)
        report = deployment.layout.state_dir / "reports" / request.id / "report.json"
        print(report.read_text(encoding="utf-8"))
        for name in deployment.names:
            if name.startswith("flower-supernode") or name == "worker":
                print(deployment.log_text(name)[-600:], file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
