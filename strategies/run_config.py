"""The run configuration: `[tool.flwr.app.config]`, typed once and validated once.

Server and clients read the same values (Flower sends them to every ClientApp), so both use this.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from strategies.secret_settings import secrets_in
from strategies.tls_files import is_loopback
from strategies.update_checks import CountLimits
from unlearning.errors import ConfigurationError
from unlearning.methods.preparation import Prepared
from unlearning.methods.registry import preparations
from unlearning.tasks.settings import TaskSettings, problems
from unlearning.training import TrainingSettings
from unlearning.training import local_seed as local_seed  # clients have it from here
from unlearning.verification.shadow_membership import FEWEST, MOST


class RunSettings(BaseModel):
    """Every setting of a run; names in the configuration are written with hyphens."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
        allow_inf_nan=False,
    )

    # What is learnt
    dataset: str = "digits"
    model: str = "logistic"
    partition: str = "iid"
    alpha: float = 0.5
    num_clients: int = Field(default=10, ge=1)
    data_dir: str = ""
    dtype: str = "float32"
    num_classes: int = Field(default=0, ge=0)
    input_shape: str = ""
    max_examples: int = Field(default=0, ge=0)
    max_test_examples: int = Field(default=0, ge=0)
    image_side: int = Field(default=0, ge=0)
    pretrained: str = ""
    seed: int = Field(default=0, ge=0, lt=2**31)

    # Rounds: 0 goes on until the run is stopped
    rounds: int = Field(default=10, ge=0)
    fraction: float = Field(default=1.0, gt=0, le=1)
    min_clients: int = Field(default=1, ge=1)
    start_clients: int = Field(default=0, ge=0)
    round_timeout_s: float = Field(default=600.0, gt=0)
    wait_timeout_s: float = Field(default=300.0, gt=0)
    max_update_norm: float = Field(default=0.0, ge=0)
    max_norm_factor: float = Field(default=10.0, ge=0)
    max_client_examples: int = Field(default=0, ge=0)
    max_count_factor: float = Field(default=10.0, ge=0)
    client_example_limits: str = ""
    max_round_score_loss: float = Field(default=30.0, ge=0, le=100)

    # Local training
    local_epochs: int = Field(default=1, ge=1)
    batch_size: int = Field(default=32, ge=1)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: float = Field(default=0.1, gt=0)
    learning_rate_decay: float = Field(default=1.0, gt=0, le=1)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    augment: bool = False

    # Where the federation's memory is
    federation: str = Field(default="main", min_length=1)
    state_dir: str = ""
    ledger: str = ""
    checkpoints_kept: int = Field(default=3, ge=1)
    certificate_key: str = ""

    # Sessions: many short exchanges over a stream of their own
    session_address: str = ""
    session_bind: str = ""
    session_timeout_s: float = Field(default=600.0, gt=0)
    session_tls_ca: str = ""
    session_tls_cert: str = ""
    session_tls_key: str = ""

    # Deletion
    prepare: str = ""
    requests: str = ""
    recovery_max_rounds: int = Field(default=30, ge=0)
    recovery_tolerance: float = Field(default=0.01, ge=0, le=1)
    recovery_target: float = Field(default=0.0, ge=0, le=1)
    max_score_loss: float = Field(default=15.0, ge=0, le=100)
    max_attempts: int = Field(default=5, ge=1)
    attack_samples: int = Field(default=1000, ge=1)
    shadow_federations: int = Field(default=0, ge=0, le=MOST)
    mia_u_classifiers: bool = False
    measure_every_recovery_round: bool = True
    evaluate_every: int = Field(default=1, ge=0)

    @classmethod
    def from_run_config(cls, values: Mapping[str, Any]) -> "RunSettings":
        """The settings in `values` (Flower's `context.run_config`), defaults filled in.

        Raises:
            ConfigurationError: lists every wrong setting with what is allowed.
        """
        wrong = secrets_in(values)
        if wrong:  # alone: the other sentences repeat what was given
            raise ConfigurationError(wrong)
        settings = None
        try:
            settings = cls.model_validate(dict(values))
        except ValidationError as exc:
            wrong += [_sentence(error) for error in exc.errors()]
        if settings is not None:
            wrong += [*problems(settings._plain_task(None)), *settings.session_problems()]
            try:
                switched_on = settings.preparations()
            except ConfigurationError as exc:
                wrong += exc.problems
            else:
                for prepared in switched_on.values():
                    wrong += [] if wrong else prepared.preparation.problems(prepared.options, settings.task())
                    wrong += prepared.preparation.training_problems(prepared.options, settings.training(1))
                wrong += settings.shadow_problems()
            wrong += settings.bound_problems()
        if wrong or settings is None:
            raise ConfigurationError(wrong)
        return settings

    def bound_problems(self) -> list[str]:
        """One sentence a bound on what clients answer that makes no sense."""
        factors = {"max-norm-factor": self.max_norm_factor, "max-count-factor": self.max_count_factor}
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
        return wrong

    def count_limits(self) -> CountLimits:
        """How many examples clients may count.

        Raises:
            ValueError: `client-example-limits` is malformed.
        """
        pairs = [entry.rpartition("=") for entry in self.client_example_limits.split(";") if entry.strip()]
        own = {client.strip(): int(count) for client, _, count in pairs}
        if "" in own or any(count < 1 for count in own.values()) or len(own) < len(pairs):
            raise ValueError
        return CountLimits(most=self.max_client_examples, factor=self.max_count_factor, own=own)

    def session_problems(self) -> list[str]:
        """One sentence a wrong or missing setting of sessions; files are looked at where they are needed."""
        wrong = []
        for name, address in (("session-address", self.session_address), ("session-bind", self.session_bind)):
            host, _, port = address.rpartition(":")
            if address and not (host and port.isdigit() and 0 < int(port) < 2**16):
                wrong.append(f"{name}: {address!r} is not of the form HOST:PORT.")
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

    def shadow_problems(self) -> list[str]:
        """One sentence a reason why there can be no such shadow federations."""
        count = self.shadow_federations
        if not count:
            return []
        wrong = []
        if count < FEWEST or count % 2:
            wrong.append(f"shadow-federations: give an even number of {FEWEST} or more, or 0, got {count}.")
        for name, prepared in self.preparations().items():
            if prepared.preparation.replaces_training and not prepared.preparation.keeps_the_model:
                wrong.append(
                    f"shadow-federations: prepare={name} trains another model than shadow federations do; set one "
                    "of the two only."
                )
        return wrong

    def preparations(self) -> dict[str, Prepared]:
        """What `prepare` switches on, by method."""
        return preparations(self.prepare)

    def task(self, num_clients: int | None = None) -> TaskSettings:
        """The part that says what is learnt; a node's own number of partitions goes before."""
        settings = self._plain_task(num_clients)
        for prepared in self.preparations().values():
            settings = prepared.preparation.task_settings(prepared.options, settings)
        return settings

    def _plain_task(self, num_clients: int | None) -> TaskSettings:
        """The same without what `prepare` makes of it."""
        return TaskSettings(
            dataset=self.dataset,
            model=self.model,
            partition=self.partition,
            alpha=self.alpha,
            num_clients=num_clients or self.num_clients,
            seed=self.seed,
            data_dir=self.data_dir,
            dtype=self.dtype,
            num_classes=self.num_classes,
            input_shape=self.input_shape,
            max_examples=self.max_examples,
            max_test_examples=self.max_test_examples,
            image_side=self.image_side,
            pretrained=self.pretrained,
        )

    def training(self, server_round: int, *, augment: bool | None = None) -> TrainingSettings:
        """How clients train in `server_round` (from 1); the learning rate decays with it.

        The seed is the run's: each client mixes in its id and the round (`local_seed`).
        """
        return TrainingSettings(
            epochs=self.local_epochs,
            batch_size=self.batch_size,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate * self.learning_rate_decay ** max(server_round - 1, 0),
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            augment=self.augment if augment is None else augment,
            seed=self.seed,
        )


def _sentence(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = ", ".join(sorted(field.replace("_", "-") for field in RunSettings.model_fields))
        return f"{name}: there is no such setting. The settings are: {known}."
    return f"{name}: {error['msg']}, got {error['input']!r}."
