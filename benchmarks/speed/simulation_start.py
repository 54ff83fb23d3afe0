"""What the first round of a Ray simulation waits for: whose each second is.

    python -m benchmarks.speed.simulation_start --output docs/results/simulation-start

The same simulation with three ClientApps in turn: one that imports Flower alone and answers at once, one that imports
PyTorch beside, and the project's own, which trains. What the first takes is Ray's and Flower's; what the others take
beside it is PyTorch's import and ours.
"""

import json
import os
import platform
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.demo.simulation import LocalSimulation
from benchmarks.speed.rounds import write_app
from benchmarks.tables import table, write

app = typer.Typer(add_completion=False)
KINDS: Mapping[str, str] = {
    "flower": "a ClientApp that imports Flower alone",
    "torch": "– and PyTorch",
    "ours": "this project's",
}
LIMIT_S = 900.0


@app.command()
def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    clients: Annotated[list[int], typer.Option(help="Virtual clients; once for each size.")] = [10, 1000],  # noqa: B006 - typer reads the default from here
    repeats: Annotated[int, typer.Option(help="Simulations of each kind, which take turns.")] = 3,
) -> None:
    """Start simulations and print what their first round waited for."""
    found: dict[str, Any] = {"load": os.getloadavg()}
    lines = ["# The start of a simulation", ""]
    for count in clients:
        runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for _ in range(repeats):
            for kind in KINDS:
                runs[kind].append(_times(_simulate(count, kind)))
        found[f"{count} clients"] = runs
        lines += [f"## {count:,} virtual clients", "", *_table(runs), ""]
    lines.append(
        f"Seconds since the simulation's process began, medians of {repeats}; logistic regression on digits; "
        f"{os.cpu_count()} cores, {platform.machine()}, load average {found['load'][0]:.1f} when it began. An actor is "
        "a Ray process that runs clients; there is one. What the first column takes is Flower's and Ray's; the second "
        "adds PyTorch's import, which the ServerApp and the actor each do. The project's own trains, and its first "
        "round asks every client first who it is, in an exchange of its own."
    )
    write(output, lines, found)


def _simulate(count: int, kind: str) -> list[dict[str, Any]]:
    """Run one simulation; return the marks of its processes in the order of their time."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        app_dir = write_app(
            directory / "app", "simulation_app", serverapp="server", clientapp="simulation_app"
        )
        marks = directory / "marks"
        marks.mkdir()
        with LocalSimulation(
            directory / "federation",
            num_clients=count,
            app_dir=app_dir,
            run_config={"dataset": "digits", "model": "logistic", "num-clients": count},
            environment={"SIMULATION_CLIENT": kind, "SIMULATION_MARKS": str(marks)},
        ) as simulation:
            run = simulation.submit_run()
            status = simulation.wait_until_finished(run, LIMIT_S)
            said = simulation.control.log(run)
        found = [json.loads(line) for path in marks.glob("*.jsonl") for line in path.read_text().splitlines()]
    if not any(one["name"] == "round" for one in found):
        print(status, said[-4000:])
        raise typer.Exit(1)
    return sorted(found, key=lambda one: one["at"])


def _times(marks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return when each thing had come about, in seconds since the simulation's process began."""
    [begins] = [one for one in marks if one["name"] == "the ServerApp begins"]
    imports = {one["pid"]: one for one in marks if one["name"] == "the app is imported"}
    processes = [one for one in marks if one["name"] == "process"]
    rounds = {one["number"]: one for one in marks if one["name"] == "round"}
    this, since = begins["pid"], imports[begins["pid"]]["process"]
    actors = [one for pid, one in imports.items() if pid != this]
    raylets = [one["began"] for one in processes if "raylet/raylet" in one["words"].partition(" ")[0]]
    first = rounds[1]
    return {
        "begins": begins["at"] - since,
        "own import": imports[this]["seconds"],
        "raylet": min(raylets, default=float("nan")) - since,
        "actor's process": min(one["process"] for one in actors) - since,
        "actor imported": min(one["at"] for one in actors) - since,
        "first round begins": first["at"] - first["seconds"] - since,
        "first round ends": first["at"] - since,
        "first round": first["seconds"],
        "later round": statistics.median(one["seconds"] for number, one in rounds.items() if number > 1),
        "actors": float(len(actors)),
        "processor, all": sum(one["processor"] for one in processes),
    }


ROWS: Mapping[str, str] = {
    "begins": "the ServerApp begins: Flower, Ray and the app are imported",
    "own import": "– of that, the import of the app",
    "raylet": "Ray's own processes are started",
    "actor's process": "the actor's process exists",
    "actor imported": "it has imported Ray, Flower and the app",
    "first round begins": "the first round begins",
    "first round ends": "the first round ends",
    "first round": "seconds of the first round",
    "later round": "seconds of a later round",
    "processor, all": "processor seconds of all its processes until the first round has ended",
}


def _table(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    middle = {
        kind: {key: statistics.median(one[key] for one in found) for key in ROWS}
        for kind, found in runs.items()
    }
    rows = [[text, *(f"{middle[kind][key]:.2f}" for kind in KINDS)] for key, text in ROWS.items()]
    return table(["", *KINDS.values()], rows)


if __name__ == "__main__":
    app()
