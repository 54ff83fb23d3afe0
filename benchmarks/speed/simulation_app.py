"""An app that says when its parts begin, for `benchmarks/speed/simulation_start.py`.

`SIMULATION_CLIENT` says what its ClientApp is: one that answers and imports Flower alone (`flower`), PyTorch beside
(`torch`), or the project's own (`ours`). Each process appends lines of JSON to a file of its own in `SIMULATION_MARKS`.
"""

import time

BEGAN = time.time()

import json  # noqa: E402 - the imports below are what is timed
import os  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import psutil  # noqa: E402
from flwr.app import Context, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

KIND = os.environ["SIMULATION_CLIENT"]
WAIT_S, TIMEOUT_S, ROUNDS = 120.0, 600.0, 4


def mark(name: str, **values: Any) -> None:
    """Say that something has come about now."""
    path = Path(os.environ["SIMULATION_MARKS"]) / f"{os.getpid()}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"name": name, "at": time.time(), "pid": os.getpid(), **values}) + "\n")


def _answer(message: Message, context: Context) -> Message:  # noqa: ARG001 - as Flower calls it
    return Message(RecordDict(), reply_to=message)


def load_site(settings: Any, node_config: Any) -> Any:
    """As the project's own; being of this module, it makes an actor that is given the app import this module."""
    from strategies import built_in

    return built_in.load_site(settings, node_config)


def _client_app() -> ClientApp:
    if KIND == "ours":
        from client.app import make_client_app
        from strategies import built_in

        return make_client_app(built_in.make_task, load_site, table=built_in.NO_TABLE)
    if KIND == "torch":
        import torch  # noqa: F401 - it is timed
    made = ClientApp()
    made.train()(_answer)
    return made


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Send every client a message to train on, some rounds in turn, and say how long each took."""
    mark("the ServerApp begins")
    wanted = int(context.run_config["num-clients"])
    rounds = _our_rounds(grid, context) if KIND == "ours" else _empty_rounds(grid)
    deadline = time.monotonic() + WAIT_S
    while len(list(grid.get_node_ids())) < wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    for number in range(1, ROUNDS + 1):
        started = time.monotonic()
        rounds(number)
        mark("round", number=number, seconds=time.monotonic() - started)
        if number == 1:
            _mark_processes()


def _empty_rounds(grid: Grid) -> Any:
    def one(_number: int) -> None:
        messages = [
            Message(RecordDict(), dst_node_id=node, message_type="train") for node in grid.get_node_ids()
        ]
        replies = list(grid.send_and_receive(messages, timeout=TIMEOUT_S))
        assert len(replies) == len(messages)
        assert not any(reply.has_error() for reply in replies)

    return one


def _our_rounds(grid: Grid, context: Context) -> Any:
    from strategies.exchange import exchange
    from strategies.fedavg import FedAvg
    from strategies.settings.run_config import RunSettings
    from unlearning.tasks import make_task

    settings = RunSettings.from_run_config(context.run_config)
    strategy = FedAvg(make_task(settings.task()), settings)
    arrays = strategy.initial_arrays()
    mark("the strategy is made")

    def one(number: int) -> None:
        strategy.await_clients(grid)
        done = exchange(grid, strategy.train_messages(number, arrays, grid), timeout_s=TIMEOUT_S)
        strategy.aggregate_train(number, done.messages.values())
        assert len(done.replies) == settings.num_clients

    return one


def _mark_processes() -> None:
    """Say which processes this one has started by now, when each began, and how long each has worked."""
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            times, words = process.cpu_times(), " ".join(process.cmdline())
            mark(
                "process", began=process.create_time(), processor=times.user + times.system, words=words[:300]
            )
        except psutil.Error:  # it has ended
            continue


app = _client_app()
mark("the app is imported", began=BEGAN, seconds=time.time() - BEGAN, process=psutil.Process().create_time())
