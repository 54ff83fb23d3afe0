"""Deletions among ten peers without a server, beside retraining: the decentralised paper's tables I to IV and figures.

    python -m benchmarks.decentralised --data-dir DATA --work WORK --output docs/results/decentralised
    ... --only mnist --seeds 1      a part; the page has all parts that WORK holds
    ... --full                      CIFAR-10 with ResNet-18 as well: for a GPU

A finished case is kept in WORK and not computed again, so a stopped run goes on where it was. Changed settings
make new cases.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.decentralised.federation import Experiment, Federation, Trained, made_federation
from benchmarks.decentralised.runs import corrected_row, rows_of, sequence_rows, train_federation
from benchmarks.decentralised.tables import document, drawing
from benchmarks.tables import Row, provenance
from benchmarks.tables import write as write_page
from unlearning.decentralised.corrections import CorrectionSettings, PeerCurvature
from unlearning.requests import Granularity
from unlearning.runtime.durable_files import write_atomically

DIAGONAL = CorrectionSettings(curvature=PeerCurvature.FISHER_DIAGONAL, damping=1.0)
"""The paper's O(d) curvature. A diagonal misses that neighbouring pixels go together: with less damping steps are
far too long."""
HESSIAN = CorrectionSettings(curvature=PeerCurvature.HESSIAN, damping=0.1, max_iterations=50, tolerance=1e-2)

# The paper's batches and learning rate; as many rounds as bring it to the paper's accuracy.
MNIST = Experiment(
    dataset="mnist",
    model="logistic",
    max_examples=0,
    rounds=20,
    batch_size=100,
    learning_rate=0.001,
    corrections=DIAGONAL,
    client_corrections=DIAGONAL,
    compared=(
        *(replace(DIAGONAL, damping=damping) for damping in (0.1, 1.0, 3.0)),
        *(replace(HESSIAN, damping=damping) for damping in (0.1, 1.0, 3.0)),
    ),
)
# A fifth of the data in batches of a fifth, so that a round has the paper's 60 steps, and larger steps: at the paper's
# learning rate the CNN would need hundreds of rounds of the whole data set.
FASHION_MNIST = Experiment(
    dataset="fashion-mnist",
    model="lenet",
    max_examples=12_000,
    rounds=20,
    batch_size=20,
    learning_rate=0.05,
    corrections=DIAGONAL,
    client_corrections=DIAGONAL,
    compared=tuple(replace(DIAGONAL, damping=damping) for damping in (0.1, 1.0, 3.0)),
)
CIFAR10 = replace(MNIST, dataset="cifar10", model="resnet18", rounds=100, compared=())
EXPERIMENTS = (MNIST, FASHION_MNIST, CIFAR10)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to compute: a federation's deletions of one kind."""

    experiment: Experiment
    partition: str
    topology: str
    seed: int
    kind: str

    def directory(self, work: Path) -> Path:
        """Return the federation's directory; other settings have another."""
        digest = _digest(replace(self.experiment, compared=()))
        name = f"{self.experiment.dataset}-{self.partition}-{self.topology}-{self.seed}-{digest}"
        return work / name

    def file(self, work: Path) -> Path:
        """Return where its rows are kept."""
        name = f"curvature-{_digest(self.experiment.compared)}" if self.kind == "curvature" else self.kind
        return self.directory(work) / f"{name}.json"


def _digest(settings: object) -> str:
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:8]


def cases(experiments: Sequence[Experiment], seeds: int, *, first: int = 0) -> Iterator[Case]:
    """Yield all cases, one seed after the other, so that a stopped run has whole tables of fewer seeds."""
    seed_by_seed = product(range(first, seeds), experiments, ("iid", "dirichlet"), ("ring", "ER"))
    for seed, experiment, partition, topology in seed_by_seed:
        kinds = [str(level) for level in (Granularity.SAMPLE, Granularity.CLASS, Granularity.CLIENT)]
        if (partition, topology) == ("iid", "ER"):
            kinds.append("sequence")
        if (partition, topology, seed) == ("iid", "ring", 0) and experiment.compared:
            kinds.append("curvature")
        for kind in kinds:
            yield Case(experiment=experiment, partition=partition, topology=topology, seed=seed, kind=kind)


def compute_rows(case: Case, data_dir: str, work: Path) -> list[Row]:
    """Return the rows of a case, computed and kept; the federation is trained once for all its cases."""
    federation = made_federation(
        case.experiment, partition=case.partition, topology=case.topology, seed=case.seed, data_dir=data_dir
    )
    before = _before(federation, case.directory(work) / "before.npz")
    if case.kind == "sequence":
        rows = sequence_rows(federation, before)
    elif case.kind == "curvature":
        rows = [
            {"deleted": str(level), **corrected_row(federation, before, level, settings)}
            for level in (Granularity.SAMPLE, Granularity.CLASS)
            for settings in case.experiment.compared
        ]
    else:
        rows = rows_of(federation, before, Granularity(case.kind))
    labels = {
        "dataset": case.experiment.dataset,
        "partition": case.partition,
        "topology": case.topology,
        "seed": case.seed,
        "case": case.kind,
    }
    rows = [{**labels, **row} for row in rows]
    write_atomically(case.file(work), json.dumps(rows, indent=1).encode())
    return rows


def _before(federation: Federation, path: Path) -> Trained:
    """Return the trained federation, from `path` if it is there."""
    if path.exists():
        with np.load(path) as kept:
            return Trained(models=kept["models"], influence=kept["influence"], curve=kept["curve"])
    before = train_federation(federation)
    buffer = io.BytesIO()
    np.savez(buffer, models=before.models, influence=before.influence, curve=before.curve)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())
    return before


def kept_rows(work: Path, seeds: int) -> list[Row]:
    """Return the rows of all finished cases of the present settings, of so many seeds."""
    finished = [case.file(work) for case in cases(EXPERIMENTS, seeds)]
    return [row for path in finished if path.exists() for row in json.loads(path.read_bytes())]


def write(work: Path, output: Path, seeds: int) -> None:
    """Write the page, its figures as JSON, and the drawing, of what `work` holds."""
    rows = kept_rows(work, seeds)
    output.parent.mkdir(parents=True, exist_ok=True)
    lines = document(rows, EXPERIMENTS, provenance())
    picture = output.with_suffix(".png")
    if drawing(rows, picture):
        lines += ["", f"![Accuracy over three requests, and seconds]({picture.name})"]
    write_page(output, lines, {"rows": rows})


def main(
    data_dir: Annotated[str, typer.Option(help="Where the data sets' files are.")],
    work: Annotated[Path, typer.Option(help="Keeps finished cases, so that a stopped run goes on.")],
    output: Annotated[Path, typer.Option(help="Where the page goes, without an ending.")],
    only: Annotated[list[str] | None, typer.Option(help="Only these data sets.")] = None,
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="For runs side by side.")] = 0,
    full: Annotated[bool, typer.Option("--full", help="CIFAR-10 with ResNet-18, too.")] = False,
) -> None:
    """Run what is missing, and write the page after every case."""
    known = [experiment.dataset for experiment in EXPERIMENTS]
    chosen = only or [name for name in known if full or name != CIFAR10.dataset]
    if set(chosen) - set(known):
        raise typer.BadParameter(f"the data sets are {', '.join(known)}", param_hint="--only")
    for case in cases([one for one in EXPERIMENTS if one.dataset in chosen], seeds, first=first_seed):
        if case.file(work).exists():
            continue
        for row in compute_rows(case, data_dir, work):
            typer.echo(json.dumps({name: value for name, value in row.items() if name != "curve"}))
        write(work, output, seeds)
    write(work, output, seeds)


if __name__ == "__main__":
    typer.run(main)
