"""The seam of unlearning methods: what a method states about itself, and its two halves.

A method is a small state machine that the server drives and any transport can carry:

    state = method.begin(problem, parameters)
    while not state.finished:
        instructions = method.configure(problem, state)            # server half: whom to ask what
        replies = {client: method.client_step(instruction, site)}  # client half, at each client
        state = method.aggregate(problem, state, replies)          # server half: the next state

State goes in and new state comes out, nothing else is kept, so a checkpoint after any exchange is
enough to go on after a crash. `state.parameters` of the finished state is the unlearned model;
recovery (ordinary rounds without the forgotten data) follows and is not the method's business.

A new method is one file here with a subclass of `Method` that has these attributes and functions (`begin` where the
model as it is will not do), and one line in `unlearning.methods.registry.METHODS`. What many methods do with replies
and updates is in `unlearning.methods.updates`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Generic, TypeAlias

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypeVar

from unlearning.buffers import buffer_positions
from unlearning.certified.sensitivity import Sensitivity
from unlearning.errors import MethodFailed
from unlearning.methods.classifier_head import head_slots
from unlearning.methods.costs import Cost, CostSymbols, WorkDone
from unlearning.methods.preparation import Preparation, PreparationT, no_truth_for_numbers
from unlearning.parameters import Vector
from unlearning.requests import NOTHING, Forget, Granularity
from unlearning.runtime.stores import MemoryStore, Store
from unlearning.secure_aggregation.addends import SecureTotal, SumTerm
from unlearning.tasks.task import Examples, Task, join
from unlearning.training import TrainingSettings, initial_parameters
from unlearning.verification.difference.holders import TargetSends


class Need(StrEnum):
    """What a method cannot do without."""

    REQUESTER_ONLINE = "the requesting client online for the unlearning rounds"
    RETAINED_ONLINE = "the retained clients online for the unlearning rounds"
    EVERY_CLIENT_ONLINE = "every client online for the unlearning rounds"
    HISTORY = "client updates stored on the server during training"
    PREPARATION = "work in every training round before any request"
    CLASSIFIER = "a classification task"
    CLASSIFIER_HEAD = "a model with a linear classifier head"
    LOSS_DERIVATIVES = "derivatives of a loss, the task's or its own, so the built-in training"
    MEAN_LOSS = "a loss that is the mean of the examples' own losses"
    NO_STATISTICS = "a model without running statistics (batch normalisation)"
    FRESH_OPTIMIZER = "an optimizer that starts again in each round (no keep-optimizer)"
    STEPS = (
        "training that can climb and be watched step by step: the built-in one, or one that takes after_step"
    )


ANSWERS = frozenset({Need.REQUESTER_ONLINE, Need.RETAINED_ONLINE, Need.EVERY_CLIENT_ONLINE})
"""A method with one of these makes its model of what clients answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodInfo:
    """What a method states about itself; requests that it cannot serve are refused by this.

    granularities: what it can forget. several_at_once: whether targets may be several.
    remark: a limit that users must know, for `methods` and the report.
    cost_remark: why what is measured differs from the closed formula of `Method.cost`, for the report.
    replies_are_updates: whether the clients' vectors are changes of the whole model, whose length is
        checked and which the federation's bound on their norm applies to. Products and gradients are not
        changes; a method whose vectors have another length checks that itself (`replies_have_any_length`).
    replies_are_models: whether they are models trained from their instruction's, of its length; then the change
        from it is checked in the same way.
    is_iterative: whether it has many short exchanges, for which a session with each client pays.
    asks_everyone: whether `Problem.retained` is every retained client online, not a sample as in a round.
    draws_noise: whether its model may leave with noise, which takes a secret key and is counted against a budget.
    moves_model: whether it moves the model itself, before recovery.
    is_exact: whether its model is one that was trained without the forgotten data, up to rounding.
    preparation: what it does in training rounds before any request; None if it needs no preparation.
    rests_on_training: whether the model stays as it is, covered by training with differential privacy; nothing is
        repaired then.
    trains_as_rounds: whether its exchanges are training rounds: clients are drawn as for these, targets that keep a
        part too, and they can have the noise of such training.
    sums_suffice: whether it can be carried out of sums over clients alone (`sum_terms`, `after_sum`).
    target_sends: what clients that forget send for it, with its defaults; plan and report say what that reveals.
    assumes_fedavg: why it holds only where every round is FedAvg's, as the beginning of a sentence; empty where it
        holds whatever strategy aggregates.
    """

    name: str
    title: str
    source: str
    granularities: frozenset[Granularity] = frozenset(Granularity)
    several_at_once: bool = True
    needs: frozenset[Need] = frozenset()
    remark: str = ""
    cost_remark: str = ""
    replies_are_updates: bool = True
    replies_have_any_length: bool = False
    replies_are_models: bool = False
    is_iterative: bool = False
    asks_everyone: bool = False
    draws_noise: bool = False
    moves_model: bool = True
    is_exact: bool = False
    preparation: type[Preparation] | None = None
    rests_on_training: bool = False
    trains_as_rounds: bool = False
    sums_suffice: bool = False
    target_sends: TargetSends = TargetSends.UNSTATED
    assumes_fedavg: str = ""

    @property
    def works_with_the_data(self) -> bool:
        """Whether it works with what is to be forgotten, at the clients that a request is about."""
        return not self.needs.isdisjoint({Need.REQUESTER_ONLINE, Need.EVERY_CLIENT_ONLINE})

    @property
    def sums_data(self) -> bool:
        """Whether its sums are of data and so the same in each round, not of updates."""
        return self.target_sends is TargetSends.SUMS

    @property
    def states_bound(self) -> bool:
        """Whether it states a bound on what is left, which holds for rounds without rounding on their way."""
        return self.draws_noise or self.sums_data or self.rests_on_training


class MethodParameters(BaseModel):
    """The parameters of a method that has none; others subclass it. Unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    _numbers = no_truth_for_numbers


ParametersT = TypeVar("ParametersT", bound=MethodParameters, default=Any)
"""The parameters of a method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStore(Generic[PreparationT]):
    """What the server kept for a method that was prepared for.

    preparation: with its options.
    store: what its preparation kept of the training rounds, by client id.
    next_store: what takes the place of `store` when this unlearning is committed, if anything is written to
        it; empty before the first exchange. For methods whose unlearning rewrites history.
    """

    preparation: PreparationT
    store: Store
    next_store: Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(Generic[ParametersT, PreparationT]):
    """What is given for the whole of one unlearning.

    task: what is learnt; the server half may look at its model's layers, and has no data.
    seed, rounds_trained: of the run, and how many training rounds it has had.
    targets: what each concerned client must forget.
    num_examples: how many examples each client trained on when it last did, as far as is known; the targets count,
        clients that were forgotten earlier do not.
    retained: the retained clients that take part (chosen as for an ordinary round, unless the method
        asks everyone), sorted. A client that forgets only some of its examples is a target and not in here.
    schedule: how clients train in the training round of a number (from 1), augmentation included; of a round that
        was, how they did, with the run's seed of then.
    training: how clients train in this round (learning rate of the round, no augmentation); its
        seed is replaced by one that the client and the round determine.
    parameters: the method's own parameters, an instance of its `Parameters`.
    round: the number of this exchange among all exchanges that move the model.
    kept: what the server kept for the method in training rounds; None where it was not prepared for.
    noise_key: what a method derives its noise from, a secret that belongs to this request alone; None where there is
        none, and then noise is drawn from the system's entropy.
    noisy_mean: where training is private, what makes a round's model (d,) of the one before and clients' updates.
    only_sums: whether the server sees sums over clients only (`Method.after_sum`).
    """

    task: Task
    targets: Mapping[str, Forget]
    retained: tuple[str, ...]
    seed: int = 0
    rounds_trained: int = 0
    num_examples: Mapping[str, int] = field(default_factory=dict)
    schedule: Callable[[int], TrainingSettings]
    training: TrainingSettings
    parameters: ParametersT
    round: int = 0
    kept: PreparedStore[PreparationT] | None = None
    noise_key: bytes | None = field(default=None, repr=False)
    noisy_mean: Callable[[Vector, Iterable[Vector]], Vector] | None = None
    only_sums: bool = False

    @property
    def partial(self) -> tuple[str, ...]:
        """Return the targets that keep some of their examples, sorted: these train on as the retained do."""
        return tuple(sorted(client for client, forget in self.targets.items() if not forget.everything))

    @property
    def staying(self) -> tuple[str, ...]:
        """Return the clients that have trained and keep some of their examples, sorted, wherever they are now."""
        return tuple(
            sorted(client for client in self.num_examples if not self.targets.get(client, NOTHING).everything)
        )

    def first_model(self) -> Vector:
        """Return the model (d,) that the run began with: the same for all, and of no client's data."""
        return initial_parameters(self.task, self.schedule(1).seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """What the server asks of one client in one exchange.

    operation: a word that the method's client half understands.
    model: the vector to start from (d,).
    forget: what this client must forget by this unlearning (nothing for a retained client).
    arrays, values: whatever else the method sends, as arrays and as JSON.
    """

    operation: str
    model: Vector
    training: TrainingSettings
    forget: Forget = NOTHING
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a client answers: a model or update (d,), its number of examples, and measures.

    arrays, values: whatever else the method returns, as arrays and as JSON.
    buffers: what an update says of the model's floating-point buffers; `vector` is zero for them then. The server half
        alone sees it, and `with_kept_buffers` (`unlearning.methods.updates`) is what to do with it.
    """

    vector: Vector
    num_examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    buffers: Vector | None = None


Instructions: TypeAlias = Mapping[str, Instruction]
"""What each client is asked, by its id."""
Replies: TypeAlias = Mapping[str, Reply]
"""What clients answered, by their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSite:
    """What the client half of a method may touch.

    forget: the examples that the instruction says to forget.
    retain: the others, without anything that was forgotten earlier.
    store: what this client keeps for the method from the training rounds.
    memo: where the client half may leave what saves it work in the next exchange. It may be empty each time,
        as it is where every exchange is a process of its own, so results must not depend on it.
    """

    task: Task
    forget: Examples
    retain: Examples
    store: Store = field(default_factory=MemoryStore)
    memo: MutableMapping[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> Examples:
        """Join both: what the client trained on until now."""
        return join(self.forget, self.retain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The noise on an unlearned model, as it is counted against a budget.

    sigma: 0 where there is none. sensitivity, delta: as they were declared; None where they were not.
    bound: what the method itself has proven that the noise hides, whatever was released before; None where that
        follows from records of the rounds (`Method.sensitivity_bound`).
    holds_alone: whether `bound` holds for one release of a deletion only, so not after an attempt that failed.
    not_of: what it does not speak of, beside models from before the deletion.
    """

    sigma: float = 0.0
    sensitivity: float | None = None
    delta: float | None = None
    bound: Sensitivity | None = None
    holds_alone: bool = False
    not_of: str = "the vectors, which clients that train are sent without noise"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlearningState:
    """All that a method knows between two exchanges; the checkpoint holds exactly this.

    parameters: the model (d,); the unlearned one when `finished`.
    exchanges: how many exchanges were aggregated.
    arrays, values: the method's own memory (iterates, shard numbers), as arrays and as JSON.
    findings: what the report shall say of the method's work, by name: figures and plain sentences. Nothing reads them.
    work: what the cost formula needs to know of it.
    noise: of a method that draws noise, what there is on the model of the finished state; None of any other.
    """

    parameters: Vector
    exchanges: int = 0
    finished: bool = False
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    findings: Mapping[str, Any] = field(default_factory=dict)
    work: WorkDone = field(default_factory=WorkDone)
    noise: Noise | None = None

    @property
    def has_noise(self) -> bool:
        """Whether there is noise: then nothing that follows may depend on the model before, or it hides nothing."""
        return self.noise is not None and self.noise.sigma > 0

    def advance(self, parameters: Vector, *, finished: bool) -> "UnlearningState":
        """Return the state after one more exchange."""
        return replace(self, parameters=parameters, exchanges=self.exchanges + 1, finished=finished)


SensitivityBound: TypeAlias = Callable[..., tuple[Sensitivity | None, tuple[str, ...]]]
"""What tells how far a model unlearned now may be from the retrained one (`hf_online_bound.KeptBound`)."""


class Method(ABC, Generic[ParametersT, PreparationT]):
    """An unlearning method, with its parameters and its preparation. It holds no state of its own."""

    info: MethodInfo
    Parameters: type[ParametersT]

    def begin(self, problem: Problem[ParametersT, PreparationT], parameters: Vector) -> UnlearningState:
        """Return the state before the first exchange: the model as it is, unless a method says otherwise.

        Raises:
            MethodFailed: the method needs a classification or a classifier's head, and there is none; or it cannot
                work with running statistics or kept optimizers, and there are some.
        """
        if Need.CLASSIFIER in self.info.needs and problem.task.score_name != "accuracy":
            raise MethodFailed(
                f"{self.info.title} works with class labels, and this task is no classification. Choose another "
                "method.",
                retryable=False,
                code="no-classification",
            )
        if Need.CLASSIFIER_HEAD in self.info.needs:
            head_slots(problem.task)
        if Need.NO_STATISTICS in self.info.needs and buffer_positions(problem.task).size:
            raise MethodFailed(
                f"The model has running statistics (batch normalisation), and {self.info.title} has no guarantee for "
                "them. Use group or layer normalisation (persistent=False for a constant buffer), or choose retrain.",
                retryable=False,
                code="has-statistics",
            )
        if Need.FRESH_OPTIMIZER in self.info.needs and problem.training.keep_optimizer:
            raise MethodFailed(
                f"Clients keep the state of their optimizer across rounds (keep-optimizer), and {self.info.title} has "
                "no guarantee for what it carries of the forgotten. Switch it off, or choose retrain.",
                retryable=False,
                code="keeps-optimizer",
            )
        return UnlearningState(parameters=parameters)

    @abstractmethod
    def configure(self, problem: Problem[ParametersT, PreparationT], state: UnlearningState) -> Instructions:
        """Say whom to ask what in the next exchange, by client id."""

    @abstractmethod
    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Return one client's answer to its instruction; runs at the client."""

    @abstractmethod
    def aggregate(
        self, problem: Problem[ParametersT, PreparationT], state: UnlearningState, replies: Replies
    ) -> UnlearningState:
        """Return the state after an exchange. `replies` lacks the clients that did not answer.

        Raises:
            MethodFailed: the replies do not suffice, or a number makes no sense.
        """

    def asks_targets_by(self, parameters: ParametersT) -> str:
        """Return the parameter by which an exchange asks only clients that forget; empty where none does.

        The sum over one client is its own answer, so this is refused where only sums may be seen.
        """
        return ""

    def uses_forgotten(self, instruction: Instruction) -> bool:
        """Return whether a client's step works with the examples that the instruction says to forget."""
        return self.info.works_with_the_data

    def sum_size(self, task: Task, model: Vector) -> int:
        """Return how many numbers a client adds to a sum, in an exchange that starts from `model` (d,)."""
        return model.size

    def sum_terms(self, instruction: Instruction, reply: Reply) -> list[SumTerm]:
        """Return what a client's answer adds to a sum, at the client: its update, by its number of examples."""
        return [SumTerm(update=reply.vector, count=reply.num_examples)]

    def after_sum(
        self, problem: Problem[ParametersT, PreparationT], state: UnlearningState, total: SecureTotal
    ) -> UnlearningState:
        """Return the state after an exchange of which only the sum is known; of methods for which sums suffice.

        Raises:
            MethodFailed: it lacks a client that the method needs, or an example.
        """
        raise NotImplementedError(f"{self.info.title} needs single answers.")

    def cost(
        self, given: CostSymbols, parameters: ParametersT, preparation: PreparationT | None
    ) -> Cost | None:
        """Compute what the unlearning phase costs, by a closed formula; None where there is none.

        preparation: that is switched on; None where there is none.
        """
        return None

    def repair_rounds(self, parameters: ParametersT) -> int:
        """Return how many recovery rounds it takes at least."""
        return 0

    def sensitivity_bound(
        self, preparation: PreparationT, store: Store, initial: Callable[[], Vector]
    ) -> SensitivityBound:
        """Return what bounds the sensitivity of this method's releases, from what its preparation has kept in `store`.

        Asked only of methods that draw noise. initial: computes the model that training began with.
        """
        raise NotImplementedError(f"{self.info.title} draws no noise.")

    def kept(self, problem: Problem[ParametersT, PreparationT]) -> PreparedStore[PreparationT]:
        """Return what the server kept for this method.

        Raises:
            MethodFailed: the federation was not prepared for it, or is not any more.
        """
        if problem.kept is None:
            from_the_start = self.info.preparation is not None and self.info.preparation.from_the_start
            raise MethodFailed(
                f"{self.info.title} works with what is kept in training, and nothing is: an earlier deletion has "
                f'erased it, or it never was, which needs prepare = "{self.info.name}" before '
                f"{'the first round' if from_the_start else 'training'}. Choose another method.",
                retryable=False,
                code="not-prepared",
            )
        return problem.kept


class AsksNobody(Method[ParametersT, PreparationT]):
    """The three functions of a method that is finished once it has begun."""

    def configure(self, problem: Problem[ParametersT, PreparationT], state: UnlearningState) -> Instructions:
        """Ask no client."""
        return {}

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Refuse: no client is ever asked.

        Raises:
            MethodFailed: always.
        """
        raise MethodFailed("This method asks nothing of clients.", retryable=False, code="asks-nothing")

    def aggregate(
        self, problem: Problem[ParametersT, PreparationT], state: UnlearningState, replies: Replies
    ) -> UnlearningState:
        """Return `state`: there is nothing to add."""
        return state
