"""Run every kind of user app where users run theirs, and write a table of what works.

    python -m benchmarks.user_apps --output docs/results/user-apps [--kinds adam gru] [--transports session messages]

In this process each app forgets client 1 by its method, and once by retraining, which the first is compared with. Then
the same app and settings run in Flower's simulation and on a SuperLink with three SuperNodes, over sessions and by
messages: the final weights must be those of this process. What `--work` has already is not run again.
"""

import argparse
import json
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tables
from benchmarks.demo.simulation import LocalSimulation
from benchmarks.deployment import LocalDeployment
from benchmarks.user_apps.app import TABLE, client_app, server_app, settings_of, write
from benchmarks.user_apps.kinds import KINDS
from server.federation.checkpoints import CheckpointStore
from strategies.in_process_grid import run_apps
from unlearning.errors import FlowerUnlearningError
from unlearning.parameters import Vector
from unlearning.runtime.durable_files import make_private, write_atomically

TRANSPORTS = ("simulation", "session", "messages")
NUM_CLIENTS = 3
WAIT_S = 1200.0
PREFACE = """# Users' own apps

Three sites of 90 examples; a third of site 1's labels are wrong, and client 1 is deleted before the last of four
rounds, with at most three rounds of recovery. Scores are on the server's test data, or where it has none on what sites
retain: before the deletion, after it and its recovery, and where the deletion is by `retrain`. *same*: the final
weights are those of the run in one process, to the largest difference given, as a share of the largest weight.
"""
SAME = 1e-5
"""Of the largest weight: how far the final weights of a transport may be from those in this process."""

Result = dict[str, Any]
Run = Callable[[str], tuple[Path, str]]
"""Runs a kind's app to its end; returns its state directory and its log."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a run leaves: the final model, or why there is none."""

    model: Vector | None
    report: Mapping[str, Any]
    said: str


def ended(state_dir: Path, said: str) -> Ended:
    """Read a run's final model and report."""
    reports = list(state_dir.glob("reports/*/report.json"))
    newest = (
        CheckpointStore(state_dir / "checkpoints").newest() if (state_dir / "checkpoints").exists() else None
    )
    report = json.loads(reports[0].read_text(encoding="utf-8")) if reports else {}
    return Ended(model=newest.parameters if newest and report else None, report=report, said=said)


def in_process(name: str, method: str) -> Ended:
    """Run a kind's app in this process."""
    with tempfile.TemporaryDirectory() as folder:
        config = {**settings_of(name, method), f"{TABLE}.kind": name, "state-dir": folder}
        said = ""
        try:
            run_apps(server_app(name), client_app(name), config, num_clients=NUM_CLIENTS)
        except FlowerUnlearningError as exc:
            said = str(exc)
        return ended(Path(folder), said)


def score(report: Mapping[str, Any], stage: int) -> float | None:
    """Return the score at a stage of the deletion, 0 before and -1 after all of it.

    On the server's test data; where it has none, on what sites retain.
    """
    measured = report.get("measurements") or [{}]
    test = measured[stage].get("test") or measured[stage].get("retained") or {}
    found: float | None = test.get("score")
    return found


def reference(name: str) -> tuple[Result, Vector | None]:
    """Return what a kind's app does in this process, by its method and by retraining, and its final weights."""
    kind = KINDS[name]
    found, retrained = in_process(name, kind.method), in_process(name, "retrain")
    result: Result = {"what": kind.what, "method": kind.method}
    if kind.refused:
        result["refused"] = found.said
        result["as expected"] = kind.refused in found.said
        return result, None
    result["works"] = found.model is not None and (retrained.model is not None) == kind.retrains
    result["said"] = found.said
    result["scores"] = {
        "before": score(found.report, 0),
        "forgotten": score(found.report, -1),
        "retrained": score(retrained.report, -1),
    }
    return result, found.model


@contextmanager
def deployed(directory: Path, transport: str) -> Iterator[Run]:
    """Give a function that runs apps, one after another, on one deployment of processes, or in a simulation."""
    first = write("adam", {}, directory / "first")
    if transport == "simulation":
        with LocalSimulation(directory, num_clients=NUM_CLIENTS, app_dir=first) as here:
            yield lambda name: _run(here, name, directory, {})
        return
    sessions = transport == "session"
    with LocalDeployment(directory, num_clients=NUM_CLIENTS, app_dir=first, with_sessions=sessions) as here:
        more = {"transport": transport, **(here.layout.session_settings() if sessions else {})}
        yield lambda name: _run(here, name, directory, more)


def _run(here: LocalDeployment, name: str, directory: Path, more: Mapping[str, Any]) -> tuple[Path, str]:
    """Write a kind's app and run it to its end."""
    state_dir = directory / "states" / name
    settings = {**settings_of(name, KINDS[name].method), **more, "state-dir": str(state_dir)}
    for client in range(here.layout.num_clients):  # each remembers what it has forgotten
        shutil.rmtree(here.layout.client_dir(client) / "state", ignore_errors=True)
        make_private(here.layout.client_dir(client) / "state")
    here.run_app_in(write(name, settings, directory / "apps" / name))
    run_id = here.submit_run({"state-dir": str(state_dir)})
    here.wait_until_finished(run_id, WAIT_S)
    return state_dir, here.control.log(run_id)


def compared(name: str, found: Ended, here: Path) -> Result:
    """Return how a run elsewhere compares with the one in this process, whose weights are in a file."""
    if KINDS[name].refused:
        as_expected = KINDS[name].refused in found.said and found.model is None
        return {"as expected": as_expected, **({} if as_expected else {"said": found.said[-600:]})}
    model = found.model
    if model is None or not here.exists():
        return {"as expected": False, "said": found.said[-600:]}
    expected = np.load(here)
    apart = float(np.abs(model - expected).max() / np.abs(expected).max())
    return {"as expected": apart <= SAME, "apart": apart}


def run(work: Path, names: list[str], transports: list[str]) -> dict[str, Result]:
    """Run what is not in the folder `work` yet; returns all that is."""
    work.mkdir(parents=True, exist_ok=True)
    progress = work / "results.json"
    results: dict[str, Result] = json.loads(progress.read_text(encoding="utf-8")) if progress.exists() else {}

    def keep(name: str, found: Result) -> None:
        print(f"{time.strftime('%H:%M:%S')} {name}: {found}", flush=True)
        write_atomically(progress, json.dumps(results, indent=1).encode())

    for name in names:
        if name in results and (KINDS[name].refused or (work / f"{name}.npy").exists()):
            continue
        results[name], model = reference(name)
        results[name]["made"] = tables.provenance()  # kinds are run when they are written
        if model is not None:
            np.save(work / f"{name}.npy", model)
        keep(name, results[name])
    for transport in transports:
        missing = [name for name in names if transport not in results[name]]
        if not missing:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="apps-", dir="/tmp") as folder,
            deployed(Path(folder), transport) as run_app,
        ):
            for name in missing:
                began = time.monotonic()
                found = compared(name, ended(*run_app(name)), work / f"{name}.npy")
                results[name][transport] = {**found, "seconds": round(time.monotonic() - began, 1)}
                keep(f"{name} by {transport}", results[name][transport])
    return results


def page(results: Mapping[str, Result]) -> list[str]:
    """Return the page of results: a table with a row for each kind."""
    headings = ["app", "method", "before", "forgotten", "retrained", *TRANSPORTS]
    rows = []
    for result in results.values():
        scores = result.get("scores", {})
        cells = [_number(scores.get(stage)) for stage in ("before", "forgotten", "retrained")]
        if "refused" in result:
            cells = [f"refused: {_short(result['refused'])}", "", ""]
        rows.append([result["what"], result["method"], *cells, *(_cell(result, one) for one in TRANSPORTS)])
    return [PREFACE, *tables.table(headings, rows)]


def _short(sentence: str) -> str:
    return " ".join(sentence.split())[:160]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _cell(result: Result, transport: str) -> str:
    found = result.get(transport)
    if found is None:
        return "not run"
    if not found["as expected"]:
        return "differs"
    return "the same sentence" if "refused" in result else f"same ({found['apart']:.1g})"


def main() -> None:
    """Run what is asked for and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="the page's path without its ending")
    parser.add_argument("--work", type=Path, default=Path("runs/user-apps"), help="what was run so far")
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--transports", nargs="*", choices=TRANSPORTS, default=list(TRANSPORTS))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the processes of a deployment too
    logging.getLogger("flwr").setLevel(logging.ERROR)
    found = run(options.work, options.kinds, options.transports)
    results = {name: found[name] for name in KINDS if name in found}
    tables.write(options.output, page(results), {"apps": results})
