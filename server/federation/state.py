"""Everything the live federation knows between two steps, and what a step decides.

A checkpoint holds exactly a `FederationState`. A step writes neither ledger nor checkpoint; `LiveLoop.commit` does.

training ──► unlearning ──► recovering ──► verifying ──► training
    ▲             │              │
    └─────────────┴──────────────┘    the method failed, or the gate holds its model: all is as it was
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self

from server.federation.earlier_settings import SettingsSince
from server.federation.presence import Suspension
from strategies.aggregation import KeptAggregation
from strategies.exchange import Exchange
from strategies.round_plan import RoundOutcome
from unlearning.methods.costs import WorkDone
from unlearning.methods.method import UnlearningState
from unlearning.parameters import Vector
from unlearning.requests import Exclusions, Outcome, Status, Target
from unlearning.runtime.peak_memory import PeakMemory
from unlearning.verification.figures import Measurement
from unlearning.verification.observations import Outputs

FIRST = "0"
"""The generation of every method's store that training begins with."""


class Phase(StrEnum):
    """What the next step will be about."""

    TRAINING = "training"
    UNLEARNING = "unlearning"
    RECOVERING = "recovering"
    VERIFYING = "verifying"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCost:
    """What a phase has cost so far: payload bytes both ways, seconds, memory, and how many exchanges.

    answers: how many answers came, by client; those that were left out of the model among them.
    """

    exchanges: int = 0
    answers: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    peak_memory: PeakMemory = field(default_factory=PeakMemory)

    def plus(self, done: Exchange, peak_memory: PeakMemory) -> "PhaseCost":
        """Return this cost and one more exchange's."""
        answered = tuple(done.messages) if done.total is None else done.total.clients
        return PhaseCost(
            exchanges=self.exchanges + 1,
            answers=dict(Counter(self.answers) + Counter(answered)),
            seconds=self.seconds + done.seconds,
            bytes_sent=self.bytes_sent + done.bytes_sent,
            bytes_received=self.bytes_received + done.bytes_received,
            peak_memory=self.peak_memory.joined(peak_memory),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """What the federation goes back to where the gate holds a deletion's model; fields as in `FederationState`."""

    parameters: Vector
    num_examples: Mapping[str, int]
    prepared_since: Mapping[str, int]
    generations: Mapping[str, str]
    scores: tuple[float, ...] = ()
    aggregation: KeptAggregation | None = None

    @classmethod
    def of(cls, state: "FederationState") -> Self:
        """Return what of `state` comes back."""
        return cls(**{item.name: getattr(state, item.name) for item in fields(cls)})

    def undo(self, state: "FederationState") -> "FederationState":
        """Return `state` as it was."""
        return replace(state, **{item.name: getattr(self, item.name) for item in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveDeletion:
    """The requests that are being carried out together.

    method_state: where the method stands; its parameters are the model that is being unlearned, while
        the federation's own model stays as it was until the method has finished.
    findings: what the method itself reports, by name. work: what its cost formula needs to know of it.
    measurements: by request id, in order of time; all requests of a deletion are measured together.
    outputs_before: posteriors of the model before the deletion, by `test` and `forgotten`; what they are
        compared with comes later.
    before: the federation as it was; from the unlearned model until that is committed, else None.
    scores_before, scores: what the gate compares, before the deletion and at the last measurement
        (`server.federation.gate`).
    attempt, tries: the most attempts of a request, this one included: all, and those since it was retried.
    is_never_used: nothing of the targets has entered the model, so `method` is not carried out.
    accepted_loss, accepted_by: how many points an operator lets this deletion cost, and who; 0: as the settings say.
    target_score: recovery may end when the test score reaches it; None if there is nothing to test on.
    recovery_rounds, failed_rounds: rounds of recovery whose model was committed, and those that left it as it was.
    """

    request_ids: tuple[str, ...]
    targets: tuple[Target, ...]
    method: str
    parameters: Mapping[str, Any]
    attempt: int
    tries: int = 1
    started_round: int
    hash_before: str
    is_never_used: bool = False
    hash_unlearned: str = ""
    method_state: UnlearningState | None = None
    before: Rollback | None = None
    scores_before: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    accepted_loss: float = 0.0
    accepted_by: str = ""
    target_score: float | None = None
    recovery_rounds: int = 0
    failed_rounds: int = 0
    stop_reason: str = ""
    findings: Mapping[str, Any] = field(default_factory=dict)
    work: WorkDone = field(default_factory=WorkDone)
    participants: tuple[str, ...] = ()
    measurements: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    outputs_before: Mapping[str, Outputs] = field(default_factory=dict)
    unlearning_cost: PhaseCost = field(default_factory=PhaseCost)
    recovery_cost: PhaseCost = field(default_factory=PhaseCost)
    measuring_cost: PhaseCost = field(default_factory=PhaseCost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A completed request that is attacked again: the round of its completion, and how long after it it was last."""

    completed_round: int
    checked_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationState:
    """The live federation.

    num_examples: how many examples each client trained on when it last did, without the forgotten ones.
    answered: the clients of which an answer has entered a deletion's model, whether they have trained or not.
    prepared_since: by method, how many training rounds there had been when its preparation was switched on.
    generations: by method, what of its store counts (`server.federation.preparations`); not named: the first one.
    settings: what the rounds were trained with, from the first on (`server.federation.earlier_settings`).
    is_resting: an unlearning attempt has just failed; a training round comes before the next one.
    scores: those of the last committed rounds on the server's test set, with which the next one's is compared.
    suspensions: clients that are, or were a short while ago, left out of rounds.
    aggregation: what a strategy of the user's own keeps of the rounds since it began, or since the last deletion.
    watched: the completed requests that are to be rechecked after more rounds (`server.deletion.rechecking`).

    round: counts every exchange that moves the model (training, unlearning, recovery); it decides the
        learning rate and all seeds, so that a round repeated after a crash is the same round.
    training_rounds: the rounds outside of deletions; `rounds` in the configuration bounds these.
    """

    parameters: Vector
    round: int = 0
    training_rounds: int = 0
    phase: Phase = Phase.TRAINING
    exclusions: Exclusions = field(default_factory=Exclusions)
    deletion: ActiveDeletion | None = None
    is_resting: bool = False
    num_examples: Mapping[str, int] = field(default_factory=dict)
    answered: tuple[str, ...] = ()
    prepared_since: Mapping[str, int] = field(default_factory=dict)
    generations: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[SettingsSince, ...] = ()
    event_sequence: int = 0
    scores: tuple[float, ...] = ()
    suspensions: Mapping[str, Suspension] = field(default_factory=dict)
    aggregation: KeptAggregation | None = None
    watched: Mapping[str, Watched] = field(default_factory=dict)

    def active_deletion(self) -> ActiveDeletion:
        """Return the deletion that is under way; only its steps ask."""
        assert self.deletion is not None, "only a step of a deletion asks"
        return self.deletion

    def generation_of(self, method: str) -> str | None:
        """Return the generation of a method's store that counts; None where the method is not prepared for."""
        return self.generations.get(method, FIRST) if method in self.prepared_since else None

    @property
    def left_out(self) -> Exclusions:
        """What takes part in no round now: the forgotten, and in recovery what will be if the gate lets it pass."""
        if self.phase is Phase.RECOVERING and self.deletion is not None:
            return self.exclusions.including(self.deletion.targets)
        return self.exclusions


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What came of a round: the state after it, exchange and outcome with clients, and the most memory it took."""

    state: FederationState
    exchange: Exchange
    outcome: RoundOutcome
    memory: PeakMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A request's next state in the ledger; fields as in `LedgerWriter.move`."""

    request_id: str
    to: Status
    reason: str = ""
    retryable: bool = False
    detail: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """An event of a request that moves it nowhere; fields as in `LedgerWriter.note`."""

    request_id: str
    kind: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDone:
    """A round for the ledger's record: its result, its kind, and the requests that it served."""

    result: RoundResult
    kind: str
    request_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step decided.

    state: the federation after it; the object of before where only the ledger changes.
    notes, round: written first.
    moves: written after the checkpoint, or before it where `ledger_first`.
    overtakable: a person may have cancelled, refused or held a request meanwhile; its move is then left out.
    release: the hash of a model that was made with the noise of private training; it is counted first.
    cleanup: called last; a crash before it leaves files that the next start or the next deletion erases.
    """

    state: FederationState
    notes: tuple[Note, ...] = ()
    round: RoundDone | None = None
    moves: tuple[Move, ...] = ()
    ledger_first: bool = False
    overtakable: bool = False
    release: str = ""
    cleanup: tuple[Callable[[], object], ...] = ()
