"""Instructions, replies and updates: whom many methods ask, and what they make of the answers."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unlearning.buffers import buffer_positions, without_buffers
from unlearning.errors import MethodFailed, UpdateRefused
from unlearning.methods.method import ClientSite, Instruction, MethodInfo, Problem, Reply
from unlearning.parameters import Vector, add_weighted, weighted_mean
from unlearning.requests import NOTHING
from unlearning.tasks.task import Examples, Task
from unlearning.training import AfterStep, train

NUM_RETAINED, RETAINED_UPDATE = "num_retained", "retained"
"""In a target's reply: how many examples it keeps, and the update of training on these."""


def check_classification(title: str, task: Task) -> None:
    """Refuse a task that is no classification.

    Raises:
        MethodFailed: it is none.
    """
    if task.score_name != "accuracy":
        raise MethodFailed(
            f"{title} works with class labels, and this task is no classification. Choose another method.",
            retryable=False,
        )


def ask_targets(problem: Problem, instruction: Instruction) -> dict[str, Instruction]:
    """Return the instruction for each target, with what it must forget."""
    return {client: replace(instruction, forget=forget) for client, forget in problem.targets.items()}


def ask_staying(problem: Problem, instruction: Instruction) -> dict[str, Instruction]:
    """Return the instruction for all that keep something: a partial target is told what to leave out."""
    return {
        client: replace(instruction, forget=problem.targets.get(client, NOTHING))
        for client in sorted({*problem.retained, *problem.partial})
    }


def replies_of_targets(title: str, problem: Problem, replies: Mapping[str, Reply]) -> dict[str, Reply]:
    """Return the targets' answers that count: of those that hold an example of what is to be forgotten.

    Raises:
        MethodFailed: a target did not answer, without which nothing would be unlearned; or no target
            holds an example.
    """
    absent = sorted(set(problem.targets) - set(replies))
    if absent:
        raise MethodFailed(
            f"{title} needs a usable answer of every target; client(s) {', '.join(absent)} gave none.",
            retryable=True,
        )
    holding = {client: replies[client] for client in problem.targets if replies[client].num_examples}
    if not holding:
        raise MethodFailed(
            "No client holds an example of what is to be forgotten; there is nothing to unlearn.",
            retryable=False,
        )
    return holding


def num_retained(reply: Reply) -> int:
    """Return how many examples a target says that it keeps; 0 where it says nothing.

    Raises:
        UpdateRefused: it is no count.
    """
    count = reply.values.get(NUM_RETAINED, 0)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise UpdateRefused(f"It should count the examples that it keeps, got {str(count)[:40]!r}.")
    return count


def relative_change(task: Task, before: Vector, after: Vector) -> float:
    """Compute ‖after − before‖ / ‖before‖ of parameters, in float64; infinite where `before` is zero, `after` not."""
    start = without_buffers(task, before).astype(np.float64)
    change = float(np.linalg.norm(without_buffers(task, after).astype(np.float64) - start))
    size = float(np.linalg.norm(start))
    return change / size if size else (np.inf if change else 0.0)


def trained_update(
    instruction: Instruction,
    site: ClientSite,
    examples: Examples,
    after_step: AfterStep | None = None,
) -> Reply:
    """Compute Δ = θ_i − θ of ordinary local training on `examples`; zero with weight 0 where there are none.

    after_step: as of `train`.
    """
    if len(examples) == 0:
        return Reply(vector=np.zeros_like(instruction.model), num_examples=0)
    trained = train(site.task, instruction.model, examples, instruction.training, after_step=after_step)
    update = trained.parameters - instruction.model
    return Reply(vector=update, num_examples=trained.num_examples, metrics={"loss": trained.loss})


def split_buffers(task: Task, info: MethodInfo, reply: Reply) -> Reply:
    """Return an update as a direction, zero for buffers, with what it says of these beside it.

    Of a target that sends a second update this is what the second one says, of training on what it keeps.
    """
    positions = buffer_positions(task)
    if not info.replies_are_updates or not positions.size:
        return reply
    kept = reply.arrays.get(RETAINED_UPDATE)
    told = reply.vector if kept is None else kept
    arrays = (
        dict(reply.arrays) if kept is None else {**reply.arrays, RETAINED_UPDATE: without_buffers(task, kept)}
    )
    return replace(reply, vector=without_buffers(task, reply.vector), arrays=arrays, buffers=told[positions])


def with_kept_buffers(task: Task, parameters: Vector, keeping: Mapping[str, Reply]) -> Vector:
    """Return `parameters` (d,) with the buffers that clients report which trained on what they keep.

    These are the means by numbers of examples, as in a round of training. `parameters` has the buffers that the
    clients began with, and keeps them where none reports any.
    """
    positions = buffer_positions(task)
    own = parameters[positions]
    reported = {
        client: (reply.num_examples, own + reply.buffers)
        for client, reply in keeping.items()
        if reply.num_examples and reply.buffers is not None
    }
    if not reported:
        return parameters
    moved = parameters.copy()
    moved[positions] = weighted_mean(reported)
    return moved


def add_mean_update(start: Vector, replies: Mapping[str, Reply]) -> Vector:
    """Compute `start` + Σ (n_i / Σ n_j) v_i over the replies' vectors, as FedAvg does with updates.

    At least one reply must count an example.
    """
    return add_weighted(start, shares(replies))


def shares(replies: Mapping[str, Reply], weight: float = 1.0) -> dict[str, tuple[float, Vector]]:
    """Return each vector with its share of `weight`, by numbers of examples."""
    total = sum(reply.num_examples for reply in replies.values())
    return {client: (weight * reply.num_examples / total, reply.vector) for client, reply in replies.items()}


def mean_vector(vectors: Iterable[Vector]) -> NDArray[np.float64]:
    """Compute the mean of at least one vector (d,), in float64 and one at a time; no number of examples weighs."""
    total, count = np.zeros(1), 0
    for vector in vectors:
        total = total + vector.astype(np.float64)
        count += 1
    return total / count
