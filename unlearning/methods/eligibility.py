"""Whether a federation, as it is, can serve a request by a method: asked on admission and again before it begins."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unlearning.buffers import buffer_positions
from unlearning.errors import InvalidRequest, MethodFailed, UnsupportedRequest
from unlearning.methods.classifier_head import head_slots, size_of
from unlearning.methods.method import ANSWERS, Method, MethodInfo, Need
from unlearning.methods.preparation import Preparation
from unlearning.own_training import takes_after_step
from unlearning.parameters import size_of_vector
from unlearning.requests import Granularity, Target
from unlearning.tasks.own_code import name_of
from unlearning.tasks.task import Task
from unlearning.training import structure
from unlearning.verification.difference.holders import Deletion, Holder, Layer, reveals


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationProfile:
    """What must be known of a federation to say which requests it can serve, and at what price.

    prepare: the setting of that name; prepared_since: by method, the training rounds there had been when its
        preparation was switched on, for those that are still prepared.
    num_head_parameters: of the linear head; 0 where the model has none.
    flops_per_example: of one training step, by PyTorch's formulas; 0 where it was not counted.
    own_training: the name of the task's own training function; empty for the built-in loop. watches_steps: whether
        something can be called after each step of training.
    input_dimensions: of one example, 3 of a picture with channels, 1 of a row of numbers; 0 where it is not known.
    couples_examples: whether the loss of a batch is not the mean of its examples' own; false where the server has no
        examples to see it by.
    name: of the federation, for people.
    has_statistics: whether the model has running statistics (batch normalisation).
    has_local_layers: whether each site keeps layers of its own.
    aggregation: the name of the strategy where rounds are not FedAvg's. adds_noise: whether it adds noise to them.
    secure_aggregation: whether only sums over clients are seen. min_cohort: the fewest clients of a sum; 0 without.
    wire_dtype: the 16 bits in which models of training rounds travel; empty where they travel as they are.
    private_training: whether training has the noise of differential privacy: for clients (`client`), for single
        samples at each site (`samples`), or none (empty).
    keeps_optimizer: whether sites keep what an optimizer gathers from round to round.
    """

    task: str
    score_name: str
    num_classes: int
    num_parameters: int
    bytes_per_parameter: int
    num_head_parameters: int = 0
    local_epochs: int = 1
    recovery_max_rounds: int = 0
    flops_per_example: float = 0.0
    prepare: str = ""
    prepared_since: Mapping[str, int] = field(default_factory=dict)
    own_training: str = ""
    watches_steps: bool = True
    input_dimensions: int = 0
    couples_examples: bool = False
    has_statistics: bool = False
    has_local_layers: bool = False
    name: str = ""
    aggregation: str = ""
    adds_noise: bool = False
    secure_aggregation: bool = False
    min_cohort: int = 0
    wire_dtype: str = ""
    private_training: str = ""
    keeps_optimizer: bool = False

    @property
    def has_classifier_head(self) -> bool:
        """Whether the model's last layer is linear, with one output a class."""
        return self.num_head_parameters > 0

    @classmethod
    def of(cls, task: Task, **known: Any) -> "FederationProfile":
        """Return the part that the task decides, and whatever else is known."""
        return cls(
            task=task.name,
            score_name=task.score_name,
            num_classes=task.num_classes,
            num_parameters=size_of_vector(structure(task)),
            bytes_per_parameter=task.dtype.itemsize,
            num_head_parameters=_head_size(task),
            has_statistics=buffer_positions(task).size > 0,
            own_training=name_of(task.train) if task.train is not None else "",
            watches_steps=task.train is None or takes_after_step(task.train),
            has_local_layers=bool(task.local_layers),
            **known,
        )


def what_is_revealed(info: MethodInfo, federation: FederationProfile, **measured: Any) -> tuple[Holder, ...]:
    """Return what a deletion by a method tells those who saw a part of it.

    measured: of `Deletion`, what attacks on the change have found.
    """
    given = Deletion(
        sends=info.target_sends,
        layer=Layer.of(federation.num_head_parameters, federation.num_parameters),
        sums_suffice=info.sums_suffice,
        secure=federation.secure_aggregation,
        **measured,
    )
    return reveals(given)


def check_eligible(
    method: Method, target: Target, federation: FederationProfile, prepared: Mapping[str, Preparation]
) -> None:
    """Refuse a request that the federation cannot serve by this method.

    prepared: what `federation.prepare` switches on.

    Raises:
        InvalidRequest: there is no such class.
        UnsupportedRequest: the task or the model is not of the method's kind, or the method needs work in
            training rounds that this federation has not done; the message says what to configure.
    """
    info = method.info
    if target.granularity is Granularity.CLASS:
        assert target.class_label is not None
        if federation.score_name != "accuracy":
            raise UnsupportedRequest(
                f"A class cannot be forgotten here: {federation.task} is measured by {federation.score_name}, its "
                "examples belong to no one class. Name a client or samples.",
                code="no-classes",
            )
        if target.class_label >= federation.num_classes:
            raise InvalidRequest(
                f"There is no class {target.class_label}: {federation.task} has the classes 0 to "
                f"{federation.num_classes - 1}."
            )
    alone = [name for name, other in prepared.items() if other.stands_alone and name != info.name]
    if alone:
        raise UnsupportedRequest(
            f"This federation trains its model in a way that only {alone[0]} can undo (prepare = "
            f'"{federation.prepare}"). Choose {alone[0]}.',
            code="other-preparation",
        )
    if Need.CLASSIFIER in info.needs and federation.score_name != "accuracy":
        raise UnsupportedRequest(
            f"{info.title} works with class labels, and {federation.task} is no classification. Choose another method.",
            code="no-classification",
        )
    if Need.CLASSIFIER_HEAD in info.needs and not federation.has_classifier_head:
        raise UnsupportedRequest(
            f"{info.title} needs a classifier whose last layer is linear with one output a class, is trained, and "
            f"shares no weights with another layer; the model of {federation.task} has none. Choose another method.",
            code="no-classifier-head",
        )
    if reason := unfit_training(info, federation.own_training, watches_steps=federation.watches_steps):
        raise UnsupportedRequest(f"{reason} Choose another method.", code="own-training")
    if federation.has_local_layers and (reason := unfit_local_layers(info)):
        raise UnsupportedRequest(f"{reason} Choose another method.", code="local-layers")
    _check_aggregation(info, federation)
    if federation.secure_aggregation and not info.sums_suffice:
        raise UnsupportedRequest(
            f"{info.title} needs single clients' answers, and this federation sees sums only (secure-aggregation). "
            "Choose puf-regular, newton-cg, not, retrain or natural, for which sums suffice.",
            code="needs-single-answers",
        )
    if federation.wire_dtype and info.states_bound:
        raise UnsupportedRequest(
            f"{info.title} states a bound for exact rounds, and models travel in {federation.wire_dtype} here "
            "(wire-dtype). Choose another method, such as retrain.",
            code="rounded-rounds",
        )
    needed = "samples" if target.granularity is Granularity.SAMPLE else "client"
    if info.rests_on_training and federation.private_training != needed:
        raise UnsupportedRequest(
            f'{info.title} needs rounds with differential privacy from the first one on (privacy = "{needed}"), and '
            "this federation trains without. Choose another method.",
            code="not-private",
        )
    if Need.MEAN_LOSS in info.needs and federation.couples_examples:
        raise UnsupportedRequest(
            f"{info.title} needs a loss that is the mean of the examples' own losses, and that of {federation.task} "
            "couples the examples of a batch. Choose another method.",
            code="coupled-loss",
        )
    if Need.NO_STATISTICS in info.needs and federation.has_statistics:
        raise UnsupportedRequest(
            f"{info.title} has no guarantee for running statistics (batch normalisation), and the model of "
            f"{federation.task} has some. Use group or layer normalisation (persistent=False for a "
            "constant buffer), or choose retrain.",
            code="has-statistics",
        )
    if Need.FRESH_OPTIMIZER in info.needs and federation.keeps_optimizer:
        raise UnsupportedRequest(
            f"{info.title} has no guarantee for optimizers that sites keep from round to round (keep-optimizer), for "
            "they carry what is forgotten. Switch it off, or choose retrain.",
            code="keeps-optimizer",
        )
    if info.preparation is not None:
        _check_prepared(method, target, federation, prepared)


def _check_aggregation(info: MethodInfo, federation: FederationProfile) -> None:
    """Refuse a method that does not go with a strategy of the user's own.

    Raises:
        UnsupportedRequest: it assumes FedAvg, or would go past the strategy's noise.
    """
    own = f"rounds are aggregated by {federation.aggregation} here"
    if not federation.aggregation:
        own = "each site trains with noise here"
    elif info.assumes_fedavg:
        others = "not or natural" if federation.adds_noise else "puf-special, not or retrain"
        if federation.private_training:
            others = "dp-covered or retrain"
        raise UnsupportedRequest(
            f"{info.title} works with FedAvg only: {info.assumes_fedavg}, and {own}. Choose {others}.",
            code="own-aggregation",
        )
    if federation.private_training and info.trains_as_rounds:
        return
    if federation.adds_noise and info.needs & ANSWERS:
        others = "dp-covered, retrain or natural" if federation.private_training else "not or natural"
        raise UnsupportedRequest(
            f"{info.title} puts what clients answer into the model without the noise of differential privacy, and "
            f"{own}. Choose {others}; recovery rounds have the noise.",
            code="without-noise",
        )


def may_go_together(info: MethodInfo, first: Target, other: Target) -> bool:
    """Return whether a method can forget both in one deletion: if it does one client at a time, both concern it."""
    return info.several_at_once or first.client_id == other.client_id is not None


def unfit_training(info: MethodInfo, own_training: str, *, watches_steps: bool) -> str:
    """Return why a method does not go with the task's own training, in a sentence; empty where it does.

    own_training: the function's name; empty for the built-in loop. watches_steps: as in `FederationProfile`.
    """
    if not own_training:
        return ""
    trained = f"and this task trains by its own function {own_training}"
    if Need.LOSS_DERIVATIVES in info.needs:
        return f"{info.title} works with derivatives of a loss, {trained}."
    if Need.STEPS in info.needs and not watches_steps:
        return (
            f"{info.title} climbs the loss and looks after each step, {trained}, which takes no after_step."
        )
    return ""


def unfit_preparations(task: Task, methods: Iterable[Method]) -> list[str]:
    """Return which of the methods that are prepared for do not go with the task, a sentence each."""
    infos = [method.info for method in methods]
    found = [(info, unfit_local_layers(info)) for info in infos if task.local_layers]
    if task.train is not None:
        name, watches = name_of(task.train), takes_after_step(task.train)
        found += [(info, unfit_training(info, name, watches_steps=watches)) for info in infos]
    return [f"prepare: {info.name}: {reason} Leave it out." for info, reason in found if reason]


def unfit_local_layers(info: MethodInfo) -> str:
    """Return why a method does not go with layers that stay at their sites, in a sentence; empty where it does."""
    replaces = info.preparation is not None and info.preparation.replaces_training
    if not (replaces or info.is_exact or info.draws_noise or Need.MEAN_LOSS in info.needs):
        return ""
    return f"{info.title} holds for a model that is averaged whole, and each site keeps the local_layers of this task."


def _check_prepared(
    method: Method, target: Target, federation: FederationProfile, prepared: Mapping[str, Preparation]
) -> None:
    info = method.info
    assert info.preparation is not None
    since = federation.prepared_since.get(info.name)
    if info.name not in prepared or since is None:
        lost = "no longer prepared for" if info.name in prepared else "not prepared for"
        when = "before the first round" if info.preparation.from_the_start else "before training"
        raise UnsupportedRequest(
            f'{info.title} is {lost} in this federation. It needs the setting prepare = "{info.name}" from '
            f"{when}, because it works with what is kept then: {info.preparation.keeps}. Choose another method.",
            code="not-prepared",
        )
    if since and info.preparation.from_the_start:
        raise UnsupportedRequest(
            f"{info.title} needs what is kept from the first round on; it was switched on after {since} training "
            "round(s). Choose another method.",
            code="prepared-too-late",
        )
    reason = prepared[info.name].refusal(target)
    if reason:
        raise UnsupportedRequest(
            f"{info.title} cannot forget {target.describe()}: {reason}", code="not-prepared-for-target"
        )


def _head_size(task: Task) -> int:
    """Return the parameters of the linear head; 0 where there is none."""
    try:
        return size_of(head_slots(task))
    except MethodFailed:
        return 0
