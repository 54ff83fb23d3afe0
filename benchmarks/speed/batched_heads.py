"""What training many heads at once spares: processor time a model, beside training them one after the other.

    python -m benchmarks.speed.batched_heads --output docs/results/batched-heads

Random features and labels; neither changes the number of operations. Times are of the process's processor, one thread,
the median of the repetitions, the two ways in turn.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from benchmarks.bench.batched_training import train_many
from benchmarks.data import random_examples
from benchmarks.tables import Row, provenance, table, write
from benchmarks.timing import median_seconds
from unlearning.tasks import TaskSettings, make_task
from unlearning.training import TrainingSettings, initial_parameters, train

NUM_FEATURES, NUM_EXAMPLES = 472, 400
MODELS = ("logistic", "mlp-head")
TOGETHER = (1, 5, 25)
BATCHES = (20, 50)


def main(
    output: Annotated[Path, typer.Option(help="Where the table goes, without suffix.")], repeats: int = 3
) -> None:
    """Measure both ways for both heads, sizes of batches and numbers of models."""
    torch.set_num_threads(1)
    rows = [
        measure(model, batch_size, count, repeats)
        for model in MODELS
        for batch_size in BATCHES
        for count in TOGETHER
    ]
    headings = ["model", "batch", "models at once", "ms a step and model, alone", "at once", "times faster"]
    cells = [
        [r["model"], r["batch"], r["count"], f"{r['alone']:.3g}", f"{r['together']:.3g}", f"{r['gain']:.2f}"]
        for r in rows
    ]
    lines = [
        "# Many heads trained at once",
        "",
        f"{NUM_EXAMPLES} examples of {NUM_FEATURES} features, ten classes, SGD with momentum; processor time, medians "
        f"of {repeats}. {provenance()}.",
        "",
    ]
    write(output, lines + table(headings, cells), {"rows": rows})


def measure(name: str, batch_size: int, count: int, repeats: int) -> Row:
    """Return the milliseconds of a step of one model, trained alone and with others at once."""
    task = make_task(TaskSettings(dataset="npz", model=name, num_classes=10, input_shape=str(NUM_FEATURES)))
    examples = random_examples(NUM_EXAMPLES, (NUM_FEATURES,))
    training = TrainingSettings(batch_size=batch_size, momentum=0.9, learning_rate=0.05)
    settings = [replace(training, seed=seed) for seed in range(count)]
    starts = np.stack([initial_parameters(task, seed) for seed in range(count)])
    steps = count * -(-NUM_EXAMPLES // batch_size)
    ways: dict[str, Callable[[], object]] = {
        "alone": lambda: [
            train(task, *each) for each in zip(starts, [examples] * count, settings, strict=True)
        ],
        "together": lambda: train_many(task, starts, examples, settings),
    }
    seconds = median_seconds(ways, repeats)
    alone, together = (1e3 * seconds[way] / steps for way in ("alone", "together"))
    return {
        "model": name,
        "batch": batch_size,
        "count": count,
        "alone": alone,
        "together": together,
        "gain": alone / together,
    }


if __name__ == "__main__":
    typer.run(main)
