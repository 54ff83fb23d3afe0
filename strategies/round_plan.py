"""What a training round goes by, and what comes of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from strategies.messages import PROBLEM, SUBJECT_KEY, Json, by_preparation, exclusion_values
from unlearning.methods.preparation import Preparation, Prepared
from unlearning.parameters import Vector, weighted_mean
from unlearning.pseudonyms import SubjectKeys
from unlearning.requests import Exclusions, Forget, Target
from unlearning.runtime.stores import Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRules:
    """What the methods in `prepared`, by name, change about a training round; without any, nothing."""

    prepared: Mapping[str, Prepared] = field(default_factory=dict)

    @property
    def keeps_models(self) -> bool:
        """Whether the outcome holds every client's model and arrays: as much memory as all models of a round."""
        return bool(self.prepared)

    def combine(self, before: Vector, models: Mapping[str, tuple[int, Vector]]) -> Vector:
        """Make one model of the one before and the local ones, each with its number of examples.

        FedAvg's mean, unless a method trains in a way of its own.
        """
        for prepared in self.prepared.values():
            if prepared.preparation.replaces_training:
                return prepared.preparation.combine(prepared.options, before, models)
        return weighted_mean(models)

    @property
    def averages(self) -> bool:
        """Whether `combine` is FedAvg's mean, so that a count is a client's weight in it."""
        return all(
            type(prepared.preparation).combine is Preparation.combine for prepared in self.prepared.values()
        )

    def takes_part(self, client_id: str, number: int) -> bool:
        """Tell whether a client is asked in the training round `number`."""
        return all(
            prepared.preparation.takes_part(prepared.options, client_id, number)
            for prepared in self.prepared.values()
        )

    def check(self, sent: Arrays, returned: Arrays) -> None:
        """Refuse a client's answer that lacks what methods need for what they sent, or has it wrong.

        Raises:
            UpdateRefused: what is wrong.
        """
        answers = by_preparation(returned)
        for name, own in by_preparation(sent).items():
            prepared = self.prepared[name]
            prepared.preparation.check(prepared.options, own, answers.get(name, {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """Who may take part in rounds, what clients are told in each message, and what is made of their answers.

    A client may take part unless it was forgotten (`exclusions`) or a request that would forget it is waiting
    (`withheld`); single samples and classes are left out by the client itself.

    counts: how many examples each client trained on when it last did.
    answers: what became of the requests that clients filed at their sites, by client.
    problems: what is wrong with clients' set-up, by client.
    suspended: clients that are not asked to train, because they spoiled a round a short while ago.
    subject_keys: where sample ids are keyed hashes, the keys by which each client finds its own.
    """

    exclusions: Exclusions = field(default_factory=Exclusions)
    withheld: Exclusions = field(default_factory=Exclusions)
    counts: Mapping[str, int] = field(default_factory=dict)
    answers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    suspended: frozenset[str] = frozenset()
    subject_keys: SubjectKeys | None = None
    rules: RoundRules = field(default_factory=RoundRules)

    @property
    def num_examples(self) -> Mapping[str, int]:
        """The counts without those of the forgotten."""
        return {name: count for name, count in self.counts.items() if not self.exclusions.is_forgotten(name)}

    def left_out(self, client: str) -> Forget:
        """Return what a client must leave out of the round, for good or while a request waits."""
        return self.exclusions.of(client) | self.withheld.of(client)

    def site_values(self, client: str) -> Json:
        """Return what every message tells a client: what it must leave out, and answers to what it filed."""
        excluded, withheld = self.exclusions.of(client), self.withheld.of(client)
        values = exclusion_values(excluded, withheld)
        if self.subject_keys is not None and (excluded.sample_ids or withheld.sample_ids):
            values[SUBJECT_KEY] = self.subject_keys.of(client).hex()
        if client in self.problems:
            values[PROBLEM] = self.problems[client]
        answers = self.answers.get(client, {})
        return {**values, "answers": dict(answers)} if answers else values

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
    """What came of a round.

    model: the new one (d,); None where no answer could enter.
    participants: the number of examples of each client whose answer entered, as it was weighed.
    refused: why, by client id; by `node N` where the node speaks for nobody, or for a client that another node is.
    loss: the mean over the participants' examples, as they say.
    models, arrays: number of examples and local model of each participant, and what it returned beside, where the
        rules ask for them.
    held_back: why a client counts fewer examples than it has, by client (`strategies.influence`).
    problem: why the server does not commit the model; empty where it does.
    culprit: the client that was left out of the mean because with it there was such a problem.
    """

    model: Vector | None = None
    participants: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    loss: float | None = None
    models: Mapping[str, tuple[int, Vector]] = field(default_factory=dict)
    arrays: Mapping[str, Arrays] = field(default_factory=dict)
    held_back: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    culprit: str = ""
