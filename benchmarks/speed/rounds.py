"""Seconds a round: ours beside Flower's own FedAvg, an unlearning round beside a training round, and scale.

    python -m benchmarks.speed.rounds deployment --output docs/results/rounds-deployment
    python -m benchmarks.speed.rounds simulation --output docs/results/rounds-simulation

`deployment`: real SuperLink and SuperNodes on this machine, in three arms: stock Flower; messages; sessions.
`simulation`: Flower's Ray simulation with 10, 100 and 1,000 virtual clients. digits has 1,437 examples for them; with
MNIST (from the directory FLOWER_UNLEARNING_DATA) there are 3,000 too:

    python -m benchmarks.speed.rounds simulation --dataset mnist --output docs/results/rounds-simulation-mnist

Figures are medians over repetitions that take turns in one run; ratios are medians of the ratios of neighbours.
"""

import json
import os
import platform
import statistics
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.deployment import LocalDeployment
from benchmarks.process_group import local_superlink
from benchmarks.tables import table, write
from server.operations.flower_control import ConfigValue, config_argument, flower_environment
from strategies.installation import program

app = typer.Typer(add_completion=False)
console = Console()
ROOT = Path(__file__).parents[2]

Seconds = dict[str, list[Any]]


def write_app(
    directory: Path,
    module: str = "round_app",
    *,
    serverapp: str = "app",
    clientapp: str = "client.app",
) -> Path:
    """Return an app directory whose ServerApp is in a module beside this one; its settings are the project's.

    serverapp: the ServerApp's name in it. clientapp: the module whose `app` is the ClientApp.
    """
    directory.mkdir(parents=True)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for old, new in (
        ('serverapp = "server.app:app"', f'serverapp = "{module}:{serverapp}"'),
        ('clientapp = "client.app:app"', f'clientapp = "{clientapp}:app"'),
        ('fab-include = ["README.md"]', f'fab-include = ["{module}.py"]'),
    ):
        assert old in text, f"pyproject.toml no longer says {old}"
        text = text.replace(old, new)
    (directory / "pyproject.toml").write_text(text, encoding="utf-8")
    (directory / "README.md").write_text("Times rounds.\n", encoding="utf-8")
    source = (ROOT / "benchmarks" / "speed" / f"{module}.py").read_text(encoding="utf-8")
    (directory / f"{module}.py").write_text(source, encoding="utf-8")
    return directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The kinds of rounds that the ServerApp times, how often each, and where it writes the seconds.

    warm_up: whether a round of each kind goes before that does not count. linger_s: how long the run stays afterwards.
    """

    output: Path
    kinds: tuple[str, ...]
    repeats: int
    warm_up: bool = True
    linger_s: float = 0.0

    def write(self, path: Path) -> dict[str, str]:
        """Write the plan to `path`; returns the variable by which the ServerApp finds it."""
        text = json.dumps({**asdict(self), "output": str(self.output)})
        path.write_text(text, encoding="utf-8")
        return {"BENCH_PLAN": str(path)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to run rounds: what the deployment is given, and the kinds of rounds that are timed."""

    deployment: dict[str, Any]
    settings: dict[str, ConfigValue]
    training: str
    kinds: tuple[str, ...]


ARMS = {
    "stock Flower": Arm(deployment={}, settings={}, training="stock", kinds=("empty", "stock")),
    "messages": Arm(deployment={}, settings={}, training="ours", kinds=("empty", "ours", "unlearning")),
    "sessions": Arm(
        deployment={"with_sessions": True},
        settings={"transport": "session"},
        training="ours",
        kinds=("empty", "ours", "unlearning"),
    ),
}
"""Stock Flower: its own FedAvg, a process a message, the same ClientApp."""


@app.command()
def deployment(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    clients: int = 3,
    repeats: int = 3,
    passes: int = 2,
    dataset: str = "digits",
    model: str = "logistic",
    data_dir: str = "",
) -> None:
    """Time rounds over stock Flower, over messages and over sessions; real processes."""
    found: dict[str, Seconds] = {}
    config: dict[str, ConfigValue] = {"dataset": dataset, "model": model, "data-dir": data_dir}
    for number in range(passes):
        for name, arm in ARMS.items():
            one = _time_arm(arm, config, clients, repeats)
            console.print(
                f"pass {number + 1}, {name}: {statistics.median(one[arm.training]):.2f} s a training round"
            )
            before = found.setdefault(name, {})
            for kind, values in one.items():
                before[kind] = before.get(kind, []) + values
    models = {tuple(one["model"]) for name, one in found.items() if "ours" in one}
    if len({hashes[0] for hashes in models}) > 1:
        console.print("The arms gave different models.")
        raise typer.Exit(1)
    _write_arms(output, f"{clients} SuperNodes on this machine, {model} on {dataset}", found, clients)


def _time_arm(arm: Arm, config: dict[str, ConfigValue], clients: int, repeats: int) -> Seconds:
    """Return the seconds of each kind of round, and what else the ServerApp has written."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        result = directory / "seconds.json"
        with LocalDeployment(
            directory / "federation",
            num_clients=clients,
            app_dir=write_app(directory / "app"),
            run_config={**config, **arm.settings, "num-clients": clients},
            environment=Plan(output=result, kinds=arm.kinds, repeats=repeats).write(directory / "plan.json"),
            **arm.deployment,
        ) as federation:
            status = federation.wait_until_finished(federation.submit_run(), 180 + 90 * (repeats + 1))
            if not result.exists():
                console.print(status, federation.log_tails())
                raise typer.Exit(1)
        found = json.loads(result.read_text(encoding="utf-8"))
    processor, sites = found.pop("processor"), found.pop("sites")
    found.pop("memory")
    totals = found.pop("computed")
    work = [max(after[c] - before.get(c, 0.0) for c in after) for before, after in pairwise(totals) if after]
    return {
        **found,
        "model": [found["model"]],
        "arithmetic": work,
        **{f"{kind}, processor": values for kind, values in processor.items()},
        **{f"{kind}, sites": values for kind, values in sites.items()},
    }


def _write_arms(output: Path, title: str, found: dict[str, Seconds], clients: int) -> None:
    stock = found["stock Flower"]
    rows = []
    for name, one in found.items():
        training, empty = one[ARMS[name].training], one["empty"]
        costs = []
        for what in ("sites", "processor"):
            cost = statistics.median(one[f"{ARMS[name].training}, {what}"])
            of_stock = cost / statistics.median(stock[f"stock, {what}"])
            costs += [f"{cost / clients:.2f}", f"{of_stock:.3f}"]
        rows.append(
            [
                name,
                f"{statistics.median(empty):.2f}",
                f"{statistics.median(empty) / statistics.median(stock['empty']):.3f}",
                f"{statistics.median(training):.2f}",
                f"{statistics.median(training) / statistics.median(stock['stock']):.3f}",
                f"{statistics.median(one['unlearning']):.2f}" if "unlearning" in one else "–",
                *costs,
                f"{statistics.median(one['arithmetic']):.3f}" if one["arithmetic"] else "–",
                f"{60 / statistics.median(training):.0f}",
            ]
        )
    headings = [
        *("", "empty round, s", "of stock", "training round, s", "of stock", "PUF-Regular round, s"),
        *("site's processor s a message", "of stock", "whole machine's", "of stock"),
        *("slowest client's arithmetic, s", "rounds a minute"),
    ]
    lines = [f"# {title}", "", *table(headings, rows), ""]
    lines += [
        f"{os.cpu_count()} cores, {platform.machine()}, load average {os.getloadavg()[2]:.1f}; medians of "
        f"{len(stock['stock'])} rounds; the arms take turns, each on a federation of its own; SuperExec looks for "
        "messages every 0.2 s in all of them. An empty round is a notice to every client. Processor seconds are "
        "those of a training round over its messages: of the sites' processes, ended ones included, and of the whole "
        "machine with server, SuperLink and whatever else runs. "
        "The models of all arms but stock are the same to the bit."
    ]
    write(output, lines, found)


@app.command()
def simulation(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    clients: Annotated[list[int] | None, typer.Option(help="As the dataset has examples for.")] = None,
    repeats: int = 5,
    dataset: str = "digits",
) -> None:
    """Count rounds a minute with virtual clients on Ray; each of them must get an example of the data set."""
    found: dict[str, Seconds] = {}
    for count in clients or (10, 100, 1000, *([3000] if dataset != "digits" else [])):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            result = directory / "seconds.json"
            app_dir = write_app(directory / "app")
            home = directory / "home"
            home.mkdir()
            plan = Plan(output=result, kinds=("stock", "ours", "unlearning"), repeats=repeats)
            variables = {
                **os.environ,
                **flower_environment(home),
                **plan.write(directory / "plan.json"),
                "OMP_NUM_THREADS": "1",
            }
            config: dict[str, ConfigValue] = {"dataset": dataset, "model": "logistic", "num-clients": count}
            command = [program("flwr"), "run", str(app_dir), "local", "--stream"]
            command += ["--federation-config", f"num-supernodes={count}"]
            command += ["--run-config", config_argument(config)]
            with local_superlink(home) as own:
                environment = {**variables, **own}
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=3600, check=False
                )
            if not result.exists():
                console.print(done.stdout[-4000:], done.stderr[-4000:])
                raise typer.Exit(1)
            seconds = json.loads(result.read_text(encoding="utf-8"))
            memory = {f"{kind}, bytes": seconds["memory"][kind] for kind in plan.kinds}
            found[f"{count:,} virtual clients"] = {kind: seconds[kind] for kind in plan.kinds} | memory
        _write(output, f"Ray simulation on this machine, logistic on {dataset}", found)


def _write(output: Path, title: str, found: dict[str, Seconds]) -> None:
    rows = []
    for name, seconds in found.items():
        stock, ours, unlearning = (seconds[kind] for kind in ("stock", "ours", "unlearning"))
        ratio = statistics.median(b / a for a, b in zip(stock, ours, strict=True))
        to_round = statistics.median(b / a for a, b in zip(ours, unlearning, strict=True))
        middle = [statistics.median(values) for values in (stock, ours, unlearning)]
        first, second, third = (f"{value:.2f}" for value in middle)
        most = [max(seconds[f"{kind}, bytes"]) / 1e6 for kind in ("stock", "ours")]
        row = [name, first, second, f"{ratio:.3f}", third, f"{to_round:.3f}", f"{60 / middle[1]:.1f}"]
        rows.append([*row, *(f"{one:.0f}" for one in most)])
    headings = [
        "",
        "Flower's FedAvg, s",
        "ours, s",
        "ratio",
        "PUF-Regular round, s",
        "ratio to a training round",
    ]
    headings += ["rounds per minute", "server in Flower's FedAvg, MB", "in ours, MB"]
    lines = [f"# {title}", "", *table(headings, rows), ""]
    lines += [
        f"{os.cpu_count()} cores, {platform.machine()}; medians of {len(stock)} that take turns. Memory is the most "
        "that the ServerApp's process, in which Ray's driver is, held of its own during a round; all kinds share it."
    ]
    write(output, lines, found)


if __name__ == "__main__":
    app()
