"""The second-order methods on a FashionMNIST CNN: the rows of the HF-KCU paper as measured here.

    python -m benchmarks.second_order_images --data-dir DATA --output docs/results/second-order-fashion-mnist

Original and Retrain are trained once for each seed and setting; every method starts from the same Original and no
recovery round follows, as in the paper. What is finished stays in the work directory, and the tables are written
after every setting, so an interrupted comparison goes on where it stopped. `--full` has the paper's size and
training (60,000 examples, 20 rounds of 5 epochs, 5 seeds): hours, better on a GPU, and about 12 GB of memory.
"""

import hashlib
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from subprocess import run as run_command
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.second_order_runs import Federation, Row, Setting, Size, Way
from benchmarks.second_order_tables import Found, as_json, document

SMALL = Size(
    max_examples=1500,
    test_examples=2000,
    rounds=8,
    local_epochs=3,
    batch_size=16,
    learning_rate=0.03,
    momentum=0.9,
    weight_decay=1e-3,
    seeds=3,
    sweep_seeds=1,
    backdoor_rounds=24,
)
FULL = Size(
    max_examples=0,
    test_examples=0,
    rounds=20,
    local_epochs=5,
    batch_size=64,
    learning_rate=0.01,
    weight_decay=1e-3,
    seeds=5,
    sweep_seeds=5,
    backdoor_rounds=20,
)
ALPHA = 0.5
OTHER_ALPHAS = (0.1, 1.0)
DAMPINGS = (0.1, 0.01, 0.001)
NUM_SWEPT = 3
"""How many of the ways go through the sweeps."""
SHORT = 0.05
"""The trust radius of the short Newton step as a share of ‖θ‖: the best of 0.1, 0.05 and 0.02 on the first seed."""
LONG = 0.5
"""A step that hardly anything holds back."""
DAMPING = 0.01
"""The paper's, and so the one of every row that does not sweep it."""

console = Console()


@dataclass(frozen=True, slots=True)
class Part:
    """One setting and what is run in it; `tables` are those that its rows go into."""

    setting: Setting
    ways: tuple[Way, ...]
    tables: tuple[str, ...]


def ways(iterations: int, damping: float) -> tuple[Way, ...]:
    """The published and the corrected forms. `lanczos_steps` only adds a figure to a report, and time."""
    common = (("damping", damping), ("iterations", iterations))
    return (
        Way("HF-KCU as published", "hf-kcu", (*common, ("lanczos_steps", 0))),
        Way("HF-KCU, corrected", "hf-kcu-influence", (*common, ("lanczos_steps", 0))),
        Way("Newton-CG, short", "newton-cg", (*common, ("precondition", False), ("trust_radius", SHORT))),
        Way("Newton-CG", "newton-cg", (*common, ("precondition", False), ("trust_radius", LONG))),
        Way(
            "Newton-CG, removal only",
            "newton-cg",
            (*common, ("precondition", False), ("trust_radius", LONG), ("remove_only", True)),
        ),
    )


def plan(size: Size) -> Iterator[Part]:
    """What is run, in order: first one seed of everything, so that every table has a row early."""
    usual = ways(size.iterations, DAMPING)
    for seed in range(max(size.seeds, size.sweep_seeds)):
        swept = seed < size.sweep_seeds
        others = [ways(size.iterations, damping)[:NUM_SWEPT] for damping in DAMPINGS if damping != DAMPING]
        damped = tuple(way for group in others for way in group) if swept else ()
        yield Part(Setting(seed, ALPHA), (*usual, *damped), ("main", "damping", "alpha"))
        if swept:
            yield Part(
                Setting(seed, ALPHA, is_poisoned=True, rounds=size.backdoor_rounds), usual, ("backdoor",)
            )
            for alpha in OTHER_ALPHAS:
                yield Part(Setting(seed, alpha), usual[:NUM_SWEPT], ("alpha",))


def main(
    output: Annotated[Path, typer.Option(help="Where the tables go, without suffix.")],
    data_dir: Annotated[str, typer.Option(help="Where FashionMNIST is; or the environment variable.")] = "",
    work: Annotated[Path, typer.Option(help="Models and finished parts.")] = Path("runs/second-order-images"),
    full: Annotated[bool, typer.Option("--full", help="The paper's size instead of the small one.")] = False,
    seeds: Annotated[int, typer.Option(help="Instead of the size's own number of seeds.")] = 0,
) -> None:
    """Run what is missing and write OUTPUT.md and OUTPUT.json."""
    size = FULL if full else SMALL
    directory = work / hashlib.sha256(repr(size).encode()).hexdigest()[:12]
    parts = [part for part in plan(size) if not seeds or part.setting.seed < seeds]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    found: list[Found] = []
    with Progress(*columns, console=console) as progress:
        steps = progress.add_task("", total=sum(len(part.ways) + 2 for part in parts))

        def say(what: str) -> None:
            progress.update(steps, description=what)

        for part in parts:
            federation = Federation(size, part.setting, data_dir, directory, say)
            rows: dict[str, Row] = {}
            trained = {"Original": federation.original, "Retrain": federation.retrained}
            for title, row in trained.items():
                rows[title] = federation.measured(row())
                progress.advance(steps)
            for way in part.ways:
                rows[way.name] = {"title": way.title, **federation.measured(federation.unlearned(way))}
                progress.advance(steps)
                console.log(
                    f"{part.setting.name}: {way.title}, {dict(way.parameters)['damping']}: "
                    f"gap {rows[way.name]['gap']:.4f}, KL {rows[way.name]['kl']:.4f}"
                )
            swept = "damping" in part.tables and part.setting.seed < size.sweep_seeds
            found.append(Found(part.setting, part.tables, rows, federation.spectrum() if swept else {}))
            _write(output, size, found)
    console.print(output.with_suffix(".md").read_text(encoding="utf-8"))


def _write(output: Path, size: Size, found: list[Found]) -> None:
    commit = run_command(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    facts = {
        **{name.replace("_", " "): value for name, value in asdict(size).items()},
        "machine": f"{platform.machine()}, {torch.get_num_threads()} thread(s), torch {torch.__version__}"
        + (f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""),
        "commit": commit,
        "date": datetime.now(UTC).date().isoformat(),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    usual = {way.title: way.name for way in ways(size.iterations, DAMPING)}
    by_damping = {
        damping: {way.title: way.name for way in ways(size.iterations, damping)[:NUM_SWEPT]}
        for damping in DAMPINGS
    }
    output.with_suffix(".md").write_text(document(found, usual, by_damping, facts), encoding="utf-8")
    output.with_suffix(".json").write_text(as_json(found, facts), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
