"""What requests cost at many of them: filing, plans, lists, counts and the console's pages, in milliseconds.

    python -m benchmarks.speed.requests_at_scale --output docs/results/requests-at-scale [--number 100000]

The ledger is one SQLite file with a third of its requests completed; service and console are in this process. Something
has happened before each call, so that the console reads all of a page, but where it says otherwise. The times are of
this process, for a machine may be busy, and of the wall. Searches: `benchmarks.speed.request_search`.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated

import sqlalchemy as sa
import typer
from starlette.testclient import TestClient

from benchmarks.speed.request_search import fill
from benchmarks.tables import commit, table, write
from server.console.auth import LoginLink
from server.console.launch import Settings, who_calls
from server.console.rendering import Console
from server.console.routes import make_app
from server.console.saved_filters import SavedFilters
from server.ledger import FEDERATION, ClientRecord, Ledger, NewRequest, RequestFilter, schema
from server.operations.metrics import LedgerCollector
from server.requests.admission import admit
from server.requests.planning import plan
from server.service.client import DeletionClient
from server.service.grpc_server import serve
from server.service.method_descriptions import describe_methods
from unlearning.methods.eligibility import FederationProfile
from unlearning.requests import Granularity, Status, Target
from unlearning.runtime.gc_tuning import nothing_collected
from unlearning.runtime.json_codec import to_plain

_SITES, _ROUNDS, _PORT = 200, 10_000, 4711
_WORK_LIST = "console: work list"
_PAGES = {
    _WORK_LIST: "/requests",
    "console: completed, 40th page": "/requests?state=completed&page=40",
    "console: cancelled, by due day": "/requests?state=cancelled&sort=due",
    "console: held, by client": "/requests?state=held&sort=subject",
    "console: search": "/requests?q=letter",
    "console: search, by client": "/requests?q=letter&sort=subject",
    "console: register of a year": "/register?first=2025-01-01&last=2025-12-31",
    "console: a request": "/requests/r-000300",
    "console: federation": "/federation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Milliseconds of one call."""

    what: str
    cpu_median: float
    cpu_p99: float
    wall_median: float
    wall_p99: float


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    number: Annotated[int, typer.Option(help="Requests in the ledger.")] = 100_000,
    repeats: Annotated[int, typer.Option(help="Calls of each kind.")] = 50,
) -> None:
    """Measure each call and write the table."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as parts:
        # What is there when `serve` and `console` begin is not looked through later.
        with nothing_collected():
            ledger = _filled(f"sqlite:///{folder}/ledger.db", number)
            parts.callback(ledger.close)
            browser = parts.enter_context(_browser(ledger, Path(folder)))
        happen = partial(ledger.acquire_fence, "benchmark", now=datetime.now(UTC))
        calls = _calls(ledger, browser)
        costs = [_cost(what, call, repeats, happen) for what, call in calls.items()]
        costs.append(_cost(f"{_WORK_LIST}, nothing new", calls[_WORK_LIST], repeats))
    facts = {"commit": commit(), "number": number, "repeats": repeats}
    write(output, _page(facts, costs), {**facts, "costs": [asdict(cost) for cost in costs]})


def _filled(url: str, number: int) -> Ledger:
    ledger = Ledger.open(url)
    fill(url, number)
    now = datetime.now(UTC)
    writer = ledger.live(ledger.acquire_fence("benchmark", now=now), lambda: now)
    writer.register_clients([ClientRecord(f"site-{site}", last_seen=now) for site in range(_SITES)])
    profile = FederationProfile(
        task="digits",
        score_name="accuracy",
        num_classes=10,
        num_parameters=650,
        bytes_per_parameter=4,
        num_head_parameters=650,
        recovery_max_rounds=3,
    )
    writer.set_facts({FEDERATION: to_plain(profile)})
    metrics = {"seconds": 2.0, "participants": ["site-1"], "num_examples": 100}
    rows = [
        {"round": one, "kind": "training", "request_ids": [], "metrics": metrics, "at": now}
        for one in range(_ROUNDS)
    ]
    with ledger.database.writing() as connection:
        connection.execute(sa.insert(schema.rounds), rows)
    return ledger


@contextmanager
def _browser(ledger: Ledger, folder: Path) -> Iterator[TestClient]:
    """Yield a browser that is signed in at a console of a service over the ledger."""
    service = serve(ledger, folder / "reports", "127.0.0.1:0")
    with DeletionClient(service.address) as client:
        login = LoginLink(_PORT, lambda _: None)
        caller, _ = who_calls(Settings(address=service.address, tls=None, name="ada"))
        filters = SavedFilters(folder / "filters.json")
        console = Console(
            service=client, caller=caller, address=service.address, login=login, filters=filters
        )
        browser = TestClient(make_app(console), base_url=f"http://127.0.0.1:{_PORT}", follow_redirects=False)
        browser.get(login.link)
        yield browser
    service.stop(0)


def _calls(ledger: Ledger, browser: TestClient) -> Mapping[str, Callable[[], object]]:
    target = Target(Granularity.CLIENT, "site-7")
    today, requests = date(2026, 11, 1), ledger.requests
    newest = RequestFilter(descending=True, limit=50)
    completed = RequestFilter(statuses=(Status.COMPLETED,), limit=1000)
    collector = LedgerCollector(ledger)

    def file(method: str) -> object:
        new = NewRequest(target=target, method=method, submitted_by="ada", idempotency_key="")
        return admit(ledger, new, now=datetime.now(UTC), by_operator=True)

    def get(path: str) -> object:
        answer = browser.get(path)
        assert answer.status_code == 200, (path, answer.text)
        return answer

    return {
        "file, with a method": lambda: file("puf-special"),
        "file, without": lambda: file(""),
        "plan": lambda: plan(ledger, target, now=datetime.now(UTC)),
        "methods": lambda: describe_methods(ledger),
        "list, 50 newest": lambda: requests.page(newest, today=today),
        "list, 1,000 completed": lambda: requests.page(completed, today=today),
        "counts by state and outcome, deadlines": lambda: (
            requests.status_counts(),
            requests.oldest_open(),
            requests.outcome_counts(),
            requests.deadlines(today),
        ),
        "metrics": lambda: [*collector.collect()],
        **{what: partial(get, path) for what, path in _PAGES.items()},
    }


def _cost(
    what: str, call: Callable[[], object], repeats: int, happen: Callable[[], object] = lambda: None
) -> Cost:
    cpu, wall = [], []
    for _ in range(repeats + 1):  # the first does not count
        happen()
        began, cpu_began = time.perf_counter(), time.process_time()
        call()
        wall.append(1000 * (time.perf_counter() - began))
        cpu.append(1000 * (time.process_time() - cpu_began))
    return Cost(
        what=what,
        cpu_median=median(cpu[1:]),
        cpu_p99=quantiles(cpu[1:], n=100)[-1],
        wall_median=median(wall[1:]),
        wall_p99=quantiles(wall[1:], n=100)[-1],
    )


def _page(facts: Mapping[str, object], costs: list[Cost]) -> list[str]:
    rows = [
        (one.what, *(f"{ms:.1f}" for ms in (one.cpu_median, one.cpu_p99, one.wall_median, one.wall_p99)))
        for one in costs
    ]
    return [
        "# Requests at scale",
        "",
        f"Made by `python -m benchmarks.speed.requests_at_scale` at {facts['commit']}: {facts['number']:,} requests",
        f"and {_ROUNDS:,} rounds in a ledger of SQLite, {_SITES} clients, {facts['repeats']} calls of each kind.",
        "Before each call something new has happened, which the console must read, unless the row says otherwise.",
        "Milliseconds of the processor, service and console together, and of the wall, in which the machine's other",
        "work is.",
        "",
        *table(("call", "processor, median", "99 %", "wall, median", "99 %"), rows),
    ]


if __name__ == "__main__":
    typer.run(main)
