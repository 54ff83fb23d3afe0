"""A Flower strategy of the user's own in the place of FedAvg's mean.

Whom a round asks, what is left out, the limits on answers and the checkpoints stay the federation's. The strategy says
what a round's messages tell clients (`configure_train`), and makes the model of the answers that may enter
(`aggregate_train`). It is asked several times of one round, with and without a client, and a round may be done again
after a crash. So what it remembers is taken out of it after each call, and put back before the next one:

    kept      what differs from a new strategy, attribute by attribute; None for a new one
    configure (kept, model, nodes)    → kept', and what each node is told
    combine   (kept', answers)        → the model, and kept of the next round if this one is committed

A deletion forgets `kept`: moments, momentum and clipping norms were made of the forgotten client's updates too.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import Any, TypeAlias, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy
from flwr.serverapp.strategy.dp_adaptive_clipping import DifferentialPrivacyAdaptiveBase
from flwr.serverapp.strategy.dp_fixed_clipping import DifferentialPrivacyFixedClippingBase

from strategies.messages import ARRAYS, METRICS, NUM_EXAMPLES, ROUND, VECTOR, model_record, records_of
from strategies.strategy_memory import NEVER, Opaque, decoded, encoded, same
from unlearning.errors import AppError, ConfigurationError
from unlearning.methods.method import Method, Reply
from unlearning.parameters import Vector
from unlearning.tasks.own_code import call_own, name_of
from unlearning.tasks.task import Task

_log = getLogger(__name__)

MakeStrategy: TypeAlias = Callable[[Mapping[str, Any]], Strategy]
"""Makes a new strategy, given the app's settings."""
_MOST_LOOKS = 10
"""How often a strategy may look for more clients than a round has, before that is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAggregation:
    """What a strategy keeps from one round to the next.

    strategy: its name. rounds: those committed since it was new, by which it counts its own. state: by attribute.
    """

    strategy: str
    rounds: int = 0
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """What was made of answers: a model (d,) or the problem, and what the strategy keeps if it is committed."""

    model: Vector | None = None
    kept: KeptAggregation | None = None
    problem: str = ""


def check_make_strategy(make_strategy: MakeStrategy | None) -> None:
    """Refuse what cannot make a strategy.

    Raises:
        ConfigurationError: says what to give.
    """
    if make_strategy is not None and (
        isinstance(make_strategy, type | Strategy) or not callable(make_strategy)
    ):
        raise ConfigurationError(
            [
                "strategy: give a function of the app's settings that returns a new strategy, such as `lambda "
                f"settings: FedAdam(eta=0.1)`, for each run and each deletion begins with one; got {make_strategy!r}."
            ]
        )


class OwnAggregation:
    """The strategy that `make_strategy` makes.

    name: its class, with those of the strategies within. is_fedavg: whether rounds are FedAvg's all the same.
    adds_noise: whether it wraps another one in Flower's differential privacy.

    Raises:
        ConfigurationError: it asks for what the federation decides, or does not go with task or methods; lists each.
        AppError: the function raised, or returned no Flower strategy.
    """

    def __init__(
        self, make_strategy: MakeStrategy, settings: Mapping[str, Any], task: Task, prepared: Iterable[Method]
    ) -> None:
        self._strategy = call_own(make_strategy, Strategy, settings)  # type: ignore[type-abstract]
        self._parts = dict(_parts(self._strategy))
        classes = [type(one) for one in self._parts.values()]
        self.name = "(".join(one.__name__ for one in classes) + ")" * (len(classes) - 1)
        self.is_fedavg = (
            classes[0].aggregate_train is flower.FedAvg.aggregate_train
            and classes[0].configure_train is flower.FedAvg.configure_train
            and getattr(self._strategy, "weighted_by_key", "") == NUM_EXAMPLES
        )
        self.adds_noise = any(
            issubclass(one, DifferentialPrivacyFixedClippingBase | DifferentialPrivacyAdaptiveBase)
            for one in classes
        )
        if wrong := self._problems(make_strategy, task, prepared):
            raise ConfigurationError(wrong)
        for one in self._parts.values():
            if isinstance(one, flower.FedAvg):  # whom a round asks is the federation's decision
                one.min_train_nodes = one.min_available_nodes = 0
        self._new = {name: encoded(value) for name, value in self._attributes()}

    def fixed_clipping(self) -> tuple[float, float, int] | None:
        """Return noise multiplier, clip norm and clients a round of Flower's own private FedAvg; None for all else."""
        outer = self._strategy
        if type(outer) is not flower.DifferentialPrivacyServerSideFixedClipping:
            return None
        if type(outer.strategy) is not flower.FedAvg:
            return None
        return float(outer.noise_multiplier), float(outer.clipping_norm), int(outer.num_sampled_clients)

    def configure(
        self, kept: KeptAggregation | None, model: Vector, nodes: Sequence[int]
    ) -> tuple[KeptAggregation, Mapping[int, Mapping[str, Any]]]:
        """Return what is kept once the round of these nodes was begun, and what each is told beside the settings.

        Raises:
            AppError: the strategy raised, sends anything but the model, or tells what is no number or text.
        """
        if kept is not None and kept.strategy != self.name:
            _log.warning("Rounds were aggregated by %s; %s starts again.", kept.strategy, self.name)
            kept = None
        kept = kept or KeptAggregation(strategy=self.name)
        self._restore(kept)
        arrays, config, grid = model_record(model), ConfigRecord(), cast(Grid, _ChosenNodes(nodes))
        begin = self._strategy.configure_train
        asked = list(call_own(begin, Iterable, kept.rounds + 1, arrays, config, grid))  # type: ignore[type-abstract]
        told: dict[int, Mapping[str, Any]] = {}
        for message in asked:
            if any(
                dict(record) != dict(arrays) for record in records_of(message.content, ArrayRecord).values()
            ):
                raise AppError(
                    f"{self.name} sends other arrays than the model, which clients could not train."
                )
            for record in records_of(message.content, ConfigRecord).values():
                told[message.metadata.dst_node_id] = {**record}
        told = {node: _told(self.name, told.get(node, {**config})) for node in nodes}
        return replace(kept, state=self._collect()), told

    def combine(self, kept: KeptAggregation, answers: Sequence[Message], before: Vector) -> Combined:
        """Return what the strategy makes of the answers to the model `before` (d,)."""
        self._restore(kept)
        try:
            made = call_own(self._strategy.aggregate_train, tuple, kept.rounds + 1, answers)[0]
        except AppError as exc:
            return Combined(problem=str(exc).rstrip("."))
        if made is None:
            return Combined(problem=f"{self.name} made no model of {len(answers)} answer(s)")
        found = {name: tuple(array.shape) for name, array in made.items()}
        if found != {VECTOR: before.shape}:
            return Combined(
                problem=f"{self.name} made {found} and no model, which is {VECTOR!r} {before.shape}"
            )
        state = self._collect()
        return Combined(
            model=made[VECTOR].numpy().astype(before.dtype),
            kept=replace(kept, rounds=kept.rounds + 1, state=state),
        )

    def _problems(self, make_strategy: MakeStrategy, task: Task, prepared: Iterable[Method]) -> list[str]:
        wrong = []
        for part in self._parts.values():
            kind = type(part).__name__
            fraction, mu = (getattr(part, name, None) for name in ("fraction_train", "proximal_mu"))
            if any(base.__module__.startswith("strategies.") for base in type(part).__mro__):
                wrong.append(
                    f"strategy: {name_of(make_strategy)} gives {kind} of `strategies`, which is for Flower's start(). "
                    "Give one of flwr.serverapp.strategy, or your own; without one, rounds are FedAvg's."
                )
            if fraction not in (None, 1.0):
                wrong.append(
                    f"strategy: {kind} has fraction_train={fraction:g}, and the federation decides whom a round asks. "
                    f"Leave it out and set fraction={fraction:g} in the run's configuration."
                )
            if getattr(part, "accountant", None) is not None:
                wrong.append(
                    f"strategy: {kind} has an accountant, which would not count rounds that are rejected or done again "
                    "after a crash. Leave it out, and count the rounds that the ledger has."
                )
            if task.train is not None and mu:
                wrong.append(
                    f"strategy: {kind} has proximal_mu={mu:g}, and {task.name} trains by its own "
                    f"{name_of(task.train)}, without a proximal term. Choose FedAvg, or the built-in training."
                )
        if not self.is_fedavg:
            wrong += [
                f"prepare: {one.info.name}: {one.info.assumes_fedavg}, and {self.name} is another. Leave it out."
                for one in prepared
                if one.info.assumes_fedavg
            ]
        return wrong

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        for part, strategy in self._parts.items():
            for name, value in vars(strategy).items():
                if not isinstance(value, Strategy):
                    yield f"{part}{name}", value

    def _collect(self) -> dict[str, Any]:
        """Return what differs from a new strategy.

        Raises:
            AppError: it is nothing that a checkpoint can hold.
        """
        found = {name: encoded(value) for name, value in self._attributes()}
        changed = {name: one for name, one in found.items() if not same(one, self._new.get(name, NEVER))}
        for name, one in changed.items():
            if isinstance(one, Opaque):
                raise AppError(
                    f"{self.name} keeps {name}, a {one.kind}, from round to round, and no checkpoint can hold it. Keep "
                    "numbers, texts, numpy arrays and ArrayRecords, and lists, tuples and dictionaries of them."
                )
        return changed

    def _restore(self, kept: KeptAggregation) -> None:
        """Make the strategy what it was when `kept` was collected."""
        wanted = {**self._new, **kept.state}
        for name, _ in list(self._attributes()):
            if name not in wanted:
                delattr(*self._place(name))
        for name, one in wanted.items():
            if not isinstance(one, Opaque):
                setattr(*self._place(name), decoded(one))

    def _place(self, name: str) -> tuple[Strategy, str]:
        part, dot, attribute = name.rpartition(".")
        return self._parts[part + dot], attribute


def shown_reply(message: Message, reply: Reply, num_examples: int, model: Vector) -> Message:
    """Return an answer as Flower's strategies expect it: one array, and one record of measures with its weight."""
    shown = copy(message)
    measures = MetricRecord({**reply.metrics, NUM_EXAMPLES: num_examples})
    shown.content = RecordDict({ARRAYS: model_record(model), METRICS: measures})
    return shown


class _ChosenNodes:
    """What a strategy sees of Flower's grid: the nodes of the round."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes, self._looks = list(nodes), 0

    def get_node_ids(self) -> list[int]:
        """Return them all; a strategy that looks again and again waits for more."""
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            raise RuntimeError(f"it waits for more clients than the {len(self._nodes)} of the round")
        return list(self._nodes)


def _parts(strategy: Strategy, prefix: str = "") -> Iterator[tuple[str, Strategy]]:
    """Yield a strategy and those that it wraps, by the way to their attributes."""
    yield prefix, strategy
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            yield from _parts(value, f"{prefix}{name}.")


def _told(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    beside = {key: value for key, value in config.items() if key not in (ROUND, "json")}
    try:
        json.dumps(beside)
    except TypeError as exc:
        raise AppError(f"{name} tells clients bytes, in {sorted(beside)}; give numbers and texts.") from exc
    return beside
