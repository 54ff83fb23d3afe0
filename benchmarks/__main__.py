"""The ratios that README and docs speak of, in minutes (`make bench`).

    python -m benchmarks --output runs/speed

Each part is a program of its own, with more options and its own page in docs/results; here it runs in a size for two
processors. Everything is a ratio of one run, because machines differ and are busy.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

PARTS = {
    "rounds-deployment": ("benchmarks.speed.rounds", "deployment", "--repeats", "3", "--passes", "1"),
    "rounds-simulation": ("benchmarks.speed.rounds", "simulation", "--clients", "10", "--repeats", "5"),
    "curvature-cpu": ("benchmarks.speed.curvature_products", "--model", "cnn", "--repetitions", "3"),
    "deletion-load": (
        "benchmarks.speed.deletion_load",
        "--seconds",
        "10",
        "--beforehand",
        "300",
        "--attacked-seconds",
        "4",
    ),
    "certified-chain": ("benchmarks.certified.chain", "--federations", "300"),
    "certified-federated": ("benchmarks.certified.federated", "--seeds", "1", "--max-examples", "300"),
}
SMALLEST = ("rounds-simulation", "certified-federated")


def main(
    output: Annotated[Path, typer.Option(help="Directory of the pages.")] = Path("runs/speed"),
    smallest: Annotated[bool, typer.Option("--smallest", help="Only the parts that take seconds.")] = False,
) -> None:
    """Run each part and print its table; ends with 1 if one failed."""
    console = Console()
    failed = []
    for name in SMALLEST if smallest else PARTS:
        started = time.monotonic()
        console.rule(name)
        module, *options = PARTS[name]
        command = [sys.executable, "-m", module, *options, "--output", str(output / name)]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        console.print(f"{name}: {time.monotonic() - started:.0f} s")
    if failed:
        console.print(f"[red]Failed: {', '.join(failed)}[/red]; the message stands above.")
        raise typer.Exit(1)
    console.print(f"All pages are in {output}.")


if __name__ == "__main__":
    typer.run(main)
