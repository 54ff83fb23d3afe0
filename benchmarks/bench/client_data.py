"""The data of one seed's clients: as the data set deals it out, or in directories of their own where it is changed.

A client has its own directory, as a node configuration names one, where it plants a backdoor or noise, and in an
experiment with oracles or shadow federations: there every seed has the examples of the same clients. With oracles only
training differs; with shadow federations each seed has one half of what the case forgets (`benchmarks.bench.shadows`).
"""

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import measures
from benchmarks.bench.backdoor import poison
from benchmarks.bench.cases import Case, GaussianNoise, Setting
from benchmarks.bench.first_pass import FirstPass
from benchmarks.bench.own_app import OwnData
from benchmarks.bench.u_lira import mixed
from unlearning.requests import Exclusions, Granularity, Target
from unlearning.runtime.archive import pack_arrays
from unlearning.runtime.durable_files import write_atomically
from unlearning.tasks import load_server_test, load_site
from unlearning.tasks.npz import TRAIN
from unlearning.tasks.settings import TaskSettings
from unlearning.tasks.task import Examples, forgotten_mask, join
from unlearning.verification.gaussian_poison import Planted, plant

Mask = NDArray[np.bool_]

DEALING_SEED = 0
"""Deals out the data of all seeds of an experiment whose seeds share their clients."""

_BACKDOOR_STREAM, _NOISE_STREAM, _HALVES_STREAM = 1, 2, 3
"""Mixed into the seed, so that which examples are changed depends on nothing else that is drawn."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the seeds of an experiment share that all have the clients which `DEALING_SEED` makes.

    halved: the case of which each seed has one half only; None where each has everything.
    """

    first_pass: FirstPass
    halved: Case | None = None


@dataclass(frozen=True, slots=True)
class ForgetSet:
    """All that a case forgets, n examples: of all clients, in their order.

    had (n,): what this seed's clients train on; all of it but with shadow federations.
    vulnerable (n,): which of them a first pass found vulnerable; None where the case is not mixed.
    """

    examples: Examples
    had: Mask
    vulnerable: Mask | None


class ClientData:
    """What the clients of one seed of a setting train on, and the server's test set.

    directory: where own data is written; every process that has the same directory writes the same.
    shared: None where each seed deals out clients of its own. own: what an app of the user's own loads.
    """

    def __init__(
        self,
        directory: Path,
        setting: Setting,
        task: TaskSettings,
        *,
        shared: Shared | None = None,
        own: OwnData | None = None,
    ) -> None:
        self.own = own
        self.directory, self.setting, self.task, self.shared = directory, setting, task, shared
        self.dealt = replace(task, seed=DEALING_SEED) if shared else task
        self._known: dict[Case, list[Target]] = {}

    @cached_property
    def test(self) -> Examples | None:
        """The server's test set; the same examples for all seeds that share their clients."""
        return load_server_test(self.dealt) if self.own is None else self.own.test()

    def site(self, client: str) -> Examples:
        """Return what a client trains on."""
        if self.own is not None:
            return self._clean(client)
        own = self.own_directory(client)
        return load_site(self.dealt, int(client), own).train

    def own_directory(self, client: str) -> Path | None:
        """Return the client's own directory, which it has where its data is not what the data set deals it."""
        if not self.shared and client not in self._changers:
            return None
        directory = self.directory / f"own-{client}"
        if not (directory / f"{TRAIN}.npz").exists():
            whole = self._changed(client)
            halved = self.shared.halved if self.shared else None
            own = whole.select(self._had(halved, client)) if halved else whole
            arrays = {"inputs": own.inputs.numpy(), "targets": own.targets.numpy(), "ids": own.ids}
            write_atomically(directory / f"{TRAIN}.npz", pack_arrays(arrays))
        return directory

    def planted(self) -> Planted | None:
        """Return the noise and the clean examples that its owner keeps; None where nobody planted any."""
        noise = self.setting.noise
        if noise is None:
            return None
        return _with_noise(noise, self._clean(noise.client), self.dealt.seed)[1]

    def targets(self, case: Case) -> list[Target]:
        """Return what the case asks to forget, of what this seed's clients have."""
        wanted = self._wanted(case)
        if case.granularity is not Granularity.SAMPLE or not (self.shared and self.shared.halved):
            return wanted
        return [
            Target(target.granularity, client, target.sample_ids & {*self.site(client).ids.tolist()})
            for target, client in zip(wanted, case.clients, strict=True)
        ]

    def forget_set(self, case: Case) -> ForgetSet:
        """Return all that the case forgets, also what this seed's clients do not have."""
        halved = self.shared.halved if self.shared else None
        parts, had, vulnerable = [], [], []
        for client in self._clients:
            whole, forgotten = self._changed(client), self._forgotten_mask(case, client)
            parts.append(whole.select(forgotten))
            had.append((self._had(halved, client) if halved else forgotten)[forgotten])
            if case.mixed is not None and client in case.clients:
                most, _ = self._ends(case, client)
                vulnerable.append(np.isin(np.flatnonzero(forgotten), most))
        return ForgetSet(
            reduce(join, parts), np.concatenate(had), np.concatenate(vulnerable) if vulnerable else None
        )

    def forgotten(self, case: Case) -> Examples:
        """Return what the case forgets, of all clients, in their order."""
        return reduce(join, (site.select(mask) for site, mask in self._masks(case).values()))

    def retained(self, case: Case) -> dict[str, Examples]:
        """Return what each client goes on training on."""
        return {client: site.select(~mask) for client, (site, mask) in self._masks(case).items()}

    def _masks(self, case: Case) -> dict[str, tuple[Examples, Mask]]:
        """Return every client's examples, and which of them the case forgets."""
        exclusions = Exclusions().including(self.targets(case))
        sites = {client: self.site(client) for client in self._clients}
        return {client: (site, forgotten_mask(site, exclusions.of(client))) for client, site in sites.items()}

    @property
    def _clients(self) -> list[str]:
        return [str(number) for number in range(self.task.num_clients)]

    def _wanted(self, case: Case) -> list[Target]:
        """Return what the case forgets, also what this seed's clients do not have."""
        if case in self._known:
            return self._known[case]
        wanted = {}
        for client in case.clients:
            ids = self._changed(client).ids
            if case.mixed is not None:
                ids = ids[np.sort(np.concatenate(self._ends(case, client)))]
            wanted[client] = ids.tolist()
        self._known[case] = case.targets(wanted)
        return self._known[case]

    def _forgotten_mask(self, case: Case, client: str) -> Mask:
        """Return which of all that a client has in any seed the case forgets, (n,)."""
        exclusions = Exclusions().including(self._wanted(case))
        return forgotten_mask(self._changed(client), exclusions.of(client))

    def _ends(self, case: Case, client: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return a client's most and least vulnerable examples, by position, each half of what a mixed case forgets."""
        assert self.shared is not None, "a mixed case is of an experiment whose seeds share their clients"
        assert case.mixed is not None, "the case is mixed"
        everybody = {name: self._changed(name) for name in self._clients}
        return mixed(self.shared.first_pass.scores(everybody, client), case.mixed / 2)

    def _had(self, halved: Case, client: str) -> Mask:
        """Return which of all that a client has in any seed it has in this one, (n,).

        Of what is forgotten a random half, and the other half in the other seed of the pair.
        """
        forgotten = np.flatnonzero(self._forgotten_mask(halved, client))
        generator = np.random.default_rng([DEALING_SEED, _HALVES_STREAM, self.task.seed // 2, int(client)])
        first, second = np.split(generator.permutation(forgotten), [len(forgotten) // 2])
        had = np.ones(len(self._changed(client)), dtype=np.bool_)
        had[first if self.task.seed % 2 else second] = False
        return had

    def _clean(self, client: str) -> Examples:
        return load_site(self.dealt, int(client)).train if self.own is None else self.own.site(client).train

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
