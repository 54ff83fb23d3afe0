"""A ServerApp that times rounds: Flower's own FedAvg, ours, and PUF-Regular's unlearning round, in turn.

All with the same clients, model and data, in one run; `benchmarks/speed/rounds.py` starts it. The kinds take turns
so that a slow minute of the machine hits all of them. Settings are the project's own; where to write, how often to
repeat and which kinds stand in a file that the environment names, because clients read the same run configuration.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg as StockFedAvg

from benchmarks.speed.large_data import Peak
from strategies.exchange import exchange
from strategies.fedavg import FedAvg
from strategies.messages import NOTICE, vector_of
from strategies.sessions.endpoint import Endpoint
from strategies.sessions.payloads import ACCOUNT, SessionStatistics
from strategies.sessions.session_grid import SessionGrid
from strategies.settings.run_config import RunSettings
from strategies.unlearning_strategy import UnlearningStrategy
from unlearning.methods.registry import method_named
from unlearning.parameters import content_hash
from unlearning.requests import Exclusions, Granularity, Target
from unlearning.tasks import make_task

app = ServerApp()

_SITE_NAMES = ("flwr-clientapp", "flower-supernod", "flower-unlearn-")
"""Of programs at sites, as the kernel cuts them off; a SuperExec there is one that has a parent."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Time the kinds of rounds in turn and write the seconds of each."""
    settings = RunSettings.from_run_config(context.run_config)
    plan = json.loads(Path(os.environ["BENCH_PLAN"]).read_text(encoding="utf-8"))
    kinds: list[str] = plan["kinds"]
    endpoint = Endpoint.from_settings(settings)
    if endpoint is not None:
        grid = SessionGrid(grid, endpoint, always=settings.transport == "session")
    ours = FedAvg(make_task(settings.task()), settings)
    ours.await_clients(grid)
    start = ours.initial_arrays()
    rounds: dict[str, Callable[[int], Any]] = {
        "empty": lambda number: _empty(grid, ours, number),
        "stock": lambda number: _stock(grid, settings, start, number),
        "ours": lambda number: _ours(grid, ours, start, number),
        "unlearning": lambda number: _unlearning(grid, ours, start, number),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    processor: dict[str, list[float]] = {kind: [] for kind in kinds}
    memory: dict[str, list[float]] = {kind: [] for kind in kinds}
    number = 0
    for kind in kinds if plan["warm_up"] else []:  # does not count: Ray starts, data is loaded
        number += 1
        rounds[kind](number)
    at_sites: dict[str, list[float]] = {kind: [] for kind in kinds}
    totals: list[dict[str, float]] = []
    for turn in range(plan["repeats"]):
        for kind in kinds[:: -1 if turn % 2 else 1]:  # none is always the first after another one
            number += 1
            started, busy, sites_busy = time.perf_counter(), _busy(), _sites_busy()
            with Peak() as peak:
                came_of_it = rounds[kind](number)
            seconds[kind].append(time.perf_counter() - started)
            processor[kind].append(_busy() - busy)
            memory[kind].append(peak.own)
            at_sites[kind].append(_sites_busy() - sites_busy)
            if kind == "ours":
                totals.append(came_of_it[1])
    model = _ours(grid, ours, start, 1)[0] if "ours" in kinds else ""
    found = {**seconds, "processor": processor, "sites": at_sites, "memory": memory}
    found |= {"computed": totals, "model": model}
    written = Path(f"{plan['output']}.new")
    written.write_text(json.dumps(found), encoding="utf-8")
    written.rename(plan["output"])
    time.sleep(plan["linger_s"])
    if isinstance(grid, SessionGrid):
        grid.close()


def _busy() -> float:
    """Return the processor seconds that this machine has worked since its start, whoever for."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _sites_busy() -> float:
    """Return the processor seconds of all sites so far, those of their ended processes too."""
    total = 0.0
    for process in psutil.process_iter(["name", "cmdline", "cpu_times"]):
        times, words = process.info["cpu_times"], process.info["cmdline"] or ()
        # One that waits to be collected has nothing but its name.
        is_a_sites = process.info["name"].startswith(_SITE_NAMES) or "--parent-pid" in words
        if is_a_sites and times is not None:
            total += times.user + times.system + times.children_user + times.children_system
    return float(total)


def _empty(grid: Grid, strategy: FedAvg, number: int) -> None:
    """Tell every client what every message tells it: the least that an exchange can be."""
    done = exchange(grid, strategy.plan.messages(NOTICE, number, strategy.eligible(grid)), timeout_s=600.0)
    assert len(done.messages) == strategy.settings.num_clients


def _stock(grid: Grid, settings: RunSettings, start: ArrayRecord, number: int) -> None:
    strategy = StockFedAvg(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=settings.num_clients,
        min_available_nodes=settings.num_clients,
    )
    messages = strategy.configure_train(number, start, ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages, timeout=settings.round_timeout_s))
    arrays, _ = strategy.aggregate_train(number, replies)
    assert len(replies) == settings.num_clients
    assert arrays is not None


def _ours(grid: Grid, strategy: FedAvg, start: ArrayRecord, number: int) -> tuple[str, dict[str, float]]:
    """Train a round; return the model's hash, and over sessions how long each client has computed so far."""
    messages = strategy.train_messages(number, start, grid)
    done = exchange(grid, messages, timeout_s=strategy.settings.round_timeout_s)
    arrays, _ = strategy.aggregate_train(number, done.messages.values())
    assert len(done.replies) == strategy.settings.num_clients
    assert arrays is not None
    said = {
        client: SessionStatistics.from_json(values.get(ACCOUNT)) for client, values in done.values.items()
    }
    computed = {client: one.seconds_computing for client, one in said.items() if one is not None}
    return content_hash(vector_of(arrays)), computed


def _unlearning(grid: Grid, fedavg: FedAvg, start: ArrayRecord, number: int) -> None:
    """Time PUF-Regular: as many participants as a training round, one of them to be forgotten."""
    strategy = UnlearningStrategy(method_named("puf-regular"), [Target(Granularity.CLIENT, "0")], fedavg)
    messages = strategy.unlearn_messages(number, start, grid)
    done = exchange(grid, messages, timeout_s=fedavg.settings.round_timeout_s)
    strategy.aggregate_train(number, done.messages.values())
    assert strategy.is_finished
    assert len(done.replies) == fedavg.settings.num_clients
    fedavg.follow(replace(fedavg.plan, exclusions=Exclusions()))
