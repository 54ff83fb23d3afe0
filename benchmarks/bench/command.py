"""The command `flower-unlearn bench`: an experiment file in, tables and figures out."""

import json
import logging
import lzma
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from unlearning.errors import ConfigurationError
from unlearning.runtime.durable_files import write_atomically

if TYPE_CHECKING:
    from benchmarks.bench.columns import Row
    from benchmarks.bench.experiment import Experiment


def bench_command(
    experiment: Annotated[
        str, typer.Argument(help="An experiment file, or the name of one that comes with the project.")
    ] = "",
    output: Annotated[Path, typer.Option(help="Directory of tables, figures and rows.")] = Path("runs/bench"),
    work: Annotated[
        Path, typer.Option(help="Directory of finished parts, from which a stopped run goes on.")
    ] = Path("runs/bench/work"),
    data_dir: Annotated[
        str, typer.Option(envvar="FLOWER_UNLEARNING_DATA", help="Where the data set's files are.")
    ] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Parts that run at once, each in its own process.")] = 1,
    seed: Annotated[list[int] | None, typer.Option(help="Only these seeds.")] = None,
    num_oracles: Annotated[
        int,
        typer.Option(
            "--oracles",
            min=0,
            help="So many oracles, or shadow federations, instead of the experiment's own number.",
        ),
    ] = 0,
    only_finished: Annotated[
        bool, typer.Option("--only-finished", help="Compute nothing: write what finished parts say.")
    ] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List the experiments that come along.")] = False,
) -> None:
    """Run an experiment: train, retrain and forget by every method; write the papers' tables and figures."""
    # Imported here because they bring in PyTorch, which no other command of people needs.
    from benchmarks.bench.experiment import Experiment, found
    from benchmarks.bench.experiment_files import shipped_experiments

    if list_them:
        for name, (path, size) in shipped_experiments().items():
            typer.echo(f"{name:<24} {Experiment.read(path, size).title}")
        return
    if not experiment:
        raise ConfigurationError(["experiment: name one or give a file; --list shows those that come along."])
    chosen = found(experiment)
    if data_dir:
        chosen = chosen.model_copy(update={"run": {**chosen.run, "data-dir": data_dir}})
    if num_oracles:
        chosen = chosen.of_number(num_oracles)
    if seed:
        chosen = chosen.model_copy(update={"seeds": tuple(seed)})

    from benchmarks.bench import runner

    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("server").setLevel(logging.ERROR)
    console = Console()
    console.print(f"[bold]{chosen.title}[/bold], {len(chosen.seeds)} seed(s): {runner.cost(chosen)}")
    rows = runner.finished(chosen, work) if only_finished else _run(chosen, work, jobs, console)
    replaced = [f"--oracles {num_oracles}"] if num_oracles else []
    command = " ".join(
        ["flower-unlearn bench", experiment, *replaced, *(f"--seed {one}" for one in seed or ())]
    )
    for written in _write(chosen, rows, command, output):
        console.print(str(written))


def _run(chosen: "Experiment", work: Path, jobs: int, console: Console) -> "list[Row]":
    from benchmarks.bench import runner

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[left]}"), console=console) as progress:
        bar = progress.add_task("parts", total=None, left="")
        started, before = time.monotonic(), -1

        def show(done: int, total: int, last: str) -> None:
            nonlocal before
            before = done if before < 0 else before
            left = runner.estimate(started, before, done, total)
            progress.update(bar, completed=done, total=total, description=last or "parts", left=left)

        return runner.run(chosen, work, jobs=jobs, progress=show)


def _write(chosen: "Experiment", rows: "list[Row]", command: str, output: Path) -> list[Path]:
    """Write tables, rows and figures; return their files. The page names the command that made them."""
    from benchmarks.bench import figures, runner, tables

    output.mkdir(parents=True, exist_ok=True)
    base = output / chosen.name
    page, packed = base.with_name(f"{base.name}.md"), base.with_name(f"{base.name}.jsonl.xz")
    write_atomically(packed, packed_rows([{"experiment": chosen.name, **row} for row in rows]))
    drawn = figures.draw(chosen, rows, base)
    text = tables.markdown(chosen, rows, command, runner.circumstances(chosen, rows))
    text += "".join(f"\n![{chosen.title}]({path.name})\n" for path in drawn)
    write_atomically(page, text.encode())
    return [page, packed, *drawn]


def packed_rows(rows: "list[Row]") -> bytes:
    """Return rows as the file that is kept of them: to six digits, which is more than a table shows."""
    exact = "".join(json.dumps(row) + "\n" for row in rows)
    short = [
        json.loads(line, parse_float=lambda digits: float(f"{float(digits):.6g}"))
        for line in exact.splitlines()
    ]
    return lzma.compress("".join(json.dumps(row) + "\n" for row in short).encode(), preset=9)
