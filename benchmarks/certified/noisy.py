"""What noisy fine-tuning costs: the accuracy that is released, and how many rounds it takes to retraining's.

    python -m benchmarks.certified.noisy --data-dir DATA --output docs/results/certified-noisy
    python -m benchmarks.certified.noisy --case "LoRA on a head, CIFAR-10 features" --output docs/results/certified-lora

Ten clients, IID. A model is trained for some rounds; then a client, or 1 % of another's examples, is forgotten by noisy
fine-tuning at each ε (δ = 1e-5), by no unlearning (`natural`) and by `retrain`, and rounds without the data follow.
"""

import statistics
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from torch import Tensor, nn

from benchmarks.data import accuracy_percent, sites_and_test
from benchmarks.tables import Row, grouped, measured, median, provenance, table, write
from unlearning.local import Learnt, begin, learn, retained, unlearn
from unlearning.requests import Granularity, Target
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, initial_parameters, model_with, train

LORA = "LoRA on a head, CIFAR-10 features"
"""A head that was trained on an eleventh part of the examples, which is public, and adapters that begin at zero."""
RANK = 4
CASES = {
    "a linear head on features, CIFAR-10": (
        TaskSettings(dataset="cifar10-features"),
        TrainingSettings(learning_rate=0.5, batch_size=10, epochs=2),
        10,
    ),
    "LeNet, FashionMNIST": (
        TaskSettings(dataset="fashion-mnist", model="lenet"),
        TrainingSettings(learning_rate=0.05, batch_size=10, epochs=4),
        15,
    ),
    "small CNN, CIFAR-10": (
        TaskSettings(dataset="cifar10", model="small-cnn"),
        TrainingSettings(learning_rate=0.05, batch_size=10, epochs=2),
        15,
    ),
    LORA: (
        TaskSettings(dataset="cifar10-features", model="mlp-head"),
        TrainingSettings(learning_rate=0.5, batch_size=10, epochs=2),
        10,
    ),
}
"""Task, local training, and rounds before the deletion; after it as many."""
EPSILONS = (1.0, 3.0, 8.0)
STEPS = 5


def main(
    output: Annotated[Path, typer.Option(help="Where the table goes, without suffix.")],
    data_dir: Annotated[str, typer.Option(envvar="FLOWER_UNLEARNING_DATA", help="Where the data are.")] = "",
    case: Annotated[list[str], typer.Option(help="One of the cases, once for each.")] = list(CASES)[:3],
    seeds: int = 3,
    max_examples: int = 2_000,
    work: Annotated[Path, typer.Option(help="What was run so far; it is not run again.")] = Path(
        "runs/certified-noisy.json"
    ),
) -> None:
    """Measure accuracies after the release and after rounds of recovery; a seed of all cases after another."""
    parts = {
        f"{name}, seed {seed} of {max_examples} examples": partial(
            rows_of, name, seed, max_examples, data_dir
        )
        for seed in range(seeds)
        for name in case
    }
    rows = measured(work, parts)
    lines = [
        "# Noisy fine-tuning beside retraining" + (f", {case[0]}" if len(case) == 1 else ""),
        "",
        f"Ten clients, IID, {max_examples} examples, δ = 1e-5, {STEPS} noisy steps, the radius by default; "
        "medians of seeds. Test accuracy in %: before the deletion, of the released model, "
        "and after rounds without the data; *to retrain*: rounds, the steps among them, until within a point of what "
        "`retrain` gives (–: never). *d*: trained parameters; *distance*: how far training went from the first model. "
        f"{provenance()}.",
        "",
        *_tables(rows),
    ]
    write(output, lines, {"rows": rows})


def rows_of(name: str, seed: int, max_examples: int, data_dir: str) -> Iterable[Row]:
    """Yield the rows of a case: a client forgotten, and samples."""
    settings, training, rounds = CASES[name]
    parts = 11 if name == LORA else 10
    count = max_examples * parts // 10
    settings = replace(settings, num_clients=parts, max_examples=count, data_dir=data_dir, seed=seed)
    sites, test = sites_and_test(settings)
    task, training = make_task(settings), replace(training, seed=seed)
    if name == LORA:
        task = low_rank(task, sites.pop("10"))
    start = learn(task, sites, begin(task, training), rounds=rounds)
    distance = np.linalg.norm(start.parameters - initial_parameters(task, training.seed))
    ids = sorted(sites["2"].ids.tolist())
    for target in (
        Target(Granularity.CLIENT, "1"),
        Target(Granularity.SAMPLE, "2", frozenset(ids[: max(1, len(ids) // 100)])),
    ):
        case: Row = {"case": name, "forgotten": target.granularity.value, "seed": seed}
        case |= {"size": start.parameters.size, "distance": float(distance)}
        yield from ({**case, **row} for row in compared(task, sites, test, start, target, rounds))


def low_rank(task: Task, public: Examples) -> Task:
    """Return the task of training adapters on a head that was trained on `public` examples, which no client has."""
    learnt = train(
        task,
        initial_parameters(task, 0),
        public,
        TrainingSettings(learning_rate=0.1, batch_size=10, epochs=20),
    )

    def build() -> nn.Module:
        head = model_with(task, learnt.parameters)
        for place, layer in [(n, one) for n, one in head.named_modules() if isinstance(one, nn.Linear)]:
            parent, _, child = place.rpartition(".")
            setattr(head.get_submodule(parent), child, Adapted(layer))
        return head

    return replace(task, build_model=build)


class Adapted(nn.Module):
    """A frozen linear layer with a trained change of low rank beside it, B A, whose B begins at zero."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(requires_grad=False)
        self.down = nn.Linear(layer.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's outputs with the change."""
        outputs: Tensor = self.layer(inputs) + self.up(self.down(inputs))
        return outputs


def compared(
    task: Task, sites: dict[str, Examples], test: Examples, start: Learnt, target: Target, rounds: int
) -> Iterable[Row]:
    """Yield a row for each way to forget `target`."""
    before = accuracy_percent(task, start.parameters, test)
    ways: list[tuple[str, str, dict[str, Any]]] = [
        ("retrain", "retrain", {"rounds": rounds}),
        ("natural", "natural", {}),
        *(
            (f"ε = {epsilon:g}", "noisy-fine-tuning", {"epsilon": epsilon, "steps": STEPS})
            for epsilon in EPSILONS
        ),
    ]
    goal = None
    for way, name, parameters in ways:
        found = unlearn(name, task, start, sites, [target], **parameters)
        scores = [accuracy_percent(task, found.parameters, test)]
        learnt = found.learnt
        for _ in range(rounds):
            learnt = learn(task, retained(sites, [target]), learnt, rounds=1)
            scores.append(accuracy_percent(task, learnt.parameters, test))
        goal = scores[0] if goal is None else goal
        spent = {"retrain": rounds, "natural": 0}.get(name, STEPS)
        reached = [spent + number for number, score in enumerate(scores) if score >= goal - 1]
        yield {
            "way": way,
            "radius": found.state.findings.get("radius of the ball around the first model"),
            "before": before,
            "released": scores[0],
            "half": scores[rounds // 2],
            "all": scores[rounds],
            "rounds": min(reached, default=None),
        }


def _tables(rows: list[Row]) -> Iterable[str]:
    for (case, forgotten), group in grouped(rows, ("case", "forgotten")).items():
        first = group[0]
        yield f"## {case}, a {forgotten} forgotten"
        yield ""
        distance = statistics.median(row["distance"] for row in group)
        before = statistics.median(row["before"] for row in group)
        seeds = len({row["seed"] for row in group})
        yield f"d = {first['size']:,}, distance {distance:.3g}, {before:.1f} % before; {seeds} seed(s)."
        yield ""
        headings = ["way", "radius", "released", "half the rounds later", "all rounds later", "to retrain"]
        yield from table(
            headings,
            (
                [
                    way,
                    *(median(some, key) for key in ("radius", "released", "half", "all", "rounds")),
                ]
                for (way,), some in grouped(group, ("way",)).items()
            ),
        )
        yield ""


if __name__ == "__main__":
    typer.run(main)
