"""A ServerApp that times rounds: Flower's own FedAvg, ours, and PUF-Regular's unlearning round, in turn.

All with the same clients, model and data, in one run; `benchmarks/speed/rounds.py` starts it. The kinds take turns
so that a slow minute of the machine hits all of them. Settings are the project's own; where to write, how
often to repeat and which kinds come from the environment, because clients read the same run configuration.
"""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg as StockFedAvg

from strategies.exchange import exchange
from strategies.fedavg import FedAvg
from strategies.messages import model_record
from strategies.run_config import RunSettings
from strategies.unlearning_strategy import UnlearningStrategy
from unlearning.methods.registry import method_named
from unlearning.requests import Exclusions, Granularity, Target
from unlearning.tasks import make_task
from unlearning.training import initial_parameters

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Time the kinds of rounds in turn and write the seconds of each."""
    settings = RunSettings.from_run_config(context.run_config)
    repeats = int(os.environ["BENCH_REPEATS"])
    kinds = os.environ["BENCH_KINDS"].split(",")
    ours = FedAvg(settings)
    ours.await_clients(grid)
    start = model_record(initial_parameters(make_task(settings.task()), settings.seed))
    rounds = {
        "stock": lambda number: _stock(grid, settings, start, number),
        "ours": lambda number: _ours(grid, ours, start, number),
        "unlearning": lambda number: _unlearning(grid, ours, start, number),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    number = 0
    for kind in kinds:  # a round of each that does not count: Ray starts, data is loaded
        number += 1
        rounds[kind](number)
    for _ in range(repeats):
        for kind in kinds:
            number += 1
            started = time.perf_counter()
            rounds[kind](number)
            seconds[kind].append(time.perf_counter() - started)
    Path(os.environ["BENCH_OUTPUT"]).write_text(json.dumps(seconds), encoding="utf-8")


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


def _ours(grid: Grid, strategy: FedAvg, start: ArrayRecord, number: int) -> None:
    messages = strategy.train_messages(number, start, grid)
    done = exchange(grid, messages, timeout_s=strategy.settings.round_timeout_s)
    arrays, _ = strategy.aggregate_train(number, done.messages.values())
    assert len(done.replies) == strategy.settings.num_clients
    assert arrays is not None


def _unlearning(grid: Grid, fedavg: FedAvg, start: ArrayRecord, number: int) -> None:
    """Time PUF-Regular: as many participants as a training round, one of them to be forgotten."""
    strategy = UnlearningStrategy(method_named("puf-regular"), [Target(Granularity.CLIENT, "0")], fedavg)
    messages = strategy.unlearn_messages(number, start, grid)
    done = exchange(grid, messages, timeout_s=fedavg.settings.round_timeout_s)
    strategy.aggregate_train(number, done.messages.values())
    assert strategy.is_finished
    assert len(done.replies) == fedavg.settings.num_clients
    fedavg.follow(replace(fedavg.plan, exclusions=Exclusions()))
