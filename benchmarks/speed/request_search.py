"""Measures how long a list of requests takes that is searched for a word, at many requests, on both databases.

    python -m benchmarks.speed.request_search [NUMBER]

Each request has a reference and a note, of words of which most are in a few per cent of them. Prints by word
the median of eleven searches for a page of 50, in time and in this process's processor time; a database server has
its own.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from random import Random
from statistics import median
from typing import Any

import sqlalchemy as sa

from benchmarks.speed.postgresql import private_server
from server.ledger import Ledger, RequestFilter, schema
from unlearning.requests import Granularity, Outcome, Status

WORDS = {
    "DSR-2026-012345": "a whole reference",
    "012345": "a part of a reference",
    "letter": "a common word of notes",
    "erasure": "a word of every note",
    "müller": "a rare word of notes",
    "zzzzzz": "a word of none",
    "site-17": "a client",
    "puf": "a part of a method",
    "r-012345": "a number",
    "2026-03": "a month",
    "erasure letter": "two words",
}
_NOTE = (
    "phone",
    "letter",
    "e-mail",
    "ward",
    "study",
    "consent",
    "withdrawn",
    "archived",
    "copy",
    "cardiology",
)
_PAGE = 50
_RESULT = {"cost": {"seconds": 12.5, "bytes": 1_000_000}, "recovery_rounds": 2, "model_hash_after": "0" * 64}


def fill(url: str, number: int) -> None:
    """Write requests into an empty ledger, without events: a hundredth failed, a third completed, the others not."""
    engine, random = sa.create_engine(url), Random(7)
    with engine.begin() as connection:
        connection.execute(sa.insert(schema.requests), list(_requests(number, random)))
        connection.execute(sa.insert(schema.request_texts), list(_texts(number, random)))
        is_failed, is_completed = schema.requests.c.number % 100 == 0, schema.requests.c.number % 3 == 0
        ended = sa.update(schema.requests)
        connection.execute(ended.where(~is_failed & ~is_completed).values(status=str(Status.CANCELLED)))
        completed = {
            "status": str(Status.COMPLETED),
            "outcome": str(Outcome.NOT_SHOWN),
            "attempts": 1,
            "result": _RESULT,
        }
        connection.execute(ended.where(~is_failed & is_completed).values(completed))
        failed = {"status": str(Status.FAILED), "reason": "client site-3: no answer within 60 s"}
        connection.execute(ended.where(is_failed).values(failed))
        columns = schema.requests.c
        carried_out = sa.select(columns.number, columns.updated_at).where(~is_failed & is_completed)
        connection.execute(sa.insert(schema.exclusions).from_select(["request_number", "at"], carried_out))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")
    engine.dispose()


def _requests(number: int, random: Random) -> Iterator[dict[str, Any]]:
    for one in range(number):
        day = date(2020, 1, 1) + timedelta(days=random.randrange(2500))
        at = datetime(day.year, day.month, day.day, tzinfo=UTC)
        client, num_samples = f"site-{random.randrange(200)}", 5 * (one % 2)
        granularity = Granularity.SAMPLE if num_samples else Granularity.CLIENT
        yield {
            "idempotency_key": str(one),
            "target": {"granularity": str(granularity), "client_id": client, "class_label": None},
            "client_id": client,
            "method": random.choice(("puf-special", "puf-regular", "retrain", "natural", "fedau")),
            "parameters": {},
            "submitted_by": f"officer-{random.randrange(20)}",
            "status": str(Status.RECEIVED),
            "created_at": at,
            "updated_at": at,
            "num_samples": num_samples,
            "received_on": day,
            "due_on": day + timedelta(days=30),
        }


def _texts(number: int, random: Random) -> Iterator[dict[str, Any]]:
    for one in range(number):
        note = f"request for erasure by {' '.join(random.choices(_NOTE, k=5))}"
        if one % 5000 == 0:
            note += " Frau Müller"
        for kind, text in (("reference", f"DSR-2026-{one:06d}"), ("note", note)):
            yield {
                "request_number": one + 1,
                "kind": kind,
                "sha256": "0" * 64,
                "salt": "0" * 64,
                "text": text,
            }


def main(number: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder, private_server(is_durable=False) as postgresql:
        for url in (f"sqlite:///{folder}/ledger.db", postgresql):
            ledger = Ledger.open(url)
            fill(url, number)
            print(f"\n{url.partition(':')[0]}, {number:,} requests: median time, processor time, found")
            for word, what in {"": "no word", **WORDS}.items():
                times, cpu, total = _search(ledger, word)
                print(f"  {word:16} {median(times):6.1f} ms {median(cpu):6.1f} ms {total:7,}  {what}")
            ledger.close()


def _search(ledger: Ledger, word: str) -> tuple[list[float], list[float], int]:
    times, cpu = [], []
    wanted = RequestFilter(text=word, descending=True, limit=_PAGE)
    for _ in range(11):
        begun, cpu_begun = time.perf_counter(), time.process_time()
        page = ledger.requests.page(wanted, today=date(2026, 11, 1))
        times.append((time.perf_counter() - begun) * 1000)
        cpu.append((time.process_time() - cpu_begun) * 1000)
    return times, cpu, page.total


if __name__ == "__main__":
    main(int((*sys.argv[1:], "100000")[0]))
