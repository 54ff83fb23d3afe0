"""The settings of a run that are the server's: rounds, memory, sessions, deletion.

None holds a secret: the SuperLink stores a run's configuration, and Flower sends it to every client. A secret comes by
the environment (`server/state_directory/ledger_address.py`), or in a file of its owner that the configuration names.

The sentence below a field is its row in docs/reference-settings.md, under the first line of its class (`make docs`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from unlearning.local_training import LocalTraining

Share = Annotated[float, Field(ge=0, le=1)]
Points = Annotated[float, Field(ge=0, le=100)]
DecayFactor = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, Field(min_length=1)]


def _absolute(path: Path) -> Path:
    """Return the path, which must not depend on where a program is started.

    Raises:
        ValueError: it does.
    """
    if not path.is_absolute():
        raise ValueError("give the whole path, from / on")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


_SECRETS = (
    ("a password", re.compile(r"://[^/@\s:]*:[^@\s]+@|:[^@/\s:]+@")),
    ("a password", re.compile(r"(?i)(pass(word|wd|phrase)?|pwd|secret|token|api[-_]?key)\s*[=:]\s*\S")),
    ("a private key", re.compile(r"PRIVATE KEY")),
)


_ANYWHERE = "Put it into a file of mode 600 on the machine that needs it, and name the file"
_SECRET_PLACES = {
    "ledger": "Put the URL into FLOWER_UNLEARNING_LEDGER, or into a file of mode 600 that "
    "FLOWER_UNLEARNING_LEDGER_FILE names, in the environment of flower-superexec (docs/how-to-keep-secrets.md)"
}
"""Where a secret belongs that a setting must not hold, by the setting."""


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """Rounds."""

    rounds: NonNegativeInt = 10
    """training rounds; `0` goes on until the run is stopped"""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of eligible clients that train in a round; at least `min-clients`, in secure aggregation `min-cohort`"""
    min_clients: PositiveInt = 1
    """a round needs at least this number of eligible clients online, or all that are left after some were forgotten"""
    start_clients: NonNegativeInt = 0
    """wait for this number before the first round; `0` means `num-clients`"""
    round_interval_s: NonNegativeFloat = 0.0
    """the shortest time from one training round's beginning to the next one's; requests are taken meanwhile"""
    round_timeout_s: PositiveFloat = 600.0
    """a client that has not answered by then is left out of the round"""
    wait_timeout_s: PositiveFloat = 300.0
    """how long to wait for clients before going on with fewer; in a simulation 5 s at most"""
    max_update_norm: NonNegativeFloat = 0.0
    """refuse an update whose Euclidean norm is larger; `0` for no bound"""
    max_norm_factor: NonNegativeFloat = 10.0
    """refuse an update whose norm is over this multiple of the median norm of the round's updates (at least `1`); `0`
    for no bound"""
    max_influence_factor: NonNegativeFloat = 3.0
    """a client whose count times the length of its update is over this multiple of the others' median (in small
    federations [less](reference-limits.md#clients)) counts fewer examples where it harms the model (at
    least `1`); `0` for no bound. It costs a test in a round in which a client is over it"""
    max_client_examples: NonNegativeInt = 0
    """refuse an answer that counts more examples: the count is a client's weight in the average; `0` for no such
    bound"""
    max_count_factor: NonNegativeFloat = 10.0
    """refuse an answer that counts more than this multiple of the median of all clients' counts (at least `1`); `0` for
    no such bound"""
    client_example_limits: str = ""
    """what single clients may count in place of both: `hospital-3=200000; hospital-7=50000`
    ([how a large site is let in](how-to-handle-a-bad-client.md#allow-a-large-site))"""
    max_round_score_loss: Points = 30.0
    """a training or recovery round whose score on the server's test set is more points below the best of the last ten
    committed ones is not committed; `0` for no bound. It costs a test a round, whatever `evaluate-every` says"""
    evaluate_every: NonNegativeInt = 1
    """test the model on the server's test set after every N training rounds; `0` never"""


@dataclass(frozen=True, kw_only=True)
class TrainingSchedule(LocalTraining):
    """Local training."""

    learning_rate_decay: DecayFactor = 1.0
    """factor a round (training, unlearning and recovery rounds all count)"""


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """The federation's memory."""

    federation: Name = "main"
    """its name in reports"""
    state_dir: str = ""
    """checkpoints, ledger and reports on the server, by its whole path; empty: a new one for this run in `FLWR_HOME`"""
    ledger: str = ""
    """SQLAlchemy URL without a password ([refused](how-to-keep-secrets.md)); empty: what `FLOWER_UNLEARNING_LEDGER`
    or `FLOWER_UNLEARNING_LEDGER_FILE` in the ServerApp's environment says, else SQLite in the state directory;
    PostgreSQL: `postgresql+psycopg://…`"""
    checkpoints_kept: PositiveInt = 3
    """how many are kept; a completed deletion erases all older ones"""
    certificate_key: str = ""
    """the private key (PEM, mode 600) that signs [certificates](explanation-certificates.md); empty: they are unsigned
    and say so"""

    def path_problems(self) -> list[str]:
        """Say that a relative `state_dir` would be in a directory of Flower's, where no command looks for it."""
        if not self.state_dir or self.state_dir.startswith(("/", "~/")):
            return []
        return [
            f"state-dir: give the whole path, for a run works in a directory of Flower's; got {self.state_dir!r}."
        ]


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Sessions."""

    transport: Literal["messages", "session"] = "messages"
    """each message by Flower, or all over a stream that a client holds open ([sessions](explanation-sessions.md))"""
    session_address: str = ""
    """`HOST:PORT` where clients reach the ServerApp's sessions; empty: every message goes by Flower"""
    session_bind: str = ""
    """where the ServerApp listens, if not at that address: `0.0.0.0:9101`"""
    session_timeout_s: PositiveFloat = 600.0
    """a client that has not answered an exchange by then is left out of it"""
    wire_dtype: Literal["exact", "bfloat16", "float16"] = "exact"
    """in what models of training rounds travel over streams: half the bytes, each number of an update off by at most
    0.4 % or 0.05 % of it ([what is rounded](explanation-sessions.md#large-models)); not with methods that state a
    bound"""
    session_tls_ca: str = ""
    """on the server: the authority that certifies clients (PEM); needed beyond loopback"""
    session_tls_cert: str = ""
    """on the server: its certificate (PEM)"""
    session_tls_key: str = ""
    """on the server: its private key (PEM)"""


@dataclass(frozen=True, kw_only=True)
class SecureAggregationSettings:
    """Secure aggregation."""

    secure_aggregation: bool = False
    """the server learns sums over clients and no client's own part
    ([how, and what it costs](explanation-secure-aggregation.md))"""
    min_cohort: Annotated[int, Field(ge=3)] = 3
    """the fewest clients that a sum may be over; a site can ask for more"""
    threshold: Annotated[float, Field(ge=0.5, lt=1)] = 0.667
    """over this share of a round's clients must stay to its end, else it is abandoned: `0.5` holds against a server
    that lies, `0.667` also where up to a third of the clients help it"""
    secure_clip_norm: PositiveFloat = 10.0
    """a client shortens its update to this Euclidean norm; the report says how many did"""


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """Training with privacy."""

    privacy: Literal["none", "client", "samples"] = "none"
    """`client`: rounds have differential privacy for single clients, whose deletion is then covered
    ([how](how-to-train-with-privacy.md)). Clients weigh the same, each takes part with probability `fraction`, and
    `max-norm-factor`, `max-influence-factor` and `max-count-factor` are off. `samples`: each site trains with it for
    single samples ([how](how-to-train-with-privacy-for-samples.md))"""
    privacy_clip_norm: PositiveFloat = 1.0
    """a client's update, or the gradient of one sample, is shortened to this Euclidean norm"""
    privacy_noise_multiplier: NonNegativeFloat = 0.0
    """standard deviation of the noise on the sum of updates, or of a step's gradients, in `privacy-clip-norm`; `0`, for
    clients: the least with which `rounds` rounds keep `privacy-epsilon`"""
    privacy_epsilon: NonNegativeFloat = 0.0
    """the budget for one client, or for one sample at each site; `0`: none"""
    privacy_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """at which ε is counted; below 1 of `num-clients`, or of a site's samples"""
    privacy_at_budget: Literal["stop", "warn"] = "stop"
    """what happens before the round that would exceed the budget; a site at its own trains no more"""
    privacy_deletion_epsilon: Annotated[float, Field(gt=0, le=10)] = 10.0
    """the largest ε, for all clients that have left together, or all samples deleted at a site, at which a deletion
    counts as covered"""


@dataclass(frozen=True, kw_only=True)
class DeletionSettings:
    """Deletion."""

    prepare: str = ""
    """work in every training round for methods that need it, before any request: `federaser every=2; pga`
    ([how](how-to-prepare-a-method.md))"""
    requests: str = ""
    """requests filed by the run itself: `at=3 client=2; at=5 client=1 samples=17,21 method=puf-regular`"""
    approval: Literal["none", "officer", "two"] = "none"
    """who accepts a request before it begins: `none`, one `officer`, or `two` of different names; it counts for
    requests filed from then on ([approval](how-to-approve-requests.md))"""
    recovery_max_rounds: NonNegativeInt = 30
    """recovery ends after this number of rounds at the latest"""
    recovery_tolerance: Share = 0.01
    """recovery ends when the test score, without the forgotten classes, is at most this below the one before"""
    recovery_target: Share = 0.0
    """recovery ends at this test score instead, without the forgotten classes too (for example a retrained model's);
    `0` means: use the tolerance"""
    max_score_loss: Points = 15.0
    """a deletion whose model is more points below the score before is held by
    [the gate](how-to-handle-a-failed-deletion.md#the-gate); `0`: only a model that is not finite, or whose norm has
    exploded, is"""
    batch_max: PositiveInt = 1000
    """the most waiting requests that are carried out as one deletion"""
    min_deletions_together: PositiveInt = 1
    """a deletion begins when this many requests wait that can be carried out together, or the first of them has waited
    for `batch-window-s`"""
    batch_window_s: NonNegativeFloat = 3600.0
    """how long a request waits at most for others, where `min-deletions-together` asks for more than one"""
    max_attempts: PositiveInt = 5
    """this number of failed attempts makes a request fail (it can be retried)"""
    attack_samples: PositiveInt = 1000
    """at most this number of per-example values per client and set is sent for the attacks"""
    mia_u_classifiers: bool = False
    """attack the change that a deletion makes with classifiers too; seconds a measurement"""
    measure_every_recovery_round: bool = True
    """`false`: measure before, after unlearning and at the end only"""
    recheck_after_rounds: str = ""
    """attack the model again for each completed request after these numbers of further rounds, such as `5, 20, 100`,
    and reopen the request where its effect no longer shows ([rechecks](how-to-recheck-a-deletion.md)); empty: on demand
    only"""


def secrets_in(values: Mapping[str, Any]) -> list[str]:
    """Say of each setting that holds a secret what to do; the secret is not repeated."""
    return [
        f"{name}: it holds {what}, which the SuperLink would store and send to every client. "
        f"{_SECRET_PLACES.get(name, _ANYWHERE)}; if it was submitted before, change it."
        for name, value in values.items()
        if (what := _secret_in(value))
    ]


def _secret_in(value: Any) -> str:
    """Return what kind of secret a text is or has in it; empty for none."""
    if not isinstance(value, str):
        return ""
    return next((what for what, pattern in _SECRETS if pattern.search(value)), "")
