"""How long a deletion request takes from filing to completion, over the load, and how many bytes stay of it.

    python -m benchmarks.speed.request_life --output docs/results/request-life [--loads 0.5,2,8] [--burst 200]
    FLOWER_UNLEARNING_DATA=DIRECTORY python -m benchmarks.speed.request_life --output docs/results/request-life \
        --loads "" --burst 1000 --sites 1000 --holders 300

The real server and client code with a linear model, all sites in this process: up to 100 with scikit-learn's digits,
more with 20 examples each of MNIST. Requests for one sample each are filed at a fixed rate while rounds go on; then
many at once. A stopped run goes on at the load where it stopped, from the figures in OUTPUT.json.
"""

import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.tables import commit, table, write
from client.app import app as client_app
from server.app import AppRun, run_federation
from server.ledger import Ledger, NewRequest
from server.requests.admission import admit
from server.state_directory.files import REPORTS
from server.state_directory.ledger_address import LEDGER_FILE, ledger_url
from server.state_directory.subject_key import subject_keys
from strategies import built_in
from strategies.in_process_grid import InProcessGrid
from unlearning.errors import Fenced
from unlearning.requests import Granularity, Status, Target
from unlearning.tasks.loading import load_site

_SETTINGS: Mapping[str, Any] = {
    "model": "logistic",
    "rounds": 0,
    "recovery-max-rounds": 1,
    "attack-samples": 50,
    "max-score-loss": 0.0,
    "wait-timeout-s": 0.2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Requests of one load: seconds from filing to completion, processor seconds, and bytes a request.

    rate: requests a second; 0: all at once. sites: in the federation; holders: those whose samples are asked for.
    """

    rate: float
    sites: int = 4
    holders: int = 4
    num_requests: int
    median_s: float
    p99_s: float
    longest_s: float
    deletions: int
    cpu_s: float
    report_bytes: float
    certificate_bytes: float
    ledger_bytes: float


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    loads: Annotated[str, typer.Option(help="Requests a second, with commas.")] = "0.5,2,8",
    seconds: Annotated[float, typer.Option(help="Of filing at each load.")] = 60.0,
    burst: Annotated[int, typer.Option(help="Requests at once, at the end.")] = 200,
    sites: Annotated[int, typer.Option(help="In the federation.")] = 4,
    holders: Annotated[int, typer.Option(help="Sites whose samples are asked for; 0: all.")] = 0,
    note: Annotated[str, typer.Option(help="What a reader should know of this run.")] = "",
) -> None:
    """Measure each load that OUTPUT.json has not, and write the table."""
    path = output.with_name(output.name + ".json")
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    lives = [Life(**one) for one in kept.get("lives", ())]
    wanted = [(rate, round(rate * seconds)) for rate in map(float, filter(None, loads.split(",")))] + [
        (0.0, burst)
    ]
    for rate, number in wanted:
        if not any((one.rate, one.num_requests, one.sites) == (rate, number, sites) for one in lives):
            lives.append(measure(rate, number, sites, holders or sites))
            lives.sort(key=lambda one: (one.sites, one.rate or float("inf"), one.num_requests))
            found = {"commit": commit(), "note": note, "lives": [asdict(one) for one in lives]}
            write(output, page(lives, note), found)


def measure(rate: float, number: int, sites: int, holders: int) -> Life:
    """Let a federation run, file `number` requests at `rate`, and wait until all are completed."""
    data = {"dataset": "digits"} if sites <= 100 else {"dataset": "mnist", "max-examples": 20 * sites}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        configs = [
            {
                "partition-id": site,
                "num-partitions": sites,
                "client-id": str(site),
                "state-dir": f"{folder}/{site}",
            }
            for site in range(sites)
        ]
        run_config = {**_SETTINGS, **data, "num-clients": sites, "state-dir": str(directory / "state")}
        grid = InProcessGrid(client_app, configs, run_config)
        run = AppRun.of(run_config, built_in.SOURCE, built_in.load_test)
        loop = threading.Thread(target=_run, args=(grid, run), daemon=True)
        (directory / "state").mkdir()
        ledger = Ledger.open(ledger_url(directory / "state"), subject_keys(directory / "state"))
        loop.start()
        while not ledger.rounds():
            time.sleep(0.05)
        before_bytes, before_s = _size(directory / "state" / LEDGER_FILE), time.process_time()
        _file(ledger, _targets(run, number, holders), rate)
        while len(ledger.requests.select(statuses=(Status.COMPLETED,))) < number:
            time.sleep(0.2)
        cpu_s = time.process_time() - before_s
        ledger.acquire_fence("benchmark", now=datetime.now(UTC))
        loop.join()
        life = replace(_life(ledger, directory / "state", rate, cpu_s), sites=sites, holders=holders)
        ledger.close()  # the last to close, so that no log is left beside the database
        grown = _size(directory / "state" / LEDGER_FILE) - before_bytes
    return replace(life, ledger_bytes=grown / number)


def _run(grid: InProcessGrid, run: AppRun) -> None:
    try:
        run_federation(grid, run, run_id=1)
    except Fenced:  # how it is stopped
        return


def _targets(run: AppRun, number: int, holders: int) -> Iterator[Target]:
    """Yield one sample each, of the first sites in turn."""
    ids = [sorted(load_site(run.settings.task(), site).train.ids) for site in range(holders)]
    for one in range(number):
        site = one % holders
        yield Target(Granularity.SAMPLE, str(site), frozenset({ids[site][one // holders]}))


def _file(ledger: Ledger, wanted: Iterator[Target], rate: float) -> None:
    begun = time.monotonic()
    for number, target in enumerate(wanted):
        if rate:
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        new = NewRequest(target=target, method="puf-special", submitted_by="benchmark", idempotency_key="")
        admit(ledger, new, by_operator=True, now=datetime.now(UTC))


def page(lives: Sequence[Life], note: str) -> list[str]:
    """Return the page's lines."""
    rows = [
        (
            f"{one.sites:,}",
            f"{one.holders:,}",
            f"{one.rate:g} a second" if one.rate else "all at once",
            f"{one.num_requests:,}",
            f"{one.deletions:,}",
            f"{one.median_s:.1f}",
            f"{one.p99_s:.1f}",
            f"{one.longest_s:.1f}",
            f"{one.cpu_s:.2f}",
        )
        for one in lives
    ]
    sizes = [(one.report_bytes, one.certificate_bytes, one.ledger_bytes) for one in lives]
    report, certificate, ledger = (statistics.median(column) / 1000 for column in zip(*sizes, strict=True))
    return [
        "# A request's life",
        "",
        f"Made by `python -m benchmarks.speed.request_life` at {commit()}: requests for one sample each, by",
        "PUF-Special, filed while rounds go on (a linear model, on digits, with over 100 sites on 20 examples of MNIST",
        f"each, one recovery round), all in one process of a machine with {os.cpu_count()} cores. {note}",
        "",
        *table(
            (
                *("sites", "of them asked", "filed", "requests", "deletions"),
                *("median, s", "99 %, s", "longest, s", "CPU-s per request"),
            ),
            rows,
        ),
        "",
        "From filing to completion, with report and certificate. CPU-seconds are those of the whole process, rounds",
        "and filing included, until the last request was completed.",
        "",
        "## What stays of a request",
        "",
        "Medians over the loads, in kB; what a year of requests takes is their number times the sum.",
        "`flower-unlearn prune` erases the reports.",
        "",
        *table(
            ("report.json and report.html", "certificate", "ledger (SQLite)", "1,000 requests a year, MB"),
            [
                (
                    f"{report:.1f}",
                    f"{certificate:.1f}",
                    f"{ledger:.1f}",
                    f"{report + certificate + ledger:.0f}",
                )
            ],
        ),
    ]


def _life(ledger: Ledger, state: Path, rate: float, cpu_s: float) -> Life:
    requests = ledger.requests.select()
    times = sorted((one.updated_at - one.created_at).total_seconds() for one in requests)
    number = len(requests)
    return Life(
        rate=rate,
        num_requests=number,
        median_s=statistics.median(times),
        p99_s=times[min(number - 1, round(0.99 * number))],
        longest_s=times[-1],
        deletions=len({record.request_ids for record in ledger.all_rounds() if record.kind == "unlearning"}),
        cpu_s=cpu_s / number,
        report_bytes=sum(map(_size, (state / REPORTS).glob("*/report.*"))) / number,
        certificate_bytes=sum(map(_size, (state / REPORTS).glob("*/certificate.*"))) / number,
        ledger_bytes=0.0,
    )


def _size(path: Path) -> int:
    return path.stat().st_size


if __name__ == "__main__":
    typer.run(main)
