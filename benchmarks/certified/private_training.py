"""What private training costs: accuracy over ε with 10, 100 and 1,000 clients, and what a deletion then states.

    python -m benchmarks.certified.private_training --output docs/results/private-training

FashionMNIST, IID, a linear model. All clients take part in every round and train some steps on all their examples;
their models are rows of one array, so that a thousand cost as much as ten. Rounds are made by `PrivateMean`, as the
server makes them, and the noise is the least that keeps ε.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from benchmarks.data import accuracy_percent, sites_and_test
from benchmarks.tables import Row, grouped, measured, median, provenance, table, write
from unlearning.certified.private_training import PrivateMean, least_noise_multiplier, spent_epsilon
from unlearning.certified.round_lengths import PrivateRounds
from unlearning.parameters import Vector
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Examples
from unlearning.training import initial_parameters

CLIENTS = (10, 100, 1000)
EPSILONS = (1.0, 3.0, 8.0, 30.0, None)
"""None: updates are shortened, and there is no noise."""
DELTA, ROUNDS, CLIP_NORM = 1e-5, 30, 0.3
STEPS, RATE = 5, 0.1
GROUPS = (1, 2, 5, 10)


def main(
    output: Annotated[Path, typer.Option(help="Where the table goes, without suffix.")],
    data_dir: Annotated[str, typer.Option(envvar="FLOWER_UNLEARNING_DATA", help="Where the data are.")] = "",
    seeds: int = 2,
    max_examples: int = 6000,
    work: Annotated[Path, typer.Option(help="What was run so far; it is not run again.")] = Path(
        "runs/private-training.json"
    ),
) -> None:
    """Measure test accuracies, a seed of all numbers of clients after another."""
    parts = {
        f"{clients} clients, seed {seed} of {max_examples} examples": partial(
            rows_of, clients, seed, max_examples, data_dir
        )
        for seed in range(seeds)
        for clients in CLIENTS
    }
    rows = measured(work, parts)
    write(output, page(rows, seeds, max_examples), {"rows": rows})


def rows_of(clients: int, seed: int, max_examples: int, data_dir: str) -> Iterable[Row]:
    """Yield a row for each ε."""
    settings = TaskSettings(
        dataset="fashion-mnist",
        model="logistic",
        num_clients=clients,
        max_examples=max_examples,
        data_dir=data_dir,
        seed=seed,
    )
    sites, test = sites_and_test(settings)
    task = make_task(settings)
    inputs, targets = stacked(sites)
    for epsilon in EPSILONS:
        noise = noise_for(epsilon)
        mean = PrivateMean(
            clip_norm=CLIP_NORM,
            noise_multiplier=noise,
            sampling=1.0,
            expected_clients=clients,
            key=seed.to_bytes(32, "big"),
        )
        model = initial_parameters(task, seed)
        for number in range(1, ROUNDS + 1):
            model = mean.model(model, local_updates(model, inputs, targets), number)
        accuracy = accuracy_percent(task, model, test)
        yield {"clients": clients, "seed": seed, "epsilon": epsilon, "noise": noise, "accuracy": accuracy}


def noise_for(epsilon: float | None) -> float:
    """Return the least noise multiplier that keeps ε in all rounds."""
    planned = PrivateRounds(noise_multiplier=0.0, sampling=1.0, count=ROUNDS)
    return 0.0 if epsilon is None else least_noise_multiplier(planned, epsilon=epsilon, delta=DELTA)


def stacked(sites: dict[str, Examples]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs (clients, n, d) and labels (clients, n) of the fewest examples that a client has."""
    fewest = min(len(one) for one in sites.values())
    inputs = torch.stack([one.inputs[:fewest].flatten(1) for one in sites.values()])
    return inputs, torch.stack([one.targets[:fewest] for one in sites.values()])


def local_updates(model: Vector, inputs: torch.Tensor, targets: torch.Tensor) -> NDArray[np.float32]:
    """Return what clients' training changes of a linear model (clients, d): gradient steps on all their examples."""
    clients, examples, features = inputs.shape
    start = torch.from_numpy(model)
    inputs = inputs.to(start.dtype)
    outputs = start.numel() // (features + 1)
    weight = start[: outputs * features].reshape(outputs, features).repeat(clients, 1, 1)
    bias = start[outputs * features :].repeat(clients, 1, 1)
    wanted = torch.nn.functional.one_hot(targets, outputs)
    for _ in range(STEPS):
        logits = torch.baddbmm(bias, inputs, weight.transpose(1, 2))
        error = (logits.softmax(dim=2) - wanted) / examples
        weight = weight.sub(torch.bmm(error.transpose(1, 2), inputs), alpha=RATE)
        bias = bias.sub(error.sum(dim=1, keepdim=True), alpha=RATE)
    after = torch.cat([weight.reshape(clients, -1), bias.reshape(clients, -1)], dim=1)
    found: NDArray[np.float32] = (after - start).numpy()
    return found


def page(rows: list[Row], seeds: int, max_examples: int) -> list[str]:
    """Return the lines of the page."""
    by_client = grouped(rows, ("clients", "epsilon"))
    largest = PrivateRounds(noise_multiplier=noise_for(EPSILONS[0]), sampling=1.0, count=ROUNDS)
    middle = PrivateRounds(noise_multiplier=noise_for(EPSILONS[1]), sampling=1.0, count=ROUNDS)
    return [
        "# Private training: accuracy over ε",
        "",
        f"FashionMNIST, {max_examples:,} examples dealt IID, a linear model (7,850 parameters), {ROUNDS} rounds of all "
        f"clients, clip norm {CLIP_NORM:g}, δ = {DELTA:g}; test accuracy in %, median of {seeds} seed(s). ε is for one "
        f"client. *no noise*: updates are shortened all the same. {provenance()}.",
        "",
        *table(
            ["ε", "noise multiplier", *(f"{clients:,} clients" for clients in CLIENTS)],
            (
                [
                    "no noise" if epsilon is None else f"{epsilon:g}",
                    f"{noise_for(epsilon):.3g}",
                    *(median(by_client[clients, epsilon], "accuracy") for clients in CLIENTS),
                ]
                for epsilon in EPSILONS
            ),
        ),
        "",
        "Geyer, Klein and Nabi ([2018](https://arxiv.org/abs/1712.07557)) found the same trend on MNIST: with enough "
        "clients the noise costs little accuracy.",
        "",
        "## What a deletion states",
        "",
        f"It takes no round and leaves the accuracy as it is. The certified ε at δ = {DELTA:g} after k clients have "
        "left, of the runs with the noise for ε = 1 and for ε = 3:",
        "",
        *table(
            ["k", "noise for ε = 1", "noise for ε = 3"],
            (
                [
                    group,
                    *(f"{spent_epsilon([one], delta=DELTA, group=group):.3g}" for one in (largest, middle)),
                ]
                for group in GROUPS
            ),
        ),
        "",
    ]


if __name__ == "__main__":
    typer.run(main)
