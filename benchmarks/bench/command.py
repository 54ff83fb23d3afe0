"""The command `flower-unlearn bench`: an experiment file in, tables and figures out."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from strategies.command_line import show_lines, wants_json
from unlearning.errors import ConfigurationError
from unlearning.runtime.durable_files import write_atomically
from unlearning.runtime.json_codec import to_plain

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
    seed: Annotated[list[int] | None, typer.Option(min=0, max=2**31 - 1, help="Only these seeds.")] = None,
    num_oracles: Annotated[
        int,
        typer.Option(
            "--oracles",
            min=0,
            help="This number of oracles, or shadow federations, instead of the experiment's own number.",
        ),
    ] = 0,
    only_finished: Annotated[
        bool, typer.Option("--only-finished", help="Compute nothing: write what finished parts say.")
    ] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List the experiments that come along.")] = False,
    app: Annotated[
        str, typer.Option(help="The directory of your own app: compare methods on its task and data.")
    ] = "",
    state_dir: Annotated[
        Path | None,
        typer.Option(
            help="With --app: the state directory of its federation, whose plans then show the figures."
        ),
    ] = None,
) -> None:
    """Run an experiment: train, retrain and forget by every method; write the papers' tables and figures."""
    # Imported here because they bring in PyTorch, which no other command of people needs.
    from benchmarks.bench.experiment_files import shipped_experiments

    if list_them:
        _list(shipped_experiments())
        return
    chosen = _chosen(experiment, app)
    if data_dir and not app:
        chosen = chosen.model_copy(update={"run": {**chosen.run, "data-dir": data_dir}})
    if num_oracles:
        chosen = chosen.of_number(num_oracles)
    if seed:
        chosen = chosen.model_copy(update={"seeds": tuple(dict.fromkeys(seed))})
    if app:
        check_seeds(chosen.seeds)

    from benchmarks.bench import runner

    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("server").setLevel(logging.ERROR)
    console = Console(stderr=wants_json(), markup=False, emoji=False)
    console.print(f"{chosen.title}, {len(chosen.seeds)} seed(s): {runner.cost(chosen)}", style="bold")
    rows = runner.finished(chosen, work) if only_finished else _run(chosen, work, jobs, console)
    replaced = [f"--oracles {num_oracles}"] if num_oracles else []
    replaced += [f"--app {app}"] if app else []
    command = " ".join(
        [
            "flower-unlearn bench",
            *filter(None, [experiment]),
            *replaced,
            *(f"--seed {one}" for one in seed or ()),
        ]
    )
    written = _write(chosen, rows, command, output)
    if app:
        written += _write_own(chosen, rows, state_dir or output)
    show_lines(*((path,) for path in written), data={"written": [str(path) for path in written]})


def _list(known: Mapping[str, tuple[Path, str]]) -> None:
    """Show the experiments that come along."""
    from benchmarks.bench.experiment_files import read_values

    titles = {name: str(read_values(path, size)["title"]) for name, (path, size) in known.items()}
    show_lines(
        *((f"{name:<24}", title) for name, title in titles.items()),
        data=[{"name": name, "title": title} for name, title in titles.items()],
    )


def _chosen(experiment: str, app: str) -> "Experiment":
    """Return the experiment that is named, or that of an app.

    Raises:
        ConfigurationError: none or both are named, or it is not in order.
    """
    from benchmarks.bench.experiment import Experiment, found
    from benchmarks.bench.own_app import values_of

    if bool(experiment) == bool(app):
        raise ConfigurationError(
            ["experiment: name one, give a file, or --app and your own app's directory; --list shows them."]
        )
    return Experiment.model_validate(values_of(app)).checked() if app else found(experiment)


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse so few seeds that they say nothing of chance.

    Raises:
        ConfigurationError: they are too few.
    """
    from benchmarks.bench.own_app import FEWEST_SEEDS

    if len(set(seeds)) < FEWEST_SEEDS:
        raise ConfigurationError(
            [f"seed: plans show figures of {FEWEST_SEEDS} seeds or more, got {len(set(seeds))}; give more."]
        )


def _write_own(chosen: "Experiment", rows: "list[Row]", directory: Path) -> list[Path]:
    """Write what plans show of an app's own runs; return the file."""
    from benchmarks.bench.comparing import own_comparisons
    from server.state_directory.files import OWN_RUNS

    found = own_comparisons(chosen, rows)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / OWN_RUNS, json.dumps(to_plain(found), indent=1).encode())
    return [directory / OWN_RUNS]


def _run(chosen: "Experiment", work: Path, jobs: int, console: Console) -> "list[Row]":
    from benchmarks.bench import runner

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
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
    drawn = figures.draw(chosen, rows, base) if chosen.pictures else []
    text = tables.markdown(chosen, rows, command, runner.circumstances(chosen, rows))
    text += "".join(f"\n![{chosen.title}]({path.name})\n" for path in drawn)
    write_atomically(page, text.encode())
    return [page, packed, *drawn]


def packed_rows(rows: "list[Row]") -> bytes:
    """Return rows as the file that is kept of them: to six digits, which is more than a table shows."""
    from benchmarks.tables import compressed, to_six_digits  # it imports PyTorch

    return compressed("".join(json.dumps(to_six_digits(row)) + "\n" for row in rows))
