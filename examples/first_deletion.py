"""Three sites learn digits together; one of them is forgotten; the result is compared with retraining without it.

Everything runs in this process, in seconds: python examples/first_deletion.py
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from unlearning.evaluation import evaluate
from unlearning.local import begin, compare, learn, retained, unlearn
from unlearning.requests import Granularity, Target
from unlearning.tasks import Examples, Task
from unlearning.training import TrainingSettings

TASK = Task.classifier("digits", lambda: nn.Linear(64, 10), num_classes=10)


def examples(rows: np.ndarray) -> Examples:
    """Return these rows of the data set; the ids are the names by which single examples can be forgotten."""
    inputs, labels = load_digits(return_X_y=True)
    return Examples(
        torch.from_numpy(inputs[rows] / 16).float(),
        torch.from_numpy(labels[rows]),
        np.array([f"digit-{row}" for row in rows]),
    )


def main() -> None:
    """Train, forget, recover, compare."""
    rows, labels = np.arange(1797), load_digits().target
    new = examples(rows[rows % 4 == 3])  # examples that no site has
    nines = labels == 9  # south alone has them
    sites = {
        "north": examples(rows[(rows % 4 == 0) & ~nines]),
        "south": examples(rows[(rows % 4 == 1) | (nines & (rows % 4 != 3))]),
        "west": examples(rows[(rows % 4 == 2) & ~nines]),
    }
    training = TrainingSettings(epochs=2, batch_size=16, learning_rate=0.1, seed=0)
    learnt = learn(TASK, sites, begin(TASK, training), rounds=10)

    targets = [Target(Granularity.CLIENT, "south")]
    forgotten = unlearn("puf-special", TASK, learnt, sites, targets)
    recovered = learn(TASK, retained(sites, targets), forgotten.learnt, rounds=2)

    for name, model in (("before", learnt), ("after", recovered)):
        scores = [evaluate(TASK, model.parameters, one).score.mean() for one in (sites["south"], new)]
        print(f"{name:6}  south's examples {scores[0]:.0%}  new examples {scores[1]:.0%}")

    for row in compare(["puf-special", "natural"], TASK, learnt, sites, targets, new, recovery_rounds=2).rows:
        print(f"{row.method:12}  forgotten {row.forgotten_score:.2f}  difference {row.difference:.2f}")


if __name__ == "__main__":
    main()
