"""What a training round goes by, and what its result is."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from logging import getLogger

from flwr.app import ArrayRecord, Message

from strategies.aggregation import KeptAggregation
from strategies.messages import FROZEN_PART, LEDGER, PROBLEM, SUBJECT_KEY, Json, compose
from strategies.roster import Member
from strategies.round_rules import RoundRules
from unlearning.parameters import Models, Vector
from unlearning.pseudonyms import SubjectKeys
from unlearning.requests import Exclusions, Forget, Target
from unlearning.runtime.json_codec import to_plain
from unlearning.runtime.stores import Arrays
from unlearning.secure_aggregation.addends import SecureTotal

_log = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """Who may take part in rounds, what each message says to a client, and what enters the model.

    A client may take part unless it was forgotten (`exclusions`) or a request that would forget it is waiting
    (`withheld`); single samples and classes are left out by the client itself.

    counts: how many examples each client trained on when it last did.
    known: clients that were ever online, whether or not they have trained.
    answers: what became of the requests that clients filed at their sites, by client.
    problems: what is wrong with clients' set-up, by client.
    suspended: clients that are not asked to train, because they spoiled a round a short while ago.
    subject_keys: where sample ids are keyed hashes, the keys by which each client finds its own.
    frozen_part: the hash of what of the model stays at home; empty where nothing does.
    kept: what a strategy of the user's own keeps of the rounds before; None where it begins.
    """

    exclusions: Exclusions = field(default_factory=Exclusions)
    withheld: Exclusions = field(default_factory=Exclusions)
    counts: Mapping[str, int] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    answers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    suspended: frozenset[str] = frozenset()
    subject_keys: SubjectKeys | None = None
    frozen_part: str = ""
    kept: KeptAggregation | None = None
    rules: RoundRules = field(default_factory=RoundRules)

    @property
    def num_examples(self) -> Mapping[str, int]:
        """The counts without those of the forgotten."""
        return {name: count for name, count in self.counts.items() if not self.exclusions.is_forgotten(name)}

    def left_out(self, client: str) -> Forget:
        """Return what a client must leave out of the round, permanently or while a request waits."""
        return self.exclusions.of(client) | self.withheld.of(client)

    def eligible(self, online: Mapping[str, Member]) -> dict[str, Member]:
        """Return those of the clients online that may train."""
        return {client: one for client, one in online.items() if not self.left_out(client).everything}

    def fewest(self, wanted: int) -> int:
        """Return how many clients a round needs: `wanted`, or all that are left once some were forgotten or are held.

        Otherwise a federation whose rounds need all its clients would train no more after one is forgotten.
        """
        known = {*self.counts, *self.known, *self.exclusions.clients, *self.withheld.clients}
        gone = {client for client in known if self.left_out(client).everything}
        return max(1, min(wanted, len(known - gone))) if gone else wanted

    def turn(self, eligible: Iterable[str], number: int) -> list[str]:
        """Return the eligible clients whose turn it is in the training round `number`.

        All of them where it is the turn of none, as when those that begin have left.
        """
        everyone = list(eligible)
        return [client for client in everyone if self.rules.takes_part(client, number)] or everyone

    def messages(
        self,
        kind: str,
        number: int,
        members: Mapping[str, Member],
        values: Callable[[str], Json] = lambda _: {},
        arrays: ArrayRecord | None = None,
    ) -> dict[str, Message]:
        """Return one message of type `kind` for each of `members`: its own `values`, and what every message says."""
        return {
            client: compose(
                member.node_id, kind, number, {**values(client), **self.site_values(client)}, arrays
            )
            for client, member in members.items()
        }

    def site_values(self, client: str) -> Json:
        """Return what every message tells a client: what it must leave out, and answers to what it filed."""
        excluded, withheld = self.exclusions.of(client), self.withheld.of(client)
        left_out = {"excluded": excluded, "withheld": withheld}  # permanently, and in this round only
        values: Json = {name: to_plain(forget) for name, forget in left_out.items() if forget}
        if self.subject_keys is not None:
            values[LEDGER] = self.subject_keys.identity
            if excluded.sample_ids or withheld.sample_ids:
                values[SUBJECT_KEY] = self.subject_keys.of(client).hex()
        if client in self.problems:
            values[PROBLEM] = self.problems[client]
        if self.frozen_part:
            values[FROZEN_PART] = self.frozen_part
        if answers := self.answers.get(client):
            values["answers"] = dict(answers)
        return values

    def including(
        self, targets: Iterable[Target] = (), counts: Mapping[str, int] | None = None
    ) -> "RoundPlan":
        """Return the plan of the rounds after `targets` were forgotten, or clients trained on `counts` examples."""
        return replace(
            self,
            exclusions=self.exclusions.including(targets),
            counts={**self.counts, **(counts or {})},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """The result of a round.

    model: the new one (d,); None where no answer could enter.
    participants: the number of examples of each client whose answer entered, as it was weighed.
    refused: why, by client id; by `node N` where the node speaks for no client, or for one that another node is.
    loss: the mean over the participants' examples, as they report.
    models, arrays: number of examples and local model of each participant, and what it returned with it, where the
        rules ask for them.
    held_back: why a client counts fewer examples than it has, by client (`strategies.update_limits`).
    problem: why the server does not commit the model; empty where it does.
    culprit: the client that was left out of the mean because with it there was such a problem.
    kept: what a strategy of the user's own keeps, where the model is committed.
    total: under secure aggregation, what the server learnt; `participants` then has the mean count for each client.
    release: the hash of the model, where it was made with the noise of private training.
    """

    model: Vector | None = None
    participants: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    loss: float | None = None
    models: Models = field(default_factory=dict)
    arrays: Mapping[str, Arrays] = field(default_factory=dict)
    held_back: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    culprit: str = ""
    kept: KeptAggregation | None = None
    total: SecureTotal | None = None
    release: str = ""

    @property
    def committed(self) -> Vector | None:
        """The model (d,) that the federation goes on with; None where it keeps the one that it has."""
        return None if self.problem else self.model

    def log(self) -> None:
        """Log whose update is refused, and who counts fewer examples."""
        for who, reason in self.refused.items():
            speaker = who if who.startswith("node ") else f"client {who}"
            _log.warning("The update of %s is refused: %s", speaker, reason)
        for client, reason in self.held_back.items():
            _log.warning("Client %s counts %d examples: %s", client, self.participants[client], reason)
