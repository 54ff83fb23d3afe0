"""The ledger, and what of a forgotten client may still lie on the server host, outside of checkpoints and ledger."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from server.federation.presence import REMEDY, sentence, unresponsive_clients
from server.ledger import SITE_PROBLEMS, WAITING, Ledger, LedgerUnavailable
from server.ledger.database import Database, checked_url, missing_file
from server.operations.checklist.finding import Finding, Installation, ok, problem, warning
from server.operations.flower_control import refuse_unusable_flower
from server.operations.superlink_residue import count_waiting_answers, last_erased_event, newest_completion
from server.state_directory.ledger_address import ledger_url
from unlearning.errors import DeploymentError, VersionMismatch
from unlearning.runtime.durable_files import open_to_others, sqlite_files

_SKEW = timedelta(minutes=5)
ERASED_WITHIN = timedelta(minutes=1)
"""From a completion to the erasure, at most: some looks of the supervisor, and the time that a large database takes."""


def check_ledger(installation: Installation, *, now: datetime) -> Iterator[Finding]:
    """Check that the ledger can be read, its events are whole, none is from the future; and that clients answer."""
    url = installation.ledger_url or ledger_url(installation.state_dir)
    if path := missing_file(checked_url(url)):
        yield problem(f"There is no ledger {path}.", "Start the run, or give --ledger if it is elsewhere.")
        return
    database = Database(url)
    ledger = Ledger(database)  # not `open`, which would migrate it
    try:
        database.refuse_newer()
        yield from _check_open_ledger(ledger, url.partition(":")[0].partition("+")[0], now)
        yield from check_residue(installation, ledger)
        if waiting := dict(ledger.facts().get(WAITING) or {}):
            remedy = "Start the missing clients, or lower start-clients."
            yield warning(f"The run waits. {waiting['text']}", remedy)
        for client, found in sorted(dict(ledger.facts().get(SITE_PROBLEMS) or {}).items()):
            yield problem(
                f"Client {client}: {found}",
                "Mend it at the site, and restart its SuperNode.",
            )
        for client, rounds in unresponsive_clients(ledger).items():
            yield problem(sentence(client, rounds), REMEDY)
    except VersionMismatch as exc:
        yield problem(str(exc), "Upgrade this program, or restore a backup.")
    except LedgerUnavailable as exc:
        yield problem(
            str(exc), "The federation waits until it is back. After an upgrade, start the services once."
        )
    finally:
        ledger.close()


def _check_open_ledger(ledger: Ledger, kind: str, now: datetime) -> Iterator[Finding]:
    broken, num_events = ledger.events.verify(), ledger.events.last_sequence()
    if broken:
        yield problem(
            f"The ledger was changed past this program. {broken}",
            "Somebody or a fault wrote to the database past this program: keep a copy, restore a backup.",
        )
    else:
        yield ok(f"The ledger is on {kind}; its {num_events} events are whole.")
    newest = ledger.events.page(after=max(0, num_events - 1), limit=1)
    if newest and newest[0].at > now + _SKEW:
        yield problem(
            f"The ledger's newest event is of {newest[0].at:%Y-%m-%d %H:%M} UTC: the clock was put back.",
            "Set the clock by NTP. SuperNodes are refused when clocks differ by more than five minutes.",
        )


def check_superlink_database(installation: Installation) -> Iterator[Finding]:
    """Check that the SuperLink's database can be made, is its owner's only and holds no answers of runs that ended."""
    try:
        refuse_unusable_flower()
    except DeploymentError as exc:
        yield problem(
            str(exc), "Install again, with the environment in a directory such as /opt/flower-unlearning."
        )
    database = installation.superlink_database
    if not database.is_file():
        yield warning(
            f"There is no database {database} of a SuperLink; what is left in it of forgotten clients is not known.",
            "Give --superlink-database as flower-superlink was started with.",
        )
        return
    opened = list(open_to_others(sqlite_files(database)))
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
