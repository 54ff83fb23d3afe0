"""The run configuration: `[tool.flwr.app.config]`, typed once and validated once.

Server and clients read the same values (Flower sends them to every ClientApp), so both use this.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from strategies.addresses import is_address
from strategies.settings.groups import (
    DeletionSettings,
    MemorySettings,
    PrivacySettings,
    RoundSettings,
    SecureAggregationSettings,
    SessionSettings,
    TrainingSchedule,
    secrets_in,
)
from strategies.tls_files import is_loopback
from strategies.update_limits import CountLimits, Limits
from unlearning.errors import ConfigurationError, describe_wrong_value
from unlearning.methods.eligibility import FederationProfile, unfit_preparations
from unlearning.methods.method import Need
from unlearning.methods.preparation import Preparation, no_truth_for_numbers, task_prepared
from unlearning.methods.registry import method_named, preparations
from unlearning.tasks.settings import TaskSettings, problems
from unlearning.tasks.task import Task
from unlearning.training import TrainingSettings
from unlearning.training import local_seed as local_seed  # clients have it from here

_Part = TypeVar("_Part", TaskSettings, TrainingSettings)


TYPED = ConfigDict(
    extra="forbid",
    alias_generator=lambda name: name.replace("_", "-"),
    populate_by_name=True,
    allow_inf_nan=False,
)
"""Of settings that a person types, with hyphens in their names."""


# The last base comes first in messages and tables.
@dataclass(frozen=True, kw_only=True, config=TYPED)
class RunSettings(
    DeletionSettings,
    PrivacySettings,
    SecureAggregationSettings,
    SessionSettings,
    MemorySettings,
    TrainingSchedule,
    RoundSettings,
    TaskSettings,
):
    """Every setting of a run; names in the configuration are written with hyphens."""

    _numbers = no_truth_for_numbers

    @classmethod
    def from_run_config(cls, values: Mapping[str, Any]) -> "RunSettings":
        """Return the settings in `values` (Flower's `context.run_config`), defaults filled in.

        Raises:
            ConfigurationError: lists every wrong setting with what is allowed.
        """
        wrong = secrets_in(values)
        if wrong:  # alone: the other sentences repeat what was given
            raise ConfigurationError(wrong)
        try:
            settings = _ADAPTER.validate_python(dict(values))
        except ValidationError as exc:
            wrong = [_sentence(error) for error in exc.errors()]
            refused = {error["loc"][0] for error in exc.errors()}
            settings = _ADAPTER.validate_python({k: v for k, v in values.items() if k not in refused})
        wrong += settings.problems()
        if wrong:
            raise ConfigurationError(wrong)
        return settings

    def with_changes(self, changes: Mapping[str, Any]) -> "RunSettings":
        """Return these settings with others by name, which may be written with underscores.

        Raises:
            ConfigurationError: lists every wrong setting with what is allowed.
        """
        named = {_TYPED_NAMES.get(name, name.replace("_", "-")): value for name, value in changes.items()}
        return self.from_run_config({**self.to_run_config(), **named}) if changes else self

    def to_run_config(self) -> dict[str, Any]:
        """Return every setting by the name that a person types."""
        values: dict[str, Any] = _ADAPTER.dump_python(self, mode="json", by_alias=True)
        return values

    def problems(self) -> list[str]:
        """Say in one sentence each what is wrong with settings whose values are allowed one by one."""
        wrong = [*problems(self._part(TaskSettings)), *self.path_problems(), *self.session_problems()]
        try:
            switched_on = self.preparations()
        except ConfigurationError as exc:
            wrong += exc.problems
        else:
            for prepared in switched_on.values():
                wrong += prepared.training_problems(self.training(1))
            wrong += self._problems_of_sums(switched_on) if self.secure_aggregation else ()
            wrong += self._problems_of_rounding(switched_on) if self.rounded_to else ()
        private = self.is_private or self.hides_samples
        return [*wrong, *self.bound_problems(), *(self.privacy_problems() if private else ())]

    def _problems_of_sums(self, switched_on: Iterable[str]) -> Iterator[str]:
        infos = [method_named(name).info for name in switched_on]
        if single := ", ".join(info.name for info in infos if not info.sums_suffice):
            yield f"prepare: secure-aggregation hides the single updates that are kept for {single}. Leave it out."
        if self.fraction < 1 and any(info.sums_data for info in infos):
            yield (
                "fraction: sums over one round's clients and over another's differ by single clients. Set fraction = 1 "
                "with prepare and secure-aggregation."
            )

    def _problems_of_rounding(self, switched_on: Iterable[str]) -> Iterator[str]:
        if self.transport != "session":
            yield "wire-dtype: messages by Flower carry numbers as they are. Set transport = session, or leave it out."
        if self.secure_aggregation:
            yield "wire-dtype: under secure aggregation masked whole numbers travel. Leave one of the two out."
        if self.privacy != "none":
            yield "wire-dtype: deletions that private training covers are certified for exact rounds. Leave one out."
        infos = [method_named(name).info for name in switched_on]
        if bound := ", ".join(info.name for info in infos if info.states_bound):
            yield f"wire-dtype: the bound of {bound} (prepare) is for exact rounds. Leave one of the two out."

    @property
    def rounded_to(self) -> str:
        """The wire dtype of training rounds; empty where they travel as they are."""
        return "" if self.wire_dtype == "exact" else self.wire_dtype

    @property
    def fewest_in_sum(self) -> int:
        """The fewest clients that a sum may be over; 0 without secure aggregation."""
        return self.min_cohort if self.secure_aggregation else 0

    @property
    def is_private(self) -> bool:
        """Whether rounds have differential privacy for clients."""
        return self.privacy == "client"

    @property
    def hides_samples(self) -> bool:
        """Whether sites train with differential privacy for single samples."""
        return self.privacy == "samples"

    def privacy_problems(self) -> list[str]:
        """Say in one sentence each what of these settings does not go with private training."""
        wrong = []
        if self.secure_aggregation and self.is_private:
            wrong.append(
                "secure-aggregation: it abandons a round of too few clients, so one client more or less can change the "
                "model by a whole sum, and the noise hides one client's share. Leave one of them out."
            )
        if self.secure_aggregation and self.hides_samples:
            wrong.append(
                "secure-aggregation: each site's account of its privacy would have no place among masked answers. "
                "Leave one of them out."
            )
        if self.prepare:
            wrong.append(
                "prepare: prepared methods keep single updates without noise, beside which privacy would promise "
                "nothing. Leave it out."
            )
        if self.is_private and self.privacy_delta >= 1 / self.num_clients:
            wrong.append(
                f"privacy-delta: {self.privacy_delta:g} would allow to give away one of {self.num_clients:,} clients. "
                f"Choose one below {1 / self.num_clients:.2g}, such as {0.1 / self.num_clients:.1g}."
            )
        if self.hides_samples and not self.privacy_noise_multiplier:
            wrong.append("privacy: the noise is not decided. Give privacy-noise-multiplier (1 is usual).")
        if (
            self.is_private
            and not self.privacy_noise_multiplier
            and not (self.privacy_epsilon and self.rounds)
        ):
            wrong.append(
                "privacy: the noise is not decided. Give privacy-noise-multiplier (1 is usual), or privacy-epsilon and "
                "the number of rounds."
            )
        return wrong

    def bound_problems(self) -> list[str]:
        """Say in one sentence each which bound on what clients answer makes no sense."""
        factors = {
            "max-norm-factor": self.max_norm_factor,
            "max-influence-factor": self.max_influence_factor,
            "max-count-factor": self.max_count_factor,
        }
        wrong = [
            f"{name}: {factor:g} would refuse half of all updates; give 0 for no bound, or at least 1 (a few, such "
            "as 5, is usual)."
            for name, factor in factors.items()
            if 0 < factor < 1
        ]
        try:
            self.count_limits()
        except ValueError:
            wrong.append(
                "client-example-limits: write CLIENT=COUNT with a semicolon between two, such as "
                f"hospital-3=200000; hospital-7=50000, got {self.client_example_limits[:80]!r}."
            )
        try:
            self.recheck_rounds()
        except ValueError:
            wrong.append(
                "recheck-after-rounds: write rising numbers of rounds from 1 on, such as 5, 20, 100, got "
                f"{self.recheck_after_rounds[:80]!r}."
            )
        return wrong

    def recheck_rounds(self) -> tuple[int, ...]:
        """Return after how many rounds a completed request is attacked again, in rising order.

        Raises:
            ValueError: `recheck-after-rounds` is malformed.
        """
        found = tuple(int(one) for one in self.recheck_after_rounds.replace(",", " ").split())
        if sorted({*found}) != [*found] or (found and found[0] < 1):
            raise ValueError
        return found

    def count_limits(self) -> CountLimits:
        """Return how many examples clients may count.

        Raises:
            ValueError: `client-example-limits` is malformed.
        """
        pairs = [entry.rpartition("=") for entry in self.client_example_limits.split(";") if entry.strip()]
        own = {client.strip(): int(count) for client, _, count in pairs}
        if "" in own or any(count < 1 for count in own.values()) or len(own) < len(pairs):
            raise ValueError
        factor = 0.0 if self.is_private else self.max_count_factor
        return CountLimits(most=self.max_client_examples, factor=factor, own=own)

    def limits(self, task: Task) -> Limits:
        """Return the limits on what one client may do to a model of `task`."""
        return Limits(
            task=task,
            max_norm=self.max_update_norm,
            # One client's answer must not decide whether another's counts.
            norm_factor=0.0 if self.is_private else self.max_norm_factor,
            influence_factor=0.0 if self.is_private else self.max_influence_factor,
            counts=self.count_limits(),
        )

    def session_problems(self) -> list[str]:
        """Say in one sentence each which setting of sessions is wrong; files are looked at where they are needed."""
        wrong = []
        for name, address in (("session-address", self.session_address), ("session-bind", self.session_bind)):
            if address and not is_address(address):
                wrong.append(f"{name}: {address!r} is not of the form HOST:PORT, or [HOST]:PORT for IPv6.")
        if self.transport == "session" and not self.session_address:
            wrong.append("transport: session needs session-address, where clients connect to.")
        if self.session_bind and not self.session_address:
            wrong.append("session-bind: it is of no use without session-address, where clients connect to.")
        tls = (self.session_tls_ca, self.session_tls_cert, self.session_tls_key)
        listening = self.session_bind or self.session_address
        if any(tls) and not all(tls):
            wrong.append("session-tls-ca, session-tls-cert, session-tls-key: give all three or none.")
        if listening and not any(tls) and not is_loopback(listening):
            wrong.append(
                f"session-tls-ca, session-tls-cert, session-tls-key: {listening} can be reached from other "
                "machines, so both sides must prove who they are. Give the files, or use 127.0.0.1."
            )
        return wrong

    def preparations(self) -> dict[str, Preparation]:
        """Return what `prepare` switches on, by method."""
        return preparations(self.prepare)

    def task(self) -> TaskSettings:
        """Return the part that says which of the built-in tasks is learnt."""
        return self._part(TaskSettings)

    def profile(
        self, task: Task, *, aggregation: str = "", adds_noise: bool = False, **known: Any
    ) -> FederationProfile:
        """Return what a federation with these settings is that learns `task`.

        aggregation, adds_noise: those of a strategy of the user's own. known: whatever else is known.
        """
        return FederationProfile.of(
            task,
            name=self.federation,
            local_epochs=self.epochs,
            recovery_max_rounds=self.recovery_max_rounds,
            aggregation="FedAvg with differential privacy" if self.is_private else aggregation,
            adds_noise=adds_noise or self.privacy != "none",
            private_training="" if self.privacy == "none" else self.privacy,
            secure_aggregation=self.secure_aggregation,
            min_cohort=self.fewest_in_sum,
            wire_dtype=self.rounded_to,
            keeps_optimizer=self.keep_optimizer,
            **known,
        )

    def preparing(self, need: Need) -> list[str]:
        """Return the titles of the methods that `prepare` switches on and that have a need."""
        infos = [method_named(name).info for name in self.preparations()]
        return [info.title for info in infos if need in info.needs]

    def prepared_task(self, task: Task) -> Task:
        """Return `task` as the methods train it that `prepare` switches on.

        Raises:
            ConfigurationError: one of them cannot be prepared for with such a task.
        """
        switched_on = self.preparations().values()
        wrong = unfit_preparations(task, map(method_named, self.preparations()))
        for prepared in switched_on:
            wrong += prepared.problems(task, self.num_clients)
        if wrong:
            raise ConfigurationError(wrong)
        return task_prepared(switched_on, task)

    def training(self, server_round: int, *, augment: bool | None = None) -> TrainingSettings:
        """Return how clients train in `server_round` (from 1); the learning rate decays with it.

        The seed is the run's: each client mixes in its id and the round (`local_seed`).
        """
        return self._part(
            TrainingSettings,
            learning_rate=self.learning_rate * self.learning_rate_decay ** max(server_round - 1, 0),
            augment=self.augment if augment is None else augment,
            sample_noise=self.privacy_noise_multiplier if self.hides_samples else 0.0,
            sample_clip_norm=self.privacy_clip_norm,
        )

    def _part(self, kind: type[_Part], **changes: Any) -> _Part:
        """Return the fields that `kind` has in common with these settings, with `changes`."""
        own = {item.name: getattr(self, item.name) for item in fields(kind) if hasattr(self, item.name)}
        return kind(**(own | changes))


_ADAPTER = TypeAdapter(RunSettings)
FIELDS: Mapping[str, FieldInfo] = vars(RunSettings)["__pydantic_fields__"]
_TYPED_NAMES = {name: field.alias or name for name, field in FIELDS.items()}


def _sentence(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = sorted(RunSettings().to_run_config())
        near = get_close_matches(name, known, n=1)
        meant = f"Did you mean {near[0]}?" if near else f"The settings are: {', '.join(known)}."
        return f"{name}: there is no such setting. {meant}"
    return describe_wrong_value(error)
