"""What a deletion's exchanges cost beside a training round, of a large model: seconds and memory, by method.

    python -m benchmarks.speed.deletion_scale --output docs/results/deletion-scale

The processes, the model and the sessions are those of `benchmarks.speed.scale`. Three rounds train; then client 0 is
forgotten. Each exchange goes as in the live loop: messages, answers, checks, the method's step, and the look at the
model that it has made. There are no measurements of attacks, which ask for outputs and not for vectors.
"""

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.speed.large_data import Peak
from benchmarks.speed.scale import MB, first_state, machine, server, settings_of, site_processes, train_round
from benchmarks.tables import table, write
from strategies.exchange import exchange
from strategies.messages import model_record
from strategies.unlearning_strategy import UnlearningStrategy
from unlearning.methods.registry import method_named
from unlearning.methods.unlearned_model import check_unlearned
from unlearning.requests import Granularity, Target

TRAINED, SMALL = 3, 100_000
PREPARED = {"pga": "pga"}
"""The methods here that need something kept while training, and the setting for it."""
METHODS = [
    "puf-special",
    "puf-regular",
    "not",
    "gradient-ascent",
    "neggrad-plus",
    "pga",
    "mode",
    "fedosd",
    "fedquit",
]
METHODS += ["fedmemprune", "retrain"]
HEADINGS = (
    *("method", "exchanges", "s each", "× a training round", "server, CPU-s each", "of a training round"),
    *("server, MB more", "in training", "site, MB more", "in training"),
)


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    method: Annotated[list[str], typer.Option(help="Once for each.")] = METHODS,
    parameters: int = 11_000_000,
    clients: int = 3,
) -> None:
    """Measure each method, and write the page."""
    cells = [("", SMALL), *((name, parameters) for name in method)]
    found: dict[str, Any] = {}
    for name, size in cells:
        with ProcessPoolExecutor(
            1, mp_context=get_context("spawn")
        ) as fresh:  # an earlier one may hold memory
            found[name or "smallest"] = fresh.submit(measure, name, size, clients).result()
        print(name, json.dumps(found[name or "smallest"]), flush=True)
    figures = {
        "figures": list(next(reversed(found.values()))),
        **{name: [*one.values()] for name, one in found.items()},
    }
    write(output, _page(found, parameters, clients), figures)


def measure(method: str, parameters: int, clients: int) -> dict[str, Any]:
    """Return the medians of training rounds and of a method's exchanges, and the most memory of both."""
    config = settings_of(parameters, clients, prepare=PREPARED.get(method, ""))
    with TemporaryDirectory() as name:
        with site_processes(Path(name), clients, config) as (grid, pipes):
            found = _rounds(Path(name), grid, config, method)
        sites = [round(pipe.recv()["memory"] / MB) for pipe in pipes]
    return {**found, "site_mb": sites[0], "other_sites_mb": max(sites[1:])}


def _rounds(directory: Path, grid: Any, config: Mapping[str, Any], method: str) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"round": [], "server": []}
    found: dict[str, Any] = {}
    with server(directory, grid, config) as (fedavg, sessions, checkpoints):
        state = first_state(fedavg)
        with Peak() as peak:
            for number in range(1, TRAINED + 1):
                one, state = train_round(fedavg, sessions, checkpoints, replace(state, round=number))
                for part, values in seconds.items():
                    values.append(one[part])
        found |= {part: round(median(values), 3) for part, values in seconds.items()}
        found["training_mb"] = round(peak.own / MB)
        if not method:
            return found
        strategy = UnlearningStrategy(method_named(method), [Target(Granularity.CLIENT, "0")], fedavg)
        taken: list[tuple[float, float]] = []
        with Peak() as peak:
            while not strategy.is_finished:
                began, busy = time.perf_counter(), time.process_time()
                number += 1
                messages = strategy.unlearn_messages(number, model_record(state.parameters), sessions)
                done = exchange(sessions, messages, timeout_s=3600.0)
                strategy.aggregate_train(number, done.messages.values())
                assert strategy.state is not None, "there was an exchange"
                check_unlearned(fedavg.task, strategy.state.parameters, state.parameters)
                taken.append((time.perf_counter() - began, time.process_time() - busy))
                del messages, done
        each, busy_each = (round(median(values), 3) for values in zip(*taken, strict=True))
    return {
        **found,
        "exchanges": len(taken),
        "s": each,
        "busy": busy_each,
        "deletion_mb": round(peak.own / MB),
    }


def _page(found: Mapping[str, Any], parameters: int, clients: int) -> list[str]:
    least = found["smallest"]
    rows = [
        [
            *(name, one["exchanges"], f"{one['s']:.2f}", f"{one['s'] / one['round']:.2f}"),
            *(f"{one['busy']:.2f}", f"{one['server']:.2f}"),
            *(one["deletion_mb"] - least["training_mb"], one["training_mb"] - least["training_mb"]),
            *(one["site_mb"] - least["site_mb"], one["other_sites_mb"] - least["site_mb"]),
        ]
        for name, one in found.items()
        if name != "smallest"
    ]
    note = (
        f"{parameters:,} parameters ({4 * parameters / MB:.0f} MB), {clients} clients; {machine()}, load average "
        f"{os.getloadavg()[0]:.0f}. Client 0 is forgotten; the site is its own. Memory is beyond that with "
        f"{SMALL:,} parameters; an ordinary round may take {2.5 * 4 * parameters / MB + 64 * clients:.0f} MB at the "
        f"server and {3 * 4 * parameters / MB:.0f} at a site."
    )
    return ["# A deletion's exchanges beside a training round", "", *table(HEADINGS, rows), "", note]


if __name__ == "__main__":
    typer.run(main)
