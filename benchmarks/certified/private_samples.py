"""What training with privacy for single samples costs: accuracy over ε, and what a deletion of samples then states.

    python -m benchmarks.certified.private_samples --data-dir DATA --output docs/results/private-samples

FashionMNIST, IID. Each of ten sites trains with DP-SGD as the library does; the noise is the least that keeps ε.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.data import accuracy_percent, sites_and_test
from benchmarks.tables import Row, grouped, measured, median, provenance, table, write
from unlearning.certified.private_samples import PrivateSteps
from unlearning.certified.private_training import least_noise_multiplier, spent_epsilon
from unlearning.certified.round_lengths import PrivateRounds
from unlearning.local import begin, learn
from unlearning.tasks import TaskSettings, make_task
from unlearning.training import TrainingSettings

MODELS = {"logistic": "a linear model", "lenet": "LeNet"}
EPSILONS = (1.0, 3.0, 8.0, None)
"""None: the built-in training without privacy."""
CLIENTS, ROUNDS, DELTA, CLIP_NORM = 10, 20, 1e-5, 1.0
BATCH, RATE, MOMENTUM = 100, 0.2, 0.5
GROUPS = (1, 2, 5, 10, 20)


def main(
    output: Annotated[Path, typer.Option(help="Where the table goes, without suffix.")],
    data_dir: Annotated[str, typer.Option(envvar="FLOWER_UNLEARNING_DATA", help="Where the data are.")] = "",
    seeds: int = 2,
    max_examples: int = 20_000,
    work: Annotated[Path, typer.Option(help="What was run so far; it is not run again.")] = Path(
        "runs/private-samples.json"
    ),
) -> None:
    """Measure test accuracies, a seed of all models and ε after another."""
    parts = {
        f"{model}, ε {epsilon}, seed {seed} of {max_examples} examples": partial(
            rows_of, model, epsilon, seed, max_examples, data_dir
        )
        for seed in range(seeds)
        for model in MODELS
        for epsilon in EPSILONS
    }
    rows = measured(work, parts)
    write(output, page(rows, seeds, max_examples), {"rows": rows})


def rows_of(model: str, epsilon: float | None, seed: int, max_examples: int, data_dir: str) -> Iterable[Row]:
    """Yield the row of one training."""
    settings = TaskSettings(
        dataset="fashion-mnist",
        model=model,
        num_clients=CLIENTS,
        max_examples=max_examples,
        data_dir=data_dir,
        seed=seed,
    )
    sites, test = sites_and_test(settings)
    task, noise = make_task(settings), noise_for(epsilon, max_examples)
    training = TrainingSettings(
        learning_rate=RATE,
        batch_size=BATCH,
        momentum=MOMENTUM,
        epochs=1,
        seed=seed,
        sample_clip_norm=CLIP_NORM,
    )
    start = begin(task, replace(training, sample_noise=noise))
    found = learn(task, sites, start, rounds=ROUNDS)
    accuracy = accuracy_percent(task, found.parameters, test)
    yield {"model": model, "epsilon": epsilon, "seed": seed, "noise": noise, "accuracy": accuracy}


def steps(max_examples: int) -> PrivateSteps:
    """Return the steps of a site in all rounds."""
    return PrivateSteps.of(max_examples // CLIENTS, BATCH, ROUNDS)


def noise_for(epsilon: float | None, max_examples: int) -> float:
    """Return the least noise multiplier that keeps ε for one sample in all rounds."""
    planned = steps(max_examples).with_noise(0.0)
    return 0.0 if epsilon is None else least_noise_multiplier(planned, epsilon=epsilon, delta=DELTA)


def page(rows: list[Row], seeds: int, max_examples: int) -> list[str]:
    """Return the lines of the page."""
    by_model = grouped(rows, ("model", "epsilon"))
    counted = [
        PrivateRounds(
            noise_multiplier=noise_for(epsilon, max_examples),
            sampling=steps(max_examples).sampling,
            count=steps(max_examples).count,
        )
        for epsilon in EPSILONS[:2]
    ]
    return [
        "# Training with privacy for samples: accuracy over ε",
        "",
        f"FashionMNIST, {max_examples:,} examples dealt IID to {CLIENTS} sites, {ROUNDS} rounds of one pass in batches "
        f"of {BATCH} expected examples, clip norm {CLIP_NORM:g}, δ = {DELTA:g}; test accuracy in %, median of {seeds} "
        f"seed(s). ε is for one sample of a site. *none*: the built-in training without privacy. {provenance()}.",
        "",
        *table(
            ["ε", "noise multiplier", *MODELS.values()],
            (
                [
                    "none" if epsilon is None else f"{epsilon:g}",
                    f"{noise_for(epsilon, max_examples):.3g}",
                    *(median(by_model[model, epsilon], "accuracy") for model in MODELS),
                ]
                for epsilon in EPSILONS
            ),
        ),
        "",
        "## What a deletion states",
        "",
        f"It takes no round and leaves the accuracy as it is. ε at δ = {DELTA:g} after k samples of a site were "
        "deleted, of the runs with the noise for ε = 1 and for ε = 3, as the site states it:",
        "",
        *table(
            ["k", "noise for ε = 1", "noise for ε = 3"],
            (
                [group, *(f"{spent_epsilon([one], delta=DELTA, group=group):.3g}" for one in counted)]
                for group in GROUPS
            ),
        ),
        "",
    ]


if __name__ == "__main__":
    typer.run(main)
