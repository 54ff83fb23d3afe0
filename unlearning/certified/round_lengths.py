"""What a bound on a federated deletion, and the account of private training, must know of rounds: no vector.

These are plain values: the memory of a site has them without the accountant's libraries.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from unlearning.certified.rounding import Arithmetic
from unlearning.certified.sensitivity import Constants, logistic_constants

_FEATURE_SLACK = 1 + 2e-6  # clients check to 10⁻⁶, and inputs are rounded when they are cast


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWork:
    """One client's part in a round: n_i, K_i, and ‖θ⁺ − φ_i(θ)‖."""

    num_examples: int
    num_steps: int
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises:
    """What a round's part of the bound rests on: its constants, and what rounding depends on."""

    constants: Constants
    arithmetic: Arithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLengths:
    """What the bound must know of a round; lengths only, no vector.

    number: of the round, among all that move the model.
    learning_rate: η of its local steps.
    clients: who took part. moved: ‖θ⁺ − θ‖. norm: ‖θ‖.
    vectors: |a_u| before the round, of the forgettable clients that had a vector.
    premises: None where nothing can be proven of this round, and then `unmet` says why, a sentence each.
    """

    number: int
    learning_rate: float
    clients: Mapping[str, LocalWork]
    moved: float
    norm: float
    vectors: Mapping[str, float]
    premises: Premises | None
    unmet: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRelease:
    """A model that was released before: its number among all that moved the model, its Δ, and whom it forgot."""

    number: int
    sensitivity: float
    clients: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateRounds:
    """A number of rounds with the same noise: z and q of `unlearning.certified.private_training`, and how many."""

    noise_multiplier: float
    sampling: float
    count: int


def declared_logistic_constants(*, feature_norm: float, l2: float, frozen: str = "") -> Constants:
    """Return the constants that this bound needs of logistic regression, for ‖(x, 1)‖ ≤ R that every client
    has checked.

    As `logistic_constants`, but that the gradient's bound leaves the L2 term out: it is not used here.

    frozen: SHA-256 of the network whose outputs the features are; empty for the inputs themselves.

    Raises:
        ConfigurationError: there is no L2 term, or a value is out of range.
    """
    known = logistic_constants(
        feature_norm=feature_norm * _FEATURE_SLACK, weight_norm=0.0, l2=l2, features_from="every client"
    )
    features = f", on the features of the frozen network {frozen[:16]} as they are computed" if frozen else ""
    return replace(
        known,
        source=(
            f"multinomial logistic regression with weight decay {l2:g}, feature norm at most {feature_norm:g} "
            f"(declared, and checked by every client){features}"
        ),
    )
