"""What an exchange of a method costs over a session and by Flower messages, with real processes on this machine.

    python -m benchmarks.speed.sessions --output docs/results/sessions

Federated Newton-CG without preconditioner: one gradient, then a product an exchange. The same deletion is
carried out twice, on two fresh federations. Over the session, the figure to look at is the time from the slowest
client's connection to its End beside what it computed in that time; by messages there is only the whole. Last
come the checkpoints, one after each exchange, timed in this process with the solve's own arrays.
"""

import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from benchmarks.deployment import LocalDeployment
from benchmarks.tables import table, write
from benchmarks.timing import time_call
from server.federation.checkpoints import CheckpointStore
from server.federation.state import ActiveDeletion, FederationState, Phase
from server.ledger import Ledger
from strategies.settings.run_config import RunSettings
from unlearning.methods.method import UnlearningState
from unlearning.requests import Granularity, Status, Target
from unlearning.tasks import make_task
from unlearning.training import initial_parameters

console = Console()
HEADINGS = (
    *("model", "transport", "exchanges", "s in all", "s an exchange", "stream open, s", "of it computing, s"),
    *("bytes sent", "bytes received"),
)
ROOT = Path(__file__).parents[2]
CG_VECTORS = 4
"""Vectors of the model's size that the solve keeps: solution, residual, direction, right-hand side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One deletion. session_s and computing_s: of the slowest client, None by messages."""

    exchanges: int
    seconds: float
    bytes_sent: int
    bytes_received: int
    session_s: float | None
    computing_s: float | None
    model_hash: str


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    clients: int = 3,
    products: int = 20,
    model: list[str] = ["logistic", "cnn"],  # noqa: B006 - typer reads the default from here
    dataset: str = "digits",
    data_dir: str = "",
    max_examples: int = 0,
    timeout_s: float = 1800.0,
) -> None:
    """Measure each model over a session and by messages."""
    found: dict[str, Any] = {}
    for name in model:
        config = {
            "dataset": dataset,
            "model": name,
            "num-clients": clients,
            "data-dir": data_dir,
            "max-examples": max_examples,
        }
        with_session = measure_federation(config, products, with_sessions=True, timeout_s=timeout_s)
        by_messages = measure_federation(config, products, with_sessions=False, timeout_s=timeout_s)
        if with_session.model_hash != by_messages.model_hash:
            console.print(f"{name}: the two transports gave different models.")
            raise typer.Exit(1)
        found[name] = {
            "session": asdict(with_session),
            "messages": asdict(by_messages),
            "parameters": len(start_of(config)),
            "checkpoint_s": checkpoint_seconds(config),
        }
        _write(output, dataset, clients, products, found)


def measure_federation(
    config: Mapping[str, Any], products: int, *, with_sessions: bool, timeout_s: float
) -> Measured:
    """Return one federation of real processes, one deletion."""
    request = (
        f"at=1 client=1 method=newton-cg iterations={products} tolerance=0 trust_radius=1e6 damping=1 "
        "precondition=false"
    )
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        settings = {
            **config,
            "rounds": 1,
            "requests": request,
            "recovery-max-rounds": 0,
            "max-score-loss": 0.0,
        }
        with LocalDeployment(
            directory / "federation",
            num_clients=int(config["num-clients"]),
            app_dir=ROOT,
            run_config=settings,
            with_sessions=with_sessions,
        ) as federation:
            state_dir = federation.layout.state_dir
            run_id = federation.submit_run({"state-dir": str(state_dir)})
            status = federation.wait_until_finished(run_id, timeout_s)
            console.print(f"{config['model']}, {'session' if with_sessions else 'messages'}: {status}")
        ledger = Ledger.open(federation.layout.ledger_url)
        try:
            (served,) = ledger.requests.select(statuses=(Status.COMPLETED,))
            (record,) = (record for record in ledger.rounds() if record.kind == "unlearning")
        finally:
            ledger.close()
        text = (state_dir / "reports" / served.id / "report.json").read_text(encoding="utf-8")
    unlearning = json.loads(text)["unlearning"]
    accounts = list(record.metrics.get("session", {}).values())
    return Measured(
        exchanges=unlearning["rounds"],
        seconds=unlearning["seconds"],
        bytes_sent=unlearning["bytes_sent"],
        bytes_received=unlearning["bytes_received"],
        session_s=max((account["seconds"] for account in accounts), default=None),
        computing_s=max((account["seconds_computing"] for account in accounts), default=None),
        model_hash=served.result["model_hash_unlearned"],
    )


def checkpoint_seconds(config: Mapping[str, Any], repeats: int = 5) -> float:
    """Return the median time of writing a checkpoint in the middle of a solve, durably."""
    start = start_of(config)
    method_state = UnlearningState(
        parameters=start, arrays={"start": start, **{f"cg.{n}": start + n for n in range(CG_VECTORS)}}
    )
    target = Target(Granularity.CLIENT, "1")
    batch = ActiveDeletion(
        request_ids=("r-000001",),
        targets=(target,),
        method="newton-cg",
        parameters={},
        attempt=1,
        started_round=1,
        hash_before="",
        method_state=method_state,
    )
    state = FederationState(parameters=start, phase=Phase.UNLEARNING, deletion=batch)
    seconds = []
    with tempfile.TemporaryDirectory() as name:
        store = CheckpointStore(Path(name))
        for number in range(repeats):
            save = partial(store.save, replace(state, round=number), token=1)
            seconds.append(time_call(save)[0])
    return float(np.median(seconds))


def start_of(config: Mapping[str, Any]) -> Any:
    """Return the model that training starts from."""
    settings = RunSettings.from_run_config(config)
    return initial_parameters(make_task(settings.task()), settings.seed)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _write(output: Path, dataset: str, clients: int, products: int, found: Mapping[str, Any]) -> None:
    lines = [
        "# Sessions beside Flower messages",
        "",
        f"Made by `benchmarks.speed.sessions`: federated Newton-CG with {products} products and no preconditioner on "
        f"{dataset}, {clients} SuperNodes on this machine ({os.cpu_count()} cores, {platform.machine()}), two of "
        "them retained. Both transports gave the same model, bit for bit.",
        "",
        *table(HEADINGS, _cells(found)),
        "",
        "*s in all* begins with the invitation and so has one start of a Python process at each client, and its "
        "end, in it; *stream open* is the slowest client's time from its connection to the End, with the waits "
        "for the others and for the server's checkpoints.",
        "",
        *(
            f"A checkpoint of {name} in the middle of a solve takes {1000 * entry['checkpoint_s']:.1f} ms, one an "
            "exchange with either transport."
            for name, entry in found.items()
        ),
    ]
    write(output, lines, found)


def _cells(found: Mapping[str, Any]) -> Iterator[list[object]]:
    for name, entry in found.items():
        for transport in ("session", "messages"):
            one = entry[transport]
            yield [
                f"{name} ({entry['parameters']:,})",
                transport,
                one["exchanges"],
                f"{one['seconds']:.1f}",
                f"{one['seconds'] / one['exchanges']:.2f}",
                _seconds(one["session_s"]),
                _seconds(one["computing_s"]),
                f"{one['bytes_sent']:,}",
                f"{one['bytes_received']:,}",
            ]


if __name__ == "__main__":
    typer.run(main)
