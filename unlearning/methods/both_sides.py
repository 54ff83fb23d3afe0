"""Methods in which targets and retained clients work at once: a target that keeps a part is on both sides.

It trains twice from the same model, on what it forgets and on what it keeps, and sends the second update beside the
first (`RETAINED_UPDATE`, of `NUM_RETAINED` examples).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from unlearning.errors import MethodFailed
from unlearning.methods.method import ClientSite, Instruction, Problem, Reply
from unlearning.methods.updates import NUM_RETAINED, RETAINED_UPDATE, num_retained, trained_update
from unlearning.parameters import Vector


def check_somebody_keeps(title: str, problem: Problem) -> None:
    """Refuse to begin where nobody keeps anything.

    Raises:
        MethodFailed: that is so.
    """
    if not problem.retained and not problem.partial:
        raise MethodFailed(
            f"{title} needs at least one client that keeps something; there is none.", retryable=False
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
            "It runs an earlier version: update it, or choose another method.",
            retryable=True,
        )
    vector = np.zeros_like(reply.vector) if update is None else cast(Vector, update)
    return Reply(vector=vector, num_examples=kept, buffers=reply.buffers)


def side_that_keeps(title: str, problem: Problem, replies: Mapping[str, Reply]) -> dict[str, Reply]:
    """Return the answers of retained clients, and partial targets' second updates.

    Raises:
        MethodFailed: a partial target sent no second update.
    """
    side = {client: reply for client, reply in replies.items() if client not in problem.targets}
    return side | {client: update_of_kept(title, client, replies[client]) for client in problem.partial}


def retained_side(title: str, problem: Problem, replies: Mapping[str, Reply]) -> dict[str, Reply]:
    """Return the answers of all that keep an example: of retained clients, and partial targets' second updates.

    Raises:
        MethodFailed: there is none, or a partial target sent no second update.
    """
    side = side_that_keeps(title, problem, replies)
    keeping = {client: reply for client, reply in side.items() if reply.num_examples}
    if not keeping:
        raise MethodFailed(
            f"No client that keeps an example gave an answer that {title} could use; it cannot go on.",
            retryable=True,
        )
    return keeping
