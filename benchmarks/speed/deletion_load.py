"""How the deletion service bears load: a real process, mutual TLS, SQLite and PostgreSQL beside each other.

    python -m benchmarks.speed.deletion_load --output docs/results/deletion-load

Deletion requests are filed at a fixed rate over several connections into a ledger that holds thousands
already. A request has its time of sending before the run begins, and its latency counts from there: a
service that falls behind is not spared the requests that wait. Afterwards every request that was answered
is looked up in the ledger by its key, and the chain of the events is checked.
"""

import json
import os
import platform
import pwd
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import grpc
import sqlalchemy as sa
import typer
from rich.console import Console

from server.api import deletion_pb2 as pb
from server.api.deletion_pb2_grpc import DeletionServiceStub
from server.api.tls import TlsFiles
from server.ledger import ClientRecord, Ledger, schema, statements
from server.ledger.database import Database
from unlearning.requests import Granularity, Status, Target

console = Console()
ROOT = Path(__file__).parents[2]
FORGETTING = (Status.SCHEDULED, Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING, Status.COMPLETED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent: `rate` requests a second for `seconds` over `connections`."""

    rate: float
    seconds: float
    connections: int
    beforehand: int

    @property
    def num_requests(self) -> int:
        """All requests of the run."""
        return round(self.rate * self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run; latencies in ms, of answered requests, from the time that was planned."""

    database: str
    answered: int
    failed: dict[str, int]
    lost: int
    chain_holds: bool
    seconds: float
    median_ms: float
    p99_ms: float
    max_ms: float
    load_average: float


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    rate: float = 100.0,
    seconds: float = 60.0,
    connections: int = 20,
    beforehand: int = 10_000,
    postgresql_url: Annotated[
        str, typer.Option(help="An empty PostgreSQL database; default: a private server of this machine.")
    ] = "",
) -> None:
    """Measure both databases one after the other and write the table."""
    load = Load(rate=rate, seconds=seconds, connections=connections, beforehand=beforehand)
    outcomes = []
    with tempfile.TemporaryDirectory() as directory:
        outcomes.append(
            _measured("SQLite", f"sqlite:///{directory}/ledger.db", load, Path(directory) / "sqlite")
        )
        with _postgresql(postgresql_url) as url:
            outcomes.append(_measured("PostgreSQL", url, load, Path(directory) / "postgresql"))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    facts = {"commit": commit, "machine": platform.machine(), "cores": os.cpu_count(), **asdict(load)}
    output.with_suffix(".json").write_text(
        json.dumps({**facts, "runs": [asdict(item) for item in outcomes]}, indent=2) + "\n"
    )
    output.with_suffix(".md").write_text(_page(load, facts, outcomes))
    console.print(output.with_suffix(".md").read_text())


def _measured(name: str, url: str, load: Load, state_dir: Path) -> Outcome:
    state_dir.mkdir(parents=True)
    console.print(f"{name}: {load.beforehand:,} requests into the ledger, then {load.seconds:g} s of load")
    _fill(url, load)
    certificates = state_dir / "certificates"
    callers = [f"caller-{number}" for number in range(load.connections)]
    for kind, holder in (("server", "localhost"), *(("operator", name) for name in callers)):
        script = str(ROOT / "deploy" / "make_certificates.sh")
        subprocess.run(["sh", script, str(certificates), kind, holder], check=True)
    with _service(url, state_dir, certificates) as address:
        authority = certificates / "ca.crt"
        tls = [
            TlsFiles(authority, certificates / f"{name}.pem", certificates / f"{name}.key")
            for name in callers
        ]
        answers = _send(address, tls, load)
    return _judged(name, url, answers)


def _fill(url: str, load: Load) -> None:
    """Write requests of all kinds and the clients of the run, in one transaction, by the ledger's own steps."""
    now = datetime.now(UTC)
    names = [f"old-{number}" for number in range(load.beforehand)]
    opened = Ledger.open(url)
    token = opened.acquire_fence("benchmark", now=now)
    run = [ClientRecord(f"new-{number}") for number in range(load.num_requests)]
    opened.register_clients([*map(ClientRecord, names), *run], token=token, now=now)
    opened.close()
    database = Database(url)
    with database.writing() as connection:
        for number, name in enumerate(names):
            target = Target(Granularity.CLIENT, name)
            values = {
                "idempotency_key": name,
                "target_key": target.key,
                "target": target.to_json(),
                "client_id": name,
                "method": "puf-special",
                "parameters": {"unlearning_rate": 2.0},
                "submitted_by": "load",
                "status": str(Status.RECEIVED),
                "reason": "",
                "retryable": False,
                "attempts": 0,
                "created_at": now,
                "updated_at": now,
                "result": {},
            }
            connection.execute(sa.insert(schema.requests).values(values))
            statements.append_event(connection, number + 1, "submitted", actor="load", now=now)
            # Of ten, four are completed, five cancelled, and one is open.
            way = FORGETTING if number % 10 < 4 else (Status.CANCELLED,) if number % 10 < 9 else ()
            for status in way:
                request = statements.get(connection, f"r-{number + 1:06d}")
                if status is Status.RECOVERING:
                    connection.execute(sa.insert(schema.exclusions).values(request_number=number + 1, at=now))
                statements.write_move(connection, request, status, actor="load", now=now)
    database.close()


@contextmanager
def _service(url: str, state_dir: Path, certificates: Path) -> Iterator[str]:
    """The address of `flower-unlearn serve` in a process of its own."""
    command = [sys.executable, "-c", "from server.cli import main; main()", "serve"]
    command += ["--state-dir", str(state_dir), "--address", "127.0.0.1:0"]
    command += ["--tls-ca", str(certificates / "ca.crt"), "--tls-cert", str(certificates / "server.pem")]
    command += ["--tls-key", str(certificates / "server.key")]
    environment = {**os.environ, "FLOWER_UNLEARNING_LEDGER": url, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"listens at (\S+)\.$", line)
        if found is None:
            raise RuntimeError(f"The service did not start: {line!r}.")
        yield found.group(1)
    finally:
        process.terminate()
        process.wait(timeout=60)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request got: the status, and the time since it was planned, in ms."""

    key: str
    status: str
    latency_ms: float
    at_s: float


def _send(address: str, tls: Sequence[TlsFiles], load: Load) -> list[Answer]:
    """File every request at its time; connection c sends number c, c + connections, and so on."""
    answers: list[list[Answer]] = [[] for _ in range(load.connections)]
    ready = threading.Barrier(load.connections + 1)
    begin = [0.0]

    def connection(which: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(address, tls[which].channel_credentials(), options) as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
            stub: Any = DeletionServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            ready.wait()
            ready.wait()
            for number in range(which, load.num_requests, load.connections):
                planned = begin[0] + number / load.rate
                time.sleep(max(0.0, planned - time.monotonic()))
                key = f"run-{number}"
                message = pb.SubmitRequestRequest(
                    target=pb.Target(granularity="client", client_id=f"new-{number}"),
                    method="puf-special",
                    idempotency_key=key,
                )
                try:
                    stub.SubmitRequest(message, timeout=60)
                    status = "OK"
                except grpc.RpcError as exc:
                    failed: Any = exc
                    status = failed.code().name
                now = time.monotonic()
                answers[which].append(Answer(key, status, 1000 * (now - planned), now - begin[0]))

    threads = [threading.Thread(target=connection, args=(which,)) for which in range(load.connections)]
    for thread in threads:
        thread.start()
    ready.wait()
    begin[0] = time.monotonic() + 0.5
    ready.wait()
    for thread in threads:
        thread.join()
    return [answer for of_connection in answers for answer in of_connection]


def _judged(name: str, url: str, answers: list[Answer]) -> Outcome:
    served = [answer for answer in answers if answer.status == "OK"]
    latencies = sorted(answer.latency_ms for answer in served)
    ledger = Ledger.open(url)
    outcome = Outcome(
        database=name,
        answered=len(served),
        failed=dict(Counter(answer.status for answer in answers if answer.status != "OK")),
        lost=sum(ledger.find(answer.key) is None for answer in served),
        chain_holds=ledger.verify_chain() is None,
        seconds=max(answer.at_s for answer in answers),
        median_ms=statistics.median(latencies),
        p99_ms=latencies[int(0.99 * (len(latencies) - 1))],
        max_ms=latencies[-1],
        load_average=os.getloadavg()[0],
    )
    ledger.close()
    return outcome


@contextmanager
def _postgresql(given: str) -> Iterator[str]:
    """The URL of an empty database: the given one, or one of a private server with its usual durability."""
    if given:
        yield given
        return
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        raise SystemExit("There is no PostgreSQL on this machine; install it, or give --postgresql-url.")
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    owner: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        account = pwd.getpwnam("postgres")
        os.chown(directory, account.pw_uid, account.pw_gid)
        owner = {"user": account.pw_uid, "group": account.pw_gid}
    pg_ctl, data = str(programs[-1].with_name("pg_ctl")), str(directory / "data")

    def run(*command: str) -> None:
        subprocess.run(command, check=True, cwd=directory, stdout=subprocess.DEVNULL, timeout=120, **owner)

    run(str(programs[-1]), "-D", data, "-A", "trust", "-U", "ledger")
    options = f"-c listen_addresses='' -k {directory}"
    run(pg_ctl, "-D", data, "-w", "-l", str(directory / "log"), "-o", options, "start")
    try:
        yield f"postgresql+psycopg://ledger@/postgres?host={directory}"
    finally:
        run(pg_ctl, "-D", data, "-m", "fast", "-w", "stop")
        shutil.rmtree(directory)


def _page(load: Load, facts: dict[str, Any], outcomes: list[Outcome]) -> str:
    rows = [
        f"| {item.database} | {item.answered:,} | {sum(item.failed.values()):,} | {item.lost:,} "
        f"| {'yes' if item.chain_holds else 'NO'} | {item.median_ms:.1f} | {item.p99_ms:.1f} "
        f"| {item.max_ms:.1f} | {item.seconds:.1f} | {item.load_average:.1f} |"
        for item in outcomes
    ]
    return "\n".join(
        [
            "# The deletion service under load",
            "",
            f"Made by `benchmarks.speed.deletion_load` at {facts['commit']}: {load.rate:g} deletion requests a second "
            f"for {load.seconds:g} s over {load.connections} connections of an operator each, with mutual TLS, "
            f"{load.beforehand:,} requests in the ledger beforehand; service, database and sender on one machine "
            f"({facts['cores']} cores, {facts['machine']}).",
            "",
            "| ledger | answered | failed | lost | chain holds | median, ms | 99 %, ms | longest, ms | s | load |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            "A latency begins when the request was planned, so waiting in a queue is in it. *lost*: answered, but not",
            "in the ledger afterwards. *load*: the machine's load average at the end; what is above the number of",
            "cores is waiting, and a good part of it may be work that has nothing to do with this.",
            "",
        ]
    )


if __name__ == "__main__":
    typer.run(main)
