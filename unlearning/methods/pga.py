"""PGA: projected gradient ascent at the client that leaves.

Source: Halimi, Kadhe, Rawat, Baracaldo, "Federated Unlearning: How to Efficiently Erase a Client in FL?",
Algorithm 1, and the authors' code for its constants.

    θ       the global model              θ_u   the target's last local model, which the target keeps
    N       clients that ever trained     θ_ref = (N θ − θ_u)/(N − 1), the average of the other clients' models
    δ       squared radius of the ball around θ_ref: mean over 10 random initial models of ‖θ_ref − init‖²/3

The target climbs its loss from θ_ref by SGD with momentum and clipped gradients. After each step a model
outside of the ball is projected onto it, and training ends as soon as ‖θ − θ_u‖² exceeds `max_distance`.
Recovery follows. The published θ_ref takes all clients to be of one size; `weighted` weighs by examples. It also takes
all of them to train in every round, and so does N here: every client that has trained and is not forgotten, the target
included, not those that a round's sample draws. With `fraction` below 1 no N makes θ_ref the average of the others'
models: θ is the average of the few of its last round, in which the target may not have been.

Distances are of parameters, and buffers stay as they were: the others' cannot be had by subtraction.

The target's last local model must be there: this is what the preparation keeps, at the client alone.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from unlearning.buffers import Change, buffer_positions
from unlearning.errors import DataError
from unlearning.methods.costs import Cost, CostSymbols
from unlearning.methods.method import (
    ClientSite,
    Instruction,
    Instructions,
    Method,
    MethodInfo,
    MethodParameters,
    Need,
    Problem,
    Replies,
    Reply,
    UnlearningState,
)
from unlearning.methods.preparation import LocalRound, Preparation
from unlearning.methods.safe_range import Safe
from unlearning.methods.updates import ask_targets, moved, none_keeps, replies_of_targets
from unlearning.parameters import Vector, add_weighted, in_chunks, layout, parts, travelling
from unlearning.requests import Granularity
from unlearning.runtime.stores import keep_newest, newest
from unlearning.tasks.task import Task
from unlearning.training import Trained, train, untrained_parameters
from unlearning.verification.difference.holders import TargetSends

LAST_MODEL = "last-model"
RANDOM_MODELS = 10


class PgaParameters(MethodParameters):
    """Parameters of PGA; the defaults are those of the authors' code."""

    epochs: Annotated[int, Safe(high=50)] = Field(default=5, ge=1, le=1000, description="at most")
    learning_rate: Annotated[float, Safe(high=0.1)] = Field(
        default=0.01, gt=0, le=100, description="of the steps uphill"
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="of the steps uphill")
    # Both bounds are beyond what any model of this project has; larger ones would say "no bound" in other words.
    clip_norm: Annotated[float, Safe(high=10)] = Field(
        default=5.0, gt=0, le=1e6, description="bound of the gradient's norm"
    )
    max_distance: Annotated[float, Safe(high=100)] = Field(
        default=2.2, gt=0, le=1e9, description="‖θ − θ_u‖² at which it ends; depends on d"
    )
    weighted: bool = Field(default=False, description="θ_ref by numbers of examples")


class KeepLastModel(Preparation):
    """The client keeps its last local model."""

    keeps = "each client its last two local models"

    def train(self, work: LocalRound, ordinary: Callable[[], Trained]) -> Trained:
        """Train as ever and keep what came out."""
        trained = ordinary()
        keep_newest(work.store, LAST_MODEL, work.number, {"parameters": trained.parameters})
        return trained


class Pga(Method[PgaParameters]):
    """Projected gradient ascent."""

    Parameters = PgaParameters
    info = MethodInfo(
        name="pga",
        title="PGA",
        source="Halimi et al., Federated Unlearning: How to Efficiently Erase a Client in FL?, Algorithm 1",
        target_sends=TargetSends.FORGOTTEN,
        granularities=frozenset({Granularity.CLIENT}),
        several_at_once=False,
        needs=frozenset({Need.REQUESTER_ONLINE, Need.PREPARATION, Need.STEPS}),
        cost_remark="the formula is that of one target",
        remark="the distance at which it ends is absolute: tune max_distance to the model's size",
        preparation=KeepLastModel,
        assumes_fedavg="its reference model is what is left of FedAvg's mean without the target's last model",
    )

    def begin(self, problem: Problem, parameters: Vector) -> UnlearningState:
        """Begin with the model as it is.

        Raises:
            MethodFailed: there is no other client, whose models would be the reference.
        """
        if not (problem.staying or problem.retained):
            raise none_keeps(self.info.title, problem)
        return UnlearningState(parameters=parameters)

    def configure(self, problem: Problem[PgaParameters], state: UnlearningState) -> Instructions:
        """Let the target climb; the instruction has its share in the average that θ is."""
        parameters = problem.parameters
        training = replace(
            problem.training,
            epochs=parameters.epochs,
            learning_rate=parameters.learning_rate,
            momentum=parameters.momentum,
            clip_norm=parameters.clip_norm,
            optimizer="sgd",
            weight_decay=0.0,
            maximize=True,
        )
        (target,) = problem.targets
        values = {
            "share": _share(problem, target, weighted=parameters.weighted),
            "max_distance": parameters.max_distance,
            "seed": problem.seed,
        }
        ascent = Instruction(operation="ascend", model=state.parameters, training=training, values=values)
        return ask_targets(problem, ascent)

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Climb within the ball; the answer is the update θ' − θ.

        Raises:
            DataError: this client keeps no last model.
        """
        kept = newest(site.store, LAST_MODEL)
        if kept is None:
            raise DataError(
                "This client keeps no last local model: it has not trained since the federation was "
                'configured with prepare = "pga". Let it take part in a training round, then retry.'
            )
        if len(site.own) == 0:
            return Reply(vector=np.zeros_like(instruction.model), num_examples=0)
        _, arrays = kept
        model, last = instruction.model, cast(Vector, arrays["parameters"])
        walk = _Walk(site.task, instruction, last)
        trained = train(
            site.task,
            _start(site.task, instruction, last),  # not kept here: the walk computes it again, in chunks
            site.own,
            instruction.training,
            after_step=walk.after_step,
        )
        return Reply(
            vector=np.subtract(trained.parameters, model, out=trained.parameters),
            num_examples=trained.num_examples,
            metrics={
                "loss": trained.loss,
                "steps": walk.steps,
                "projections": walk.projections,
                "distance": walk.away_from_last**2,
            },
        )

    def aggregate(self, problem: Problem, state: UnlearningState, replies: Replies) -> UnlearningState:
        """Make the target's model the new global one.

        Raises:
            MethodFailed: the target did not answer, or has no example.
        """
        ((client, reply),) = replies_of_targets(self.info.title, problem, replies).items()
        parameters = add_weighted(state.parameters, {client: (1.0, reply.vector)})
        findings = {
            "steps of ascent": reply.metrics.get("steps"),
            "projections onto the ball": reply.metrics.get("projections"),
            "squared distance from the target's last model": reply.metrics.get("distance"),
        }
        return moved(problem, state, parameters, findings)

    def cost(self, given: CostSymbols, parameters: PgaParameters, preparation: object) -> Cost:
        """Compute 2 P B bytes, F N E_asc C_u FLOPs, C P B stored: each client's last model."""
        ascent = given.trips(
            given.num_targets, epochs=parameters.epochs, storage_bytes=given.num_clients * given.model_bytes
        )
        return replace(ascent, communication_bytes=2 * given.model_bytes)


def reference_model(model: Vector, last: Vector, share: float) -> Vector:
    """Compute θ_ref = (θ − share · θ_u)/(1 − share): the others' average if θ_u entered θ with `share`."""
    return in_chunks(lambda one, other: (one - share * other) / (1 - share), model, last)


def _start(task: Task, instruction: Instruction, last: Vector) -> Vector:
    """Return θ_ref with the buffers of the global model."""
    found = reference_model(instruction.model, last, float(instruction.values["share"]))
    buffers = buffer_positions(task)
    found[buffers] = instruction.model[buffers]
    return found


def _radius(task: Task, reference: Vector, seed: int) -> float:
    """Compute √δ."""

    def square(seed: int) -> float:  # so that one random model is held at a time
        return Change(untrained_parameters(task, seed), reference, buffer_positions(task)).norm ** 2 / 3

    return math.sqrt(np.mean([square(seed + number) for number in range(RANDOM_MODELS)]))


_Centre: TypeAlias = Callable[[slice], NDArray[np.float64]]
"""A part of a vector (d,), in float64."""


class _Walk:
    """Keeps a model within the ball around θ_ref of `model` and `last`, and ends when it is far enough from `last`.

    It takes no room of the model's size: the trained model is looked at and moved where it lies, and θ_ref is computed
    in chunks.
    """

    def __init__(self, task: Task, instruction: Instruction, last: Vector) -> None:
        model, values = instruction.model, instruction.values
        share, seed = float(values["share"]), int(values["seed"])
        self._last: _Centre = lambda part: last[part].astype(np.float64)
        self._reference: _Centre = lambda part: (model[part] - share * self._last(part)) / (1 - share)
        self._max_distance = float(values["max_distance"])
        self._radius = _radius(task, _start(task, instruction, last), seed)
        self.steps = 0
        self.projections = 0
        self.away_from_last = 0.0

    def after_step(self, model: nn.Module) -> bool:
        self.steps += 1
        away = _distance(model, self._reference)
        if away > self._radius:
            self.projections += 1
            _pull(model, self._reference, self._radius / away)
        self.away_from_last = _distance(model, self._last)
        return self.away_from_last**2 > self._max_distance


def _distance(model: nn.Module, centre: _Centre) -> float:
    """Compute the distance of the model's parameters from a vector's."""
    squares = 0.0
    for _, numbers, start in _parameters(model):
        for chunk, place in _chunks(numbers, start):
            difference = chunk - centre(place)
            squares += float(difference @ difference)
    return math.sqrt(squares)


def _pull(model: nn.Module, centre: _Centre, scale: float) -> None:
    """Move the model's parameters in place to c + scale · (θ − c)."""
    for tensor, numbers, start in _parameters(model):
        for chunk, place in _chunks(numbers, start):
            middle = centre(place)
            chunk[:] = middle + scale * (chunk - middle)
        tensor.copy_(torch.from_numpy(numbers).view_as(tensor))


def _parameters(model: nn.Module) -> Iterator[tuple[Tensor, Vector, int]]:
    """Yield each tensor that is no buffer, its numbers (a copy if it is on a device) and where they begin in (d,)."""
    tensors = travelling(model)
    for slot in layout(model):
        if not slot.is_buffer:
            tensor = tensors[slot.name].detach()
            yield tensor, tensor.cpu().reshape(-1).numpy(), slot.start


def _chunks(numbers: Vector, start: int) -> Iterator[tuple[Vector, slice]]:
    """Yield the chunks of numbers that begin at `start` in (d,), each with its place there."""
    for place in parts(start + numbers.size, start):
        yield numbers[place.start - start : place.stop - start], place


def _clients(problem: Problem) -> set[str]:
    """Return those whose models the average is taken to be of: all that have trained, and the target."""
    return {*problem.num_examples, *problem.retained, *problem.targets}


def _share(problem: Problem, client: str, *, weighted: bool) -> float:
    """Return the target's share in the average; by examples where these are known."""
    clients = _clients(problem)
    counts = {name: problem.num_examples.get(name, 0) for name in clients}
    total = sum(counts.values())
    return counts[client] / total if weighted and total > counts[client] else 1 / len(clients)
