"""How the deletion service bears load: a real process, mutual TLS, SQLite and PostgreSQL beside each other.

    python -m benchmarks.speed.deletion_load --output docs/results/deletion-load

Deletion requests are filed at a fixed rate over several connections into a ledger that holds thousands
already; then again, into SQLite, while the service is attacked (deletion_attacks.py). A request has its time
of sending before the run begins, and its latency counts from there: a service that falls behind is not spared
the requests that wait. Afterwards every request that was answered is looked up in the ledger by its key, and
the chain of the events is checked.
"""

import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import grpc
import sqlalchemy as sa
import typer
from rich.console import Console

from benchmarks.speed.deletion_attacks import ATTACKERS, ATTACKS, STRANGER
from benchmarks.speed.http_attacks import HTTP_ATTACKS
from benchmarks.speed.postgresql import private_server
from benchmarks.tables import commit, table, write
from server.ledger import ClientRecord, Ledger, NewRequest, chain, row_seals, schema, statements
from server.ledger.database import Database
from server.ledger.request_store import insert_row
from server.service import deletion_pb2 as pb
from server.service.calls import Role
from server.service.client import open_call
from server.service.tokens import make_token
from strategies.tls_files import TlsFiles
from unlearning.requests import Granularity, Status, Target

console = Console()
CALL_TIMEOUT_S = 10.0
OPERATOR = "ada"
ATTACKED_BEFORE_S = 2.0
# Kind and name for deploy/make_certificates.sh; a peer's certificate has no role here.
_ATTACKERS = (*(("client", name) for name in ATTACKERS), ("peer", f"{STRANGER} localhost"))
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
    attack: str = ""
    peak_mib: float = 0.0
    most_threads: int = 0


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    rate: float = 100.0,
    seconds: float = 60.0,
    connections: int = 20,
    beforehand: int = 10_000,
    postgresql_url: Annotated[
        str, typer.Option(help="An empty PostgreSQL database; default: a private server of this machine.")
    ] = "",
    attacked_seconds: Annotated[float, typer.Option(help="Of load under each attack.")] = 20.0,
    note: Annotated[str, typer.Option(help="What a reader should know of this run.")] = "",
) -> None:
    """Measure both databases one after the other, then SQLite under each attack, and write the table."""
    load = Load(rate=rate, seconds=seconds, connections=connections, beforehand=beforehand)
    outcomes = []
    with tempfile.TemporaryDirectory() as directory:
        outcomes.append(
            _measure("SQLite", f"sqlite:///{directory}/ledger.db", load, Path(directory) / "sqlite")
        )
        with _postgresql(postgresql_url) as url:
            outcomes.append(_measure("PostgreSQL", url, load, Path(directory) / "postgresql"))
        under_attack = replace(load, seconds=attacked_seconds, beforehand=min(beforehand, 1000))
        for name, attack in (ATTACKS | HTTP_ATTACKS).items():
            url = f"sqlite:///{directory}/{name}.db"
            found = _measure("SQLite", url, under_attack, Path(directory) / name, name)
            outcomes.append(replace(found, attack=(attack.__doc__ or "").partition(":")[0].rstrip(".")))
    facts = {
        "commit": commit(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "note": note,
        **asdict(load),
    }
    write(output, _page(load, facts, outcomes), {**facts, "runs": [asdict(item) for item in outcomes]})


def _measure(name: str, url: str, load: Load, state_dir: Path, attack: str = "") -> Outcome:
    state_dir.mkdir(parents=True)
    console.print(
        f"{name} {attack}: {load.beforehand:,} requests into the ledger, then {load.seconds:g} s of load"
    )
    _fill(url, load)
    certificates = state_dir / "certificates"
    callers = [f"caller-{number}" for number in range(load.connections)]
    for kind, holder in (("server", "localhost"), *(("operator", name) for name in callers), *_ATTACKERS):
        script = str(ROOT / "deploy" / "make_certificates.sh")
        subprocess.run(["sh", script, str(certificates), kind, *holder.split()], check=True)
    with running_service(url, state_dir, certificates) as service, run_attack(attack, service, certificates):
        authority = certificates / "ca.crt"
        tls = [
            TlsFiles(authority, certificates / f"{name}.pem", certificates / f"{name}.key")
            for name in callers
        ]
        answers = _send(service.address, tls, load)
        peak_mib, most_threads = service.peak_mib(), service.num_threads()
    return replace(_judge(name, url, answers), peak_mib=peak_mib, most_threads=most_threads)


def _fill(url: str, load: Load) -> None:
    """Write requests of all kinds and the clients of the run, in one transaction, by the ledger's own steps."""
    now = datetime.now(UTC)
    names = [f"old-{number}" for number in range(load.beforehand)]
    opened = Ledger.open(url)
    token = opened.acquire_fence("benchmark", now=now)
    run = [ClientRecord(f"new-{number}") for number in range(load.num_requests)]
    opened.live(token, lambda: now).register_clients([*map(ClientRecord, [*names, *ATTACKERS]), *run])
    opened.close()
    database = Database(url)
    with database.writing() as connection:
        for number, name in enumerate(names):
            new = NewRequest(
                target=Target(Granularity.CLIENT, name),
                method="puf-special",
                parameters={"unlearning_rate": 2.0},
                submitted_by="load",
                idempotency_key=name,
            )
            row = insert_row(connection, new, (now.date(), now.date()), now)
            sealed = {row_seals.REQUEST_SHA256: row_seals.request_hash(connection, row)}
            chain.append(connection, number + 1, "submitted", actor="load", detail=sealed, now=now)
            # Of ten, four are completed, five cancelled, and one is open.
            way = FORGETTING if number % 10 < 4 else (Status.CANCELLED,) if number % 10 < 9 else ()
            for status in way:
                request = statements.get(connection, f"r-{number + 1:06d}")
                if status is Status.VERIFYING:
                    connection.execute(sa.insert(schema.exclusions).values(request_number=number + 1, at=now))
                statements.write_move(connection, request, status, actor="load", now=now)
    database.close()


@dataclass(frozen=True, slots=True)
class Service:
    """A deletion service in a process of its own, and what the kernel says of it."""

    address: str
    http: str
    metrics: str
    process_id: int

    def peak_mib(self) -> float:
        """Return the most memory that it has held."""
        return self._status("VmHWM") / 1024

    def forget_peak(self) -> None:
        """Count the most memory from now on."""
        Path(f"/proc/{self.process_id}/clear_refs").write_text("5")

    def num_threads(self) -> int:
        """Return its threads now."""
        return self._status("Threads")

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.process_id}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _few_files() -> None:
    """Set what systemd gives a service that asks for nothing: 1,024 open files, which it may raise itself."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))


@contextmanager
def run_attack(attack: str, service: Service, certificates: Path) -> Iterator[None]:
    """Yield an attacker in a process of its own, for two seconds before and while the block runs."""
    if not attack:
        yield
        return
    module, *place = (
        ["http_attacks", service.http, str(certificates)]
        if attack in HTTP_ATTACKS
        else ["deletion_attacks", service.address, str(certificates), service.metrics]
    )
    command = [sys.executable, "-m", f"benchmarks.speed.{module}", attack, *place]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    try:
        time.sleep(ATTACKED_BEFORE_S)
        yield
    finally:
        process.kill()
        process.communicate(timeout=60)


@contextmanager
def running_service(url: str, state_dir: Path, certificates: Path) -> Iterator[Service]:
    """`flower-unlearn serve` in a process of its own; a client's token is in certificates/NAME.token."""
    tokens = certificates / "tokens.json"
    for name, role in (*((name, Role.CLIENT) for name in ATTACKERS), (OPERATOR, Role.OPERATOR)):
        (certificates / f"{name}.token").write_text(
            make_token(tokens, name, role, datetime.now(UTC), may_erase_clients=True)
        )
    command = [sys.executable, "-c", "from server.cli import main; main()", "serve"]
    command += ["--state-dir", str(state_dir), "--address", "127.0.0.1:0"]
    command += ["--metrics", "127.0.0.1:0", "--http", "127.0.0.1:0", "--http-tokens", str(tokens)]
    command += ["--tls-ca", str(certificates / "ca.crt"), "--tls-cert", str(certificates / "server.pem")]
    command += ["--tls-key", str(certificates / "server.key")]
    environment = {**os.environ, "FLOWER_UNLEARNING_LEDGER": url, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=_few_files
    )
    try:
        assert process.stdout is not None
        said = "".join(process.stdout.readline() for _ in range(3))
        found = re.search(r"listens at (\S+)\.\n.* https://(\S+), .*\n.* http://(\S+)/metrics", said)
        if found is None:
            raise RuntimeError(f"The service did not start: {said!r}.")
        yield Service(found[1], found[2], found[3], process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=60)


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
            with suppress(grpc.FutureTimeoutError):  # who gets no connection has it written down call by call
                grpc.channel_ready_future(channel).result(timeout=CALL_TIMEOUT_S)
            submit = open_call(channel, "SubmitRequest")
            with suppress(grpc.RpcError):  # so that the process that knows the methods has begun
                open_call(channel, "ListMethods")(pb.ListMethodsRequest(), timeout=CALL_TIMEOUT_S)
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
                    if time.monotonic() > begin[0] + load.seconds + CALL_TIMEOUT_S:
                        answers[which].append(Answer(key, "NOT SENT", 0.0, load.seconds))
                        continue
                    submit(message, timeout=CALL_TIMEOUT_S)
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


def _judge(name: str, url: str, answers: list[Answer]) -> Outcome:
    served = [answer for answer in answers if answer.status == "OK"]
    latencies = sorted(answer.latency_ms for answer in served) or [float("nan")]
    ledger = Ledger.open(url)
    filed = {request.idempotency_key for request in ledger.requests.select()}
    outcome = Outcome(
        database=name,
        answered=len(served),
        failed=dict(Counter(answer.status for answer in answers if answer.status != "OK")),
        lost=sum(answer.key not in filed for answer in served),
        chain_holds=ledger.events.verify() == "",
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
    """Yield the URL of an empty database: the given one, or one of a private server with its usual
    durability.
    """
    if given:
        yield given
        return
    with ExitStack() as stack:
        try:
            url = stack.enter_context(private_server(is_durable=True))
        except FileNotFoundError as exc:
            raise SystemExit(f"{exc} Install it, or give --postgresql-url.") from exc
        yield url


_COLUMNS = (
    *("answered", "failed", "lost", "chain holds", "median, ms", "99 %, ms", "longest, ms"),
    *("MiB", "threads", "s", "load"),
)


def _page(load: Load, facts: dict[str, Any], outcomes: list[Outcome]) -> list[str]:
    rows = [
        [
            item.attack or item.database,
            f"{item.answered:,}",
            f"{sum(item.failed.values()):,}",
            f"{item.lost:,}",
            "yes" if item.chain_holds else "NO",
            *(f"{value:.1f}" for value in (item.median_ms, item.p99_ms, item.max_ms)),
            f"{item.peak_mib:.0f}",
            item.most_threads,
            f"{item.seconds:.1f}",
            f"{item.load_average:.1f}",
        ]
        for item in outcomes
    ]
    return [
        "# The deletion service under load",
        "",
        f"Made by `benchmarks.speed.deletion_load` at {facts['commit']}: {load.rate:g} deletion requests a second "
        f"for {load.seconds:g} s over {load.connections} connections of an operator each, with mutual TLS, "
        f"{load.beforehand:,} requests in the ledger beforehand; service, database and sender on one machine "
        f"({facts['cores']} cores, {facts['machine']}).",
        "",
        *table(["ledger", *_COLUMNS], rows[:2]),
        "",
        "## Under attack",
        "",
        f"The same {load.rate:g} requests a second of operators into SQLite, while an attacker on the same machine",
        "does what the first column says. The service starts with 1,024 open files, as systemd has it.",
        "",
        *table(["attack", *_COLUMNS], rows[2:]),
        "",
        "A latency begins when the request was planned, so waiting in a queue is in it. *lost*: answered, but not",
        "in the ledger afterwards. *load*: the machine's load average at the end; what is above the number of",
        "cores is waiting, and a good part of it may be work that has nothing to do with this. *MiB*, *threads*:",
        "the most memory that the service held, and its threads at the end; PyTorch is in a process beside it.",
        "",
        *([facts["note"], ""] if facts["note"] else []),
    ]


if __name__ == "__main__":
    typer.run(main)
