"""A method's exchange that clients were asked for: which of the answers to it the method may use, and can use."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from logging import getLogger

from strategies.exchange import read_each
from strategies.fedavg import FedAvg
from strategies.update_limits import CheckCount, agrees, check_norm, check_vector, excess, influences
from unlearning.buffers import Change, buffer_positions, buffers_in, check_variances
from unlearning.errors import FlowerUnlearningError, MethodFailed, UpdateRefused
from unlearning.methods.method import Method, MethodInfo, Problem, Replies, Reply, UnlearningState
from unlearning.methods.updates import RETAINED_UPDATE, num_retained, split_buffers
from unlearning.parameters import Vector
from unlearning.requests import NOTHING
from unlearning.untrusted import reason_of

_log = getLogger(__name__)

_BOUND = "the bound of max-influence-factor, and it does not point where those of the others point."


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedReplies:
    """The answers that a method may use, and why others are refused or count fewer examples, all by client."""

    accepted: Replies
    refused: Mapping[str, str] = field(default_factory=dict)
    held_back: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingExchange:
    """What was asked of whom, and so what an answer has to be like.

    model: the method's own (d,). nodes: by the clients that were asked. starts: the model (d,) that each was sent.
    """

    problem: Problem
    info: MethodInfo
    model: Vector
    nodes: Mapping[str, int] = field(default_factory=dict)
    starts: Mapping[str, Vector] = field(default_factory=dict)

    def check_all(self, replies: Replies, fedavg: FedAvg) -> CheckedReplies:
        """Return the answers that may enter, and why others are refused or count less."""
        check_count, max_norm = fedavg.count_check(), fedavg.limits.max_norm
        sound, refused = read_each(
            replies, lambda client, reply: self._check(client, reply, check_count, max_norm)
        )
        changes = self._comparable(sound)
        models = {client: self._buffers_of(client, sound[client]) for client in changes}
        too_large = fedavg.limits.outliers(
            changes, {client: model for client, model in models.items() if model is not None}
        )
        accepted = {client: reply for client, reply in sound.items() if client not in too_large}
        checked = CheckedReplies(accepted=accepted, refused=refused | too_large)
        return checked if self.info.replies_are_models else self._bounded(checked, fedavg)

    def _bounded(self, checked: CheckedReplies, fedavg: FedAvg) -> CheckedReplies:
        """Bound the influence of one answer that does not point where the others point (`strategies.update_limits`).

        No test score says here whether it harms the model, as in a round. If its length alone gives it the influence
        it is left out, for a method may not weigh by counts; else it counts fewer examples.
        """
        accepted, factor = dict(checked.accepted), fedavg.limits.influence_factor
        changes = self._comparable(accepted)
        alike: dict[str, float] = dict.fromkeys(changes, 1.0)
        over = excess(influences(alike, changes), factor)
        if over is not None and not agrees(over.client, alike, changes):
            del accepted[over.client], changes[over.client]
            reason = f"Its length is {over.influence / over.bound:.3g} times {_BOUND}"
            checked = replace(checked, refused={**checked.refused, over.client: reason})
        counts = {client: float(accepted[client].num_examples) for client in changes}
        over = excess(influences(counts, changes), factor)
        if (
            over is not None
            and over.client not in fedavg.limits.counts.own
            and not agrees(over.client, counts, changes)
        ):
            reply, times = accepted[over.client], over.influence / over.bound
            kept = max(1, int(reply.num_examples / times))
            accepted[over.client] = replace(reply, num_examples=kept)
            reason = (
                f"It counts {kept:,} of {reply.num_examples:,} examples: its influence is {times:.3g} times "
            )
            checked = replace(checked, held_back={over.client: f"{reason}{_BOUND}"})
        return replace(checked, accepted=accepted)

    def _check(self, client: str, reply: Reply, check_count: CheckCount, max_norm: float) -> Reply:
        """Return an answer that is sound by itself.

        Raises:
            UpdateRefused: what is wrong.
        """
        if client not in self.nodes:
            raise UpdateRefused("It was not asked.")
        like = reply.vector if self.info.replies_have_any_length else self.model
        if self.info.replies_are_models:
            like = self.starts[client]
        check_vector(reply.vector.astype(like.dtype, copy=False), like=like)
        check_count(client, reply.num_examples + num_retained(reply))
        beside = reply.arrays.get(RETAINED_UPDATE)
        if beside is not None:
            check_vector(beside, like=like)
        reply = split_buffers(self.problem.task, self.info, reply)
        if (model := self._buffers_of(client, reply)) is not None:
            check_variances(self.problem.task, model)
        for update in (self._change(client, reply), None if beside is None else Change(beside)):
            if update is not None:
                check_norm(update, max_norm)
        return reply

    def _buffers_of(self, client: str, reply: Reply) -> Vector | None:
        """Return a model (d,) with the buffers that an answer reports; None where the method may use none of it."""
        if self.info.replies_are_models:
            return reply.vector
        start, leaves = self.starts[client], self.problem.targets.get(client, NOTHING).everything
        if reply.buffers is None or leaves or start.size != reply.vector.size:
            return None
        model = start.copy()
        model[buffer_positions(self.problem.task)] += reply.buffers
        return model

    def _change(self, client: str, reply: Reply) -> Change | None:
        """Return by what the answer's training has changed the model (d,); None where it is no such thing."""
        if self.info.replies_are_models:
            return Change(reply.vector, self.starts[client], buffers_in(self.problem.task, reply.vector))
        return Change(reply.vector) if self.info.replies_are_updates else None

    def _comparable(self, sound: Replies) -> dict[str, Change]:
        """Return by what ordinary training has changed the model in each answer that can be compared with the others.

        What a target does for the method may be legitimately larger, and is not compared. A method that can do without
        the target asks it, if at all, for what it keeps. Of fewer than three answers none is refused: the median of two
        is their mean, and it cannot be known which one is wrong. Then the gate and `max-update-norm` are what is left.
        """
        return {
            client: change
            for client, reply in sound.items()
            if (not self.info.works_with_the_data or client not in self.problem.targets)
            and reply.num_examples  # one without weight would pull the median down
            and (change := self._change(client, reply)) is not None
        }


def next_state(
    method: Method, problem: Problem, state: UnlearningState, accepted: Replies
) -> tuple[UnlearningState, Mapping[str, str]]:
    """Compute the method's next state, if need be without the one client whose answer it cannot make use of.

    Answers that passed every check may still carry what only the method looks at. Returns whose answer was left out, by
    client, and why.

    Raises:
        MethodFailed: the replies do not suffice, or leaving out any one of them does not help.
    """
    try:
        return method.aggregate(problem, state, accepted), {}
    except UpdateRefused as exc:
        raise MethodFailed(
            f"An answer cannot be used: {exc}", retryable=True, code="unusable-answers"
        ) from exc
    except (FlowerUnlearningError, OSError):
        raise
    except Exception as exc:  # noqa: BLE001 - the values in an answer are the client's
        _log.exception("%s cannot make use of the answers.", method.info.title)
        error = exc
    for client in accepted:
        others = {other: reply for other, reply in accepted.items() if other != client}
        with suppress(Exception):
            following = method.aggregate(problem, state, others)
            return following, {client: f"The method cannot make use of it: {reason_of(error)}"}
    raise MethodFailed(
        f"{method.info.title} cannot make use of the answers: {reason_of(error)}",
        retryable=True,
        code="unusable-answers",
    ) from error
