"""Throughput of local training beside a plain PyTorch loop of the same network, in one run.

    python -m benchmarks.speed.training --output docs/results/training-cpu --examples 3000
    python -m benchmarks.speed.training --output docs/results/training-gpu

Examples a second of `unlearning.training.train` and of the loop that anybody would write, one after the other, again
and again; given are medians. On a processor it is CPU time in one thread, on an accelerator the time until it has
finished. The goal is 0.95 of the plain loop or more. The same loop with the channels last, for comparison.
"""

import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from benchmarks.data import random_examples
from benchmarks.tables import table, write
from benchmarks.timing import DEVICE, device_clock, median_seconds
from unlearning.tasks import Examples, Task, TaskSettings, make_task
from unlearning.training import TrainingSettings, initial_parameters, model_with, train

CASES = {
    "LeNet, FashionMNIST": TaskSettings(dataset="fashion-mnist", model="lenet"),
    "CNN, FashionMNIST": TaskSettings(dataset="fashion-mnist", model="cnn"),
    "CNN, CIFAR-10": TaskSettings(dataset="cifar10", model="cnn"),
    "small CNN, CIFAR-10": TaskSettings(dataset="cifar10", model="small-cnn"),
}
SHAPES = {"fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
GOAL = 0.95


def plain_loop(
    task: Task, examples: Examples, settings: TrainingSettings, layout: torch.memory_format
) -> None:
    """Train one epoch as anybody would write it."""
    model = model_with(task, initial_parameters(task, 0)).to(DEVICE).to(memory_format=layout).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, momentum=settings.momentum)
    inputs = examples.inputs.contiguous(memory_format=layout).to(DEVICE)
    targets = examples.targets.to(DEVICE)
    for batch in torch.split(torch.randperm(len(examples)), settings.batch_size):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def measure(task_settings: TaskSettings, count: int, batch_size: int, repetitions: int) -> dict[str, float]:
    """Return examples a second of each way, interleaved; random examples, as many."""
    task, examples = make_task(task_settings), random_examples(count, SHAPES[task_settings.dataset])
    settings = TrainingSettings(learning_rate=0.01, momentum=0.9, batch_size=batch_size)
    start = initial_parameters(task, 0)
    ways: dict[str, Callable[[], object]] = {
        "ours": partial(train, task, start, examples, settings),
        "plain": partial(plain_loop, task, examples, settings, torch.contiguous_format),
        "channels last": partial(plain_loop, task, examples, settings, torch.channels_last),
    }
    seconds = median_seconds(ways, repetitions, device_clock)
    return {name: count / median for name, median in seconds.items()}


def page(found: dict[str, Any]) -> list[str]:
    """Return the lines of the page."""
    rows = [
        [name, f"{case['plain']:,.0f}", f"{case['ours']:,.0f}", f"{case['ours'] / case['plain']:.2f}",
         f"{case['channels last'] / case['plain']:.2f}"]
        for name, case in found["cases"].items()
    ]  # fmt: skip
    return [
        "# Throughput of local training",
        "",
        f"Made by `benchmarks/speed/training.py` on {found['machine']}, batches of {found['batch_size']}. Examples a "
        f"second of one epoch over {found['examples']:,} examples; medians of {found['repetitions']} interleaved "
        f"repetitions. The goal is {GOAL} of the plain loop.",
        "",
        *table(["", "plain PyTorch loop", "ours", "ours / plain", "plain, channels last / plain"], rows),
    ]


def main(
    output: Annotated[Path, typer.Option(help="Where to write, without the suffixes .md and .json.")],
    examples: Annotated[int, typer.Option(min=1)] = 6000,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    repetitions: Annotated[int, typer.Option(min=1)] = 5,
) -> None:
    """Measure and write OUTPUT.md and OUTPUT.json."""
    torch.set_num_threads(1)
    device = "CPU time of one thread" if DEVICE.type == "cpu" else torch.cuda.get_device_name()
    found = {
        "machine": f"{platform.machine()}, {device}, torch {torch.__version__}",
        "examples": examples,
        "batch_size": batch_size,
        "repetitions": repetitions,
        "cases": {name: measure(case, examples, batch_size, repetitions) for name, case in CASES.items()},
    }
    write(output, page(found), found)


if __name__ == "__main__":
    typer.run(main)
