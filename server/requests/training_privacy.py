"""What private training has used of (ε, δ) so far, as the ledger has it, and whether a deletion is still covered.

It is computed where the models are made (`server.federation.training_account`); admission, metrics and console read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from server.ledger import PRIVATE_TRAINING, Ledger
from unlearning.certified.private_training import PrivateRounds
from unlearning.errors import UnsupportedRequest
from unlearning.methods.method import Method
from unlearning.runtime.json_codec import from_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPrivacy:
    """The account of all rounds that had noise, recovery and retraining included.

    newest: hash of the model counted last, which is not counted again when its round is done again after a crash.
    budget: for one client, 0 for none. limit: of what a deletion may state. left: how many clients have left.
    is_restored: whether the ledger is of a backup: models made since then are not counted.
    epsilon: for one client; epsilon_next: for all that have left and one more; None: unbounded.
    """

    rounds: tuple[PrivateRounds, ...] = ()
    newest: str = ""
    clip_norm: float
    delta: float
    budget: float = 0.0
    limit: float
    left: int = 0
    is_restored: bool = False
    epsilon: float | None = 0.0
    epsilon_next: float | None = 0.0

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self | None:
        """Return the account among the ledger's facts; None where training is not private."""
        return from_plain(cls, known, exactly=True) if (known := facts.get(PRIVATE_TRAINING)) else None

    @property
    def num_rounds(self) -> int:
        """How many models were made."""
        return sum(one.count for one in self.rounds)

    @property
    def text(self) -> str:
        """What is used, in a sentence."""
        budget = f" of a budget of {self.budget:g}" if self.budget else ""
        used = "no bound" if self.epsilon is None else f"ε = {self.epsilon:.4g}"
        return (
            f"{self.num_rounds:,} rounds with noise use {used}{budget} at δ = {self.delta:g}, for one client."
        )

    def weakness(self, epsilon: float | None, group: int) -> str:
        """Say why a deletion after which `group` clients have left is not covered; empty where it is."""
        if epsilon is not None and epsilon <= self.limit:
            return ""
        reached = "without bound" if epsilon is None else f"{epsilon:.4g}"
        return (
            f"The deletion is not covered: for the {group} client(s) that have left with it together ε would be "
            f"{reached} at δ = {self.delta:g}, and privacy-deletion-epsilon allows {self.limit:g}. Choose retrain: it "
            "trains again without them, and its rounds, which have the same noise, count for those that stay."
        )


def check_covered(ledger: Ledger, method: Method) -> None:
    """Refuse a deletion by a method that changes nothing where private training does not cover one more client.

    Raises:
        UnsupportedRequest: says what it would state, and which method works.
    """
    found = TrainingPrivacy.of(ledger.facts()) if method.info.rests_on_training else None
    if found is not None and (reason := found.weakness(found.epsilon_next, found.left + 1)):
        raise UnsupportedRequest(reason, code="not-covered")
