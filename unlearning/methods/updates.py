"""Instructions, replies and updates: whom many methods ask, and what they make of the answers.

Where targets and retained clients work at once a target that keeps a part is on both sides: it trains twice from the
same model, on what it forgets and on what it keeps, and sends the second update beside the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from unlearning.buffers import Change, buffer_positions, buffers_in, drop_buffers
from unlearning.errors import MethodFailed, UpdateRefused
from unlearning.methods.method import (
    ClientSite,
    Instruction,
    MethodInfo,
    Problem,
    Replies,
    Reply,
    UnlearningState,
)
from unlearning.one_line import list_first
from unlearning.parameters import Vector, add_weighted, in_chunks, weighted_mean
from unlearning.requests import NOTHING
from unlearning.tasks.task import Examples, Task
from unlearning.training import AfterStep, train

NUM_RETAINED, RETAINED_UPDATE = "num_retained", "retained"
"""In a target's reply: how many examples it keeps, and the update of training on these."""
_MOST_NAMES = 20


def ask_targets(problem: Problem, instruction: Instruction) -> dict[str, Instruction]:
    """Return the instruction for each target, with what it must forget."""
    return {client: replace(instruction, forget=forget) for client, forget in problem.targets.items()}


def ask_staying(problem: Problem, instruction: Instruction) -> dict[str, Instruction]:
    """Return the instruction for all that keep something: a partial target also gets what to leave out."""
    return {
        client: replace(instruction, forget=problem.targets.get(client, NOTHING))
        for client in sorted({*problem.retained, *problem.partial})
    }


def replies_of_targets(title: str, problem: Problem, replies: Replies) -> dict[str, Reply]:
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
            code="no-answer",
            clients=tuple(absent),
        )
    holding = {client: replies[client] for client in problem.targets if replies[client].num_examples}
    if not holding:
        raise MethodFailed(
            "No client holds an example of what is to be forgotten; there is nothing to unlearn.",
            retryable=False,
            code="nothing-to-forget",
        )
    return holding


def replies_with_examples(title: str, replies: Replies) -> dict[str, Reply]:
    """Return the answers that count an example.

    Raises:
        MethodFailed: there is none.
    """
    counted = {client: reply for client, reply in replies.items() if reply.num_examples}
    if not counted:
        raise MethodFailed(
            f"No client that keeps an example gave an answer that {title} could use; it cannot go on.",
            retryable=True,
            code="no-answer",
        )
    return counted


def num_retained(reply: Reply) -> int:
    """Return how many examples a target says that it keeps; 0 where it says nothing.

    Raises:
        UpdateRefused: it is no count.
    """
    count = reply.values.get(NUM_RETAINED, 0)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise UpdateRefused(f"It should count the examples that it keeps, got {str(count)[:40]!r}.")
    return count


def change_of(task: Task, before: Vector, after: Vector) -> dict[str, float]:
    """Return the finding ‖after − before‖ / ‖before‖ of parameters; infinite where `before` is zero, `after` not."""
    zeros = buffers_in(task, after)
    change, size = Change(after, before, zeros).norm, Change(before, zeros=zeros).norm
    return {"relative change of the model ‖Δθ‖/‖θ‖": change / size if size else (np.inf if change else 0.0)}


def moved(
    problem: Problem,
    state: UnlearningState,
    parameters: Vector,
    findings: Mapping[str, Any] | None = None,
    *,
    start: Vector | None = None,
    finished: bool = True,
) -> UnlearningState:
    """Return the state after one more exchange, with `findings` and how far the model has moved.

    start: the model before unlearning; that of `state` where it is not given.
    """
    change = change_of(problem.task, state.parameters if start is None else start, parameters)
    return replace(state.advance(parameters, finished=finished), findings={**(findings or {}), **change})


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
    update = np.subtract(trained.parameters, instruction.model, out=trained.parameters)
    return Reply(vector=update, num_examples=trained.num_examples, metrics={"loss": trained.loss})


def split_buffers(task: Task, info: MethodInfo, reply: Reply) -> Reply:
    """Return an update as a direction, zero for buffers, with what it says of these beside it.

    Of a target that sends a second update this is what the second one says, of training on what it keeps.
    """
    positions = buffer_positions(task)
    if not info.replies_are_updates or not positions.size:
        return reply
    kept = reply.arrays.get(RETAINED_UPDATE)
    told = (reply.vector if kept is None else kept)[positions]
    arrays = (
        dict(reply.arrays) if kept is None else {**reply.arrays, RETAINED_UPDATE: drop_buffers(task, kept)}
    )
    return replace(reply, vector=drop_buffers(task, reply.vector), arrays=arrays, buffers=told)


def with_kept_buffers(task: Task, parameters: Vector, keeping: Replies) -> Vector:
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


def add_mean_update(start: Vector, replies: Replies) -> Vector:
    """Compute `start` + Σ (n_i / Σ n_j) v_i over the replies' vectors, as FedAvg does with updates.

    At least one reply must count an example.
    """
    return add_weighted(start, shares(replies))


def shares(replies: Replies, weight: float = 1.0) -> dict[str, tuple[float, Vector]]:
    """Return each vector with its share of `weight`, by numbers of examples."""
    total = sum(reply.num_examples for reply in replies.values())
    return {client: (weight * reply.num_examples / total, reply.vector) for client, reply in replies.items()}


def mean_vector(vectors: Sequence[Vector]) -> Vector:
    """Compute the mean of vectors (d,), in float64; no number of examples weighs. Of a single one it is itself."""
    if len(vectors) == 1:
        return vectors[0]
    return in_chunks(lambda *chunks: sum(chunks) / len(chunks), *vectors)


def check_some_keep(title: str, problem: Problem) -> None:
    """Refuse to begin where no client that can take part keeps anything.

    Raises:
        MethodFailed: that is so.
    """
    if not problem.retained and not problem.partial:
        raise none_keeps(title, problem)


def none_keeps(title: str, problem: Problem) -> MethodFailed:
    """Return the failure of a method for which no client keeps anything; it may be tried again while some are away."""
    if problem.staying:
        return MethodFailed(
            f"{title} needs at least one client that keeps something, and none can take part now (not online, "
            f"suspended, or an open request would forget it): {list_first(problem.staying, _MOST_NAMES)}.",
            retryable=True,
            code="no-client-online",
        )
    return MethodFailed(
        f"{title} needs at least one client that keeps something; there is none.",
        retryable=False,
        code="no-client-stays",
    )


def with_retained_update(reply: Reply, instruction: Instruction, site: ClientSite) -> Reply:
    """Return a target's reply with the update of ordinary training on what it keeps beside it, if it keeps anything."""
    reply = replace(reply, values={**reply.values, NUM_RETAINED: len(site.retain)})
    if len(site.retain) == 0:
        return reply
    kept = trained_update(instruction, site, site.retain)
    return replace(reply, arrays={**reply.arrays, RETAINED_UPDATE: kept.vector})


def update_of_kept(title: str, client: str, reply: Reply) -> Reply:
    """Return what a partial target answers as one that stays: the update of what it keeps, and its number of examples.

    Raises:
        MethodFailed: it sent none.
    """
    kept, update = num_retained(reply), reply.arrays.get(RETAINED_UPDATE)
    if NUM_RETAINED not in reply.values or (kept and update is None):
        raise MethodFailed(
            f"Client {client} forgets a part of its examples and sent no update of the rest, which {title} needs. "
            "Choose another method.",
            retryable=True,
            code="client-cannot",
        )
    vector = np.zeros_like(reply.vector) if update is None else cast(Vector, update)
    return Reply(vector=vector, num_examples=kept, buffers=reply.buffers)


def side_that_keeps(title: str, problem: Problem, replies: Replies) -> dict[str, Reply]:
    """Return the answers of retained clients, and partial targets' second updates.

    Raises:
        MethodFailed: a partial target sent no second update.
    """
    side = {client: reply for client, reply in replies.items() if client not in problem.targets}
    return side | {client: update_of_kept(title, client, replies[client]) for client in problem.partial}


def retained_side(title: str, problem: Problem, replies: Replies) -> dict[str, Reply]:
    """Return the answers of all that keep an example: of retained clients, and partial targets' second updates.

    Raises:
        MethodFailed: there is none, or a partial target sent no second update.
    """
    return replies_with_examples(title, side_that_keeps(title, problem, replies))
