"""What private training has used of (ε, δ) so far, as the ledger has it, and whether a deletion is still covered.

It is computed where the models are made: for clients at the server (`server.federation.training_account`), for single
samples at each site, which states it (`server.federation.sample_accounts`). Admission, metrics and console read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from server.ledger import PRIVATE_TRAINING, SAMPLE_PRIVACY, Ledger
from unlearning.certified.private_training import SampleAccount, bounded, epsilon_of_group
from unlearning.certified.round_lengths import PrivateRounds
from unlearning.errors import UnsupportedRequest
from unlearning.methods.method import Method
from unlearning.requests import Granularity, Target
from unlearning.runtime.json_codec import from_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPrivacy:
    """The account of all rounds that had noise, recovery and retraining included.

    newest: hash of the model counted last, which is not counted again when its round is done again after a crash.
    budget: for one client, 0 for none. limit: of what a deletion may state. left: how many clients have left.
    is_restored: whether the ledger is of a backup: models made since then are not counted.
    epsilon: for one client; epsilon_next: for all that have left and one more, or at least that where it is above the
        limit; None: unbounded.
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
        reached = "without bound" if epsilon is None else f"at least {epsilon:.4g}"
        return (
            f"The deletion is not covered: for the {group} client(s) that have left with it together ε would be "
            f"{reached} at δ = {self.delta:g}, and privacy-deletion-epsilon allows {self.limit:g}. Choose retrain: it "
            "trains again without them, and its rounds, which have the same noise, count for those that stay."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePrivacy:
    """What sites have said of their training with privacy for single samples, by client.

    limit: of what a deletion may state. clients: all that is counted. said: what each has said last.
    lost: what was counted before a site began its account again: virtual clients do with every run, and a site whose
        state directory was lost.
    """

    limit: float
    clients: Mapping[str, SampleAccount] = field(default_factory=dict)
    said: Mapping[str, SampleAccount] = field(default_factory=dict)
    lost: Mapping[str, SampleAccount] = field(default_factory=dict)

    def hearing(self, client: str, account: SampleAccount) -> Self:
        """Return the accounts with what a client says now."""
        before, lost = self.said.get(client), dict(self.lost)
        if before is not None and not account.continues(before):
            lost[client] = self.clients[client]
        earlier = lost[client].rounds if client in lost else ()
        total = SampleAccount.counting((*earlier, *account.rounds), account.delta) if earlier else account
        return replace(
            self,
            clients={**self.clients, client: total},
            said={**self.said, client: account},
            lost=lost,
        )

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self | None:
        """Return the accounts among the ledger's facts; None where sites do not train so."""
        return from_plain(cls, known, exactly=True) if (known := facts.get(SAMPLE_PRIVACY)) else None

    @property
    def text(self) -> str:
        """What is used, in a sentence."""
        used = {client: one.epsilon for client, one in sorted(self.clients.items())}
        largest = max(used, key=lambda client: used[client] or 0.0, default="")
        if not largest:
            return "No site has said yet what its training with privacy for single samples has used."
        without = [client for client in used if used[client] is None]
        if without:
            return f"Client {without[0]} has trained without noise: nothing hides its samples."
        return (
            f"{len(used):,} site(s) train with noise for single samples; by their own account ε is at most "
            f"{used[largest]:.4g} at δ = {self.clients[largest].delta:g}, at client {largest}."
        )

    def epsilon_for(self, client: str, num_samples: int) -> float | None:
        """Return the ε for so many samples of a client together, or at least that where it is above the limit.

        None: unbounded, or the client has said nothing.
        """
        account = self.clients.get(client)
        if account is None:
            return None
        return bounded(
            epsilon_of_group(account.rounds, delta=account.delta, group=num_samples, limit=self.limit)
        )

    def weakness(self, client: str, num_samples: int) -> str:
        """Say why the deletion of a client's samples is not covered; empty where it is.

        num_samples: all that are deleted of it then.
        """
        epsilon = self.epsilon_for(client, num_samples)
        if epsilon is not None and epsilon <= self.limit:
            return ""
        reached = "without bound" if epsilon is None else f"at least {epsilon:.4g}"
        return (
            f"The deletion is not covered: for the {num_samples:,} sample(s) of client {client} that are deleted "
            f"with it ε would be {reached}, and privacy-deletion-epsilon allows {self.limit:g}. Choose retrain: it "
            "trains again without them, with the same noise."
        )


def check_covered(ledger: Ledger, method: Method, target: Target) -> None:
    """Refuse a deletion by a method that changes nothing where private training does not cover it.

    Raises:
        UnsupportedRequest: says what it would state, and which method works.
    """
    if not method.info.rests_on_training:
        return
    reason, facts = "", ledger.facts()
    if target.granularity is Granularity.SAMPLE and (sites := SamplePrivacy.of(facts)) is not None:
        assert target.client_id is not None, "samples are of a client"
        gone = len(ledger.exclusions().of(target.client_id).sample_ids)
        reason = sites.weakness(target.client_id, gone + target.num_samples)
    elif (found := TrainingPrivacy.of(facts)) is not None:
        reason = found.weakness(found.epsilon_next, found.left + 1)
    if reason:
        raise UnsupportedRequest(reason, code="not-covered")
