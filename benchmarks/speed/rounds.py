"""Seconds a round: ours beside Flower's own FedAvg, an unlearning round beside a training round, and scale.

    python -m benchmarks.speed.rounds deployment --output docs/results/rounds-deployment
    python -m benchmarks.speed.rounds simulation --output docs/results/rounds-simulation

`deployment`: real SuperLink and SuperNodes on this machine; each round starts a Python process a client,
so seconds are dominated by Flower and PyTorch starting. `simulation`: Flower's Ray simulation with 10, 100 and 1,000
virtual clients. Figures are medians over repetitions that take turns in one run; ratios are medians of the
ratios of neighbours.
"""

import json
import os
import platform
import re
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.tables import table, write
from server.processes.deployment import LocalDeployment
from server.processes.flower_control import config_argument, flower_environment, program
from server.processes.layout import free_ports

app = typer.Typer(add_completion=False)
console = Console()
ROOT = Path(__file__).parents[2]

Seconds = dict[str, list[float]]


def write_app(directory: Path) -> Path:
    """Return an app directory whose ServerApp is the timing one; its settings are the project's."""
    directory.mkdir(parents=True)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = text.replace('serverapp = "server.app:app"', 'serverapp = "round_app:app"')
    text = text.replace('fab-include = ["README.md"]', 'fab-include = ["round_app.py"]')
    (directory / "pyproject.toml").write_text(text, encoding="utf-8")
    (directory / "README.md").write_text("Times rounds.\n", encoding="utf-8")
    source = (ROOT / "benchmarks" / "speed" / "round_app.py").read_text(encoding="utf-8")
    (directory / "round_app.py").write_text(source, encoding="utf-8")
    return directory


def environment(output: Path, repeats: int, kinds: str) -> dict[str, str]:
    """Return what the ServerApp reads."""
    return {"BENCH_OUTPUT": str(output), "BENCH_REPEATS": str(repeats), "BENCH_KINDS": kinds}


@app.command()
def deployment(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    clients: int = 3,
    repeats: int = 7,
    dataset: str = "digits",
    model: str = "logistic",
    data_dir: str = "",
) -> None:
    """Time ours beside Flower's FedAvg, and PUF-Regular beside a training round, on real processes."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        result = directory / "seconds.json"
        config = {"dataset": dataset, "model": model, "num-clients": clients, "data-dir": data_dir}
        with LocalDeployment(
            directory / "federation",
            num_clients=clients,
            app_dir=write_app(directory / "app"),
            run_config=config,
            environment=environment(result, repeats, "stock,ours,unlearning"),
        ) as federation:
            run_id = federation.submit_run()
            status = federation.wait_until_finished(run_id, 120 + 90 * (repeats + 1))
            if not result.exists():
                console.print(federation.log_tails())
                raise typer.Exit(1)
            console.print(f"run {status}")
        seconds: Seconds = json.loads(result.read_text(encoding="utf-8"))
    title = f"{clients} SuperNodes on this machine, {model} on {dataset}"
    _write(output, title, {f"{clients} SuperNodes": seconds})


@app.command()
def simulation(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    clients: list[int] = [10, 100, 1000],  # noqa: B006 - typer reads the default from here
    repeats: int = 5,
) -> None:
    """Count rounds a minute with virtual clients on Ray."""
    found: dict[str, Seconds] = {}
    for count in clients:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            result = directory / "seconds.json"
            app_dir = write_app(directory / "app")
            home = directory / "home"
            home.mkdir()
            port = free_ports(1)[0]
            variables = {
                **os.environ,
                **flower_environment(home),
                **environment(result, repeats, "stock,ours,unlearning"),
                "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            }
            config = {"dataset": "digits", "model": "logistic", "num-clients": count}
            command = [program("flwr"), "run", str(app_dir), "local", "--stream"]
            command += ["--federation-config", f"num-supernodes={count}"]
            command += ["--run-config", config_argument(config)]
            try:
                done = subprocess.run(
                    command, env=variables, capture_output=True, text=True, timeout=900, check=False
                )
            finally:
                _stop_local_superlink(port)
            if not result.exists():
                console.print(done.stdout[-4000:], done.stderr[-4000:])
                raise typer.Exit(1)
            found[f"{count:,} virtual clients"] = json.loads(result.read_text(encoding="utf-8"))
    _write(output, "Ray simulation on this machine, logistic on digits", found)


def _stop_local_superlink(port: int) -> None:
    """Stop the SuperLink that `flwr run . local` leaves behind; it is known by its port."""
    listing = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        match = re.match(r"\s*(\d+) .*flower-superlink.*\b" + str(port) + r"\b", line)
        if match:
            os.kill(int(match[1]), 15)


def _write(output: Path, title: str, found: dict[str, Seconds]) -> None:
    rows = []
    for name, seconds in found.items():
        stock, ours, unlearning = (seconds[kind] for kind in ("stock", "ours", "unlearning"))
        ratio = statistics.median(b / a for a, b in zip(stock, ours, strict=True))
        to_round = statistics.median(b / a for a, b in zip(ours, unlearning, strict=True))
        middle = [statistics.median(values) for values in (stock, ours, unlearning)]
        first, second, third = (f"{value:.2f}" for value in middle)
        rows.append([name, first, second, f"{ratio:.3f}", third, f"{to_round:.3f}", f"{60 / middle[1]:.1f}"])
    headings = [
        "",
        "Flower's FedAvg, s",
        "ours, s",
        "ratio",
        "PUF-Regular round, s",
        "ratio to a training round",
    ]
    lines = [f"# {title}", "", *table([*headings, "rounds a minute"], rows), ""]
    lines += [f"{os.cpu_count()} cores, {platform.machine()}; medians of {len(stock)} that take turns."]
    write(output, lines, found)


if __name__ == "__main__":
    app()
