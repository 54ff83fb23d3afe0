"""What of a forgotten client may still lie on the server host, outside of checkpoints and ledger."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from server.ledger import Ledger
from server.operations.checklist.finding import Finding, Installation, ok, problem, warning
from server.operations.superlink_residue import count_waiting_answers, last_erased_event, newest_completion
from unlearning.errors import DeploymentError
from unlearning.runtime.durable_files import open_to_others

ERASED_WITHIN = timedelta(minutes=1)
"""From a completion to the erasure, at most: some looks of the supervisor, and the time that a large database takes."""


def check_superlink_database(installation: Installation) -> Iterator[Finding]:
    """Check that the SuperLink's database is its owner's only and holds no answers that nobody will fetch."""
    database = installation.superlink_database
    if not database.is_file():
        yield warning(
            f"There is no database {database} of a SuperLink; what is left in it of forgotten clients is not known.",
            "Give --superlink-database as flower-superlink was started with.",
        )
        return
    files = [database, *(database.with_name(f"{database.name}{end}") for end in ("-wal", "-shm"))]
    opened = list(open_to_others(files))
    if opened:
        yield problem(
            f"{opened[0]} can be read by others; it holds clients' answers.",
            f"chmod 600 {' '.join(map(str, opened))}, and start flower-superlink with UMask=0077.",
        )
    try:
        waiting = count_waiting_answers(database)
    except DeploymentError as exc:
        yield problem(str(exc), "Run this as the user `flower`, or root.")
        return
    if waiting:
        yield warning(
            f"{waiting} answer(s) of clients lie in {database} and were not fetched.",
            "During a round that is so. One that came too late goes when its run ends: flwr stop RUN_ID, and submit it "
            "again.",
        )


def check_residue(installation: Installation, ledger: Ledger) -> Iterator[Finding]:
    """Check that what the SuperLink kept of messages was erased after the last deletion, and nothing lies elsewhere."""
    newest = newest_completion(ledger, after=last_erased_event(installation.state_dir))
    if newest is None:
        yield ok("What the SuperLink kept of messages was erased after the last deletion.")
    elif datetime.now(UTC) - newest.at <= ERASED_WITHIN:
        yield warning(
            f"A deletion was just completed (event {newest.sequence}), and what the SuperLink kept of its messages is "
            "not erased yet.",
            "`flower-unlearn supervise` does so at its next look; look again in a minute.",
        )
    else:
        yield problem(
            f"A deletion was completed (event {newest.sequence}), and what the SuperLink kept of its messages is not "
            "erased.",
            "Give `flower-unlearn supervise` --superlink-database and --state-dir, or now: `erase-residue`.",
        )
    for path in sorted(installation.state_dir.glob("replaced-*")):
        yield warning(
            f"{path} is what an earlier restore moved aside; it may hold what was forgotten since.",
            "Erase it when all is well.",
        )
