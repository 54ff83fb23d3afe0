"""The data of one seed's clients: as the data set deals it out, or in directories of their own where it is changed.

A client has its own directory, as a node configuration names one, where it plants a backdoor or noise, and in an
experiment with oracles: there every seed has the examples of the same clients, and only training differs.
"""

from dataclasses import replace
from functools import cached_property, reduce
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from server.bench import measures
from server.bench.experiment import Case, GaussianNoise, Setting
from unlearning.durable_files import write_atomically
from unlearning.requests import Exclusions, Target
from unlearning.tasks import load_server_test, load_site
from unlearning.tasks.npz import TRAIN
from unlearning.tasks.settings import TaskSettings
from unlearning.tasks.task import Examples, forgotten_mask, join
from unlearning.verification.backdoor import poison
from unlearning.verification.gaussian_poison import Planted, plant

DEALING_SEED = 0
"""Deals out the data of all seeds of an experiment with oracles."""

_BACKDOOR_STREAM, _NOISE_STREAM = 1, 2
"""Mixed into the seed, so that which examples are changed depends on nothing else that is drawn."""


class ClientData:
    """What the clients of one seed of a setting train on, and the server's test set.

    directory: where own data is written; every process that has the same directory writes the same.
    shares_clients: whether all seeds have the clients that `DEALING_SEED` makes.
    """

    def __init__(
        self, directory: Path, setting: Setting, task: TaskSettings, *, shares_clients: bool
    ) -> None:
        self.directory, self.setting, self.task = directory, setting, task
        self.shares_clients = shares_clients
        self.dealt = replace(task, seed=DEALING_SEED) if shares_clients else task

    @cached_property
    def test(self) -> Examples | None:
        """The server's test set; with oracles the same examples for all seeds."""
        return load_server_test(self.dealt)

    def site(self, client: str) -> Examples:
        """Return what a client trains on."""
        own = self.own_directory(client)
        return load_site(self.dealt, int(client), own).train

    def own_directory(self, client: str) -> Path | None:
        """Return the client's own directory, which it has where its data is not what the data set deals it."""
        if not self.shares_clients and client not in self._changers:
            return None
        directory = self.directory / f"own-{client}"
        if not (directory / f"{TRAIN}.npz").exists():
            _write(self._changed(client), directory / f"{TRAIN}.npz")
        return directory

    def planted(self) -> Planted | None:
        """Return the noise and the clean examples that its owner keeps; None where nobody planted any."""
        noise = self.setting.noise
        if noise is None:
            return None
        return _with_noise(noise, self._clean(noise.client), self.dealt.seed)[1]

    def targets(self, case: Case) -> list[Target]:
        """Return what the case asks to forget."""
        return case.targets({client: self.site(client).ids.tolist() for client in case.clients})

    def forgotten(self, case: Case) -> Examples:
        """Return what the case forgets, of all clients, in their order."""
        return reduce(join, (site.select(mask) for site, mask in self._masks(case).values()))

    def retained(self, case: Case) -> dict[str, Examples]:
        """Return what each client goes on training on."""
        return {client: site.select(~mask) for client, (site, mask) in self._masks(case).items()}

    def _masks(self, case: Case) -> dict[str, tuple[Examples, NDArray[np.bool_]]]:
        """Return every client's examples, and which of them the case forgets."""
        exclusions = Exclusions().including(self.targets(case))
        sites = {str(number): self.site(str(number)) for number in range(self.task.num_clients)}
        return {client: (site, forgotten_mask(site, exclusions.of(client))) for client, site in sites.items()}

    def _clean(self, client: str) -> Examples:
        return load_site(self.dealt, int(client)).train

    @property
    def _changers(self) -> set[str]:
        return {item.client for item in (self.setting.backdoor, self.setting.noise) if item is not None}

    def _changed(self, client: str) -> Examples:
        """Return the client's examples with what it plants in them."""
        examples, backdoor, noise = self._clean(client), self.setting.backdoor, self.setting.noise
        if backdoor is not None and client == backdoor.client:
            assert self.test is not None, "a backdoor is for data sets of pictures, which have test sets"
            generator = np.random.default_rng([self.dealt.seed, _BACKDOOR_STREAM])
            trigger = measures.trigger_of(backdoor, self.test)
            examples, _ = poison(examples, trigger, backdoor.share, generator)
        if noise is not None and client == noise.client:
            examples, _ = _with_noise(noise, examples, self.dealt.seed)
        return examples


def _with_noise(noise: GaussianNoise, clean: Examples, seed: int) -> tuple[Examples, Planted]:
    generator = np.random.default_rng([seed, _NOISE_STREAM])
    return plant(clean, noise.share, noise.deviation, generator)


def _write(examples: Examples, path: Path) -> None:
    content = BytesIO()
    np.savez(content, inputs=examples.inputs.numpy(), targets=examples.targets.numpy(), ids=examples.ids)
    write_atomically(path, content.getvalue())
