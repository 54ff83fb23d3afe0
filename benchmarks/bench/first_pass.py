"""A first pass over a client's examples: which of them models give away most, and which least.

Some federations are trained with the client and as many without it; an example is vulnerable where the margins of
the two lie far apart (`u_lira.vulnerability`). A mixed forget set is made of both ends. Whatever is measured later is
measured on other models, so the choice does not bias it.

Source: RULI (Naderloui et al., USENIX Security 2025). There the scores are those of shadow models of random halves;
here the client is in or out as a whole, so that all models of a side train on the same examples, several at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.bench.batched_training import train_federations
from benchmarks.bench.lira import Values
from benchmarks.bench.u_lira import vulnerability
from strategies import built_in
from strategies.settings.run_config import RunSettings
from unlearning.evaluation import predict
from unlearning.runtime.archive import pack_arrays
from unlearning.runtime.durable_files import file_lock, write_atomically
from unlearning.tasks.task import Examples
from unlearning.verification.observations import margins

MODELS = 10
"""On each side."""

FIRST = 2_000_000
"""Their first seed: nobody else has it."""


@dataclass(frozen=True, slots=True)
class FirstPass:
    """The first pass of one federation; what was found is kept, for all seeds and experiments.

    directory: where it is kept, in a file for each client.
    settings: of the run; its task and training suit training many at once (`batched_training.suits`).
    """

    directory: Path
    settings: RunSettings

    def scores(self, clients: Mapping[str, Examples], client: str) -> Values:
        """Return how vulnerable each of a client's n examples is, (n,).

        clients: what everybody trains on, by client id.
        """
        path = self.directory / f"first-pass-{client}.npz"
        with file_lock(self.directory / "locks" / path.stem):
            if not path.exists():
                write_atomically(path, pack_arrays({"vulnerability": self._computed(clients, client)}))
        with np.load(path) as archive:
            found: Values = archive["vulnerability"]
        return found

    def _computed(self, clients: Mapping[str, Examples], client: str) -> Values:
        others = {name: examples for name, examples in clients.items() if name != client}
        sides = (
            self._margins(trained, clients[client], FIRST + MODELS * number)
            for number, trained in enumerate((clients, others))
        )
        return vulnerability(*sides)

    def _margins(self, clients: Mapping[str, Examples], examples: Examples, first: int) -> Values:
        """Return the margins (m, n) of models that these clients train, on n examples."""
        settings = self.settings
        task = built_in.SOURCE.prepared(settings.to_run_config())
        seeds = range(first, first + MODELS)
        models = train_federations(task, clients, settings.training, rounds=settings.rounds, seeds=seeds)
        labels = examples.targets.numpy()
        found = [margins(predict(task, model, examples).astype(np.float64), labels) for model in models]
        return np.stack(found)
