"""A method's exchange that clients were asked for: which of the answers to it the method may use."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from strategies.exchange import read_each
from strategies.fedavg import FedAvg
from strategies.update_checks import STATISTICS, check_norm, check_vector, over_the_median
from unlearning.buffers import buffer_positions, check_variances, deviations, without_buffers
from unlearning.errors import UpdateRefused
from unlearning.methods.method import MethodInfo, Need, Problem, Reply
from unlearning.methods.updates import RETAINED_UPDATE, num_retained, split_buffers
from unlearning.parameters import Vector
from unlearning.requests import NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedExchange:
    """What was asked of whom, and so what an answer has to be like.

    model: the method's own (d,). nodes: by the clients that were asked. starts: the model (d,) that each was sent.
    """

    problem: Problem
    info: MethodInfo
    model: Vector
    nodes: Mapping[str, int] = field(default_factory=dict)
    starts: Mapping[str, Vector] = field(default_factory=dict)

    def check_all(
        self, replies: Mapping[str, Reply], fedavg: FedAvg
    ) -> tuple[dict[str, Reply], dict[str, str]]:
        """Return the answers that may enter, and why the others are refused, both by client."""
        sound, refused = read_each(replies, lambda client, reply: self._check(client, reply, fedavg))
        too_large = self._over_the_median(sound, fedavg.settings.max_norm_factor)
        accepted = {client: reply for client, reply in sound.items() if client not in too_large}
        return accepted, refused | too_large

    def _check(self, client: str, reply: Reply, fedavg: FedAvg) -> Reply:
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
        fedavg.check_count(client, reply.num_examples + num_retained(reply))
        beside = reply.arrays.get(RETAINED_UPDATE)
        if beside is not None:
            check_vector(beside, like=like)
        reply = split_buffers(self.problem.task, self.info, reply)
        if (model := self._buffers_of(client, reply)) is not None:
            check_variances(self.problem.task, model)
        for update in (self._change(client, reply), reply.arrays.get(RETAINED_UPDATE)):
            if update is not None:
                check_norm(update, fedavg.settings.max_update_norm)
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

    def _change(self, client: str, reply: Reply) -> Vector | None:
        """Compute by what the answer's training has changed the model (d,); None where it is no such thing."""
        if self.info.replies_are_models:
            return without_buffers(self.problem.task, reply.vector - self.starts[client])
        return reply.vector if self.info.replies_are_updates else None

    def _over_the_median(self, sound: Mapping[str, Reply], factor: float) -> dict[str, str]:
        """Return which answers of ordinary training change the model too much beside the others', and by how much.

        What a target does for the method may be legitimately larger, and is not compared. A method that can do without
        the target asks it, if at all, for what it keeps. Of fewer than three answers none is refused: the median of two
        is their mean, and nobody can say which of two is wrong. Then the gate and `max-update-norm` are what is left.
        """
        does_without = not {Need.REQUESTER_ONLINE, Need.EVERY_CLIENT_ONLINE} & self.info.needs
        compared = {
            client: reply
            for client, reply in sound.items()
            if (does_without or client not in self.problem.targets)
            and reply.num_examples  # one without weight would pull the median down
        }
        changes = {
            client: change
            for client, reply in compared.items()
            if (change := self._change(client, reply)) is not None
        }
        spread = {
            client: deviations(self.problem.task, model)
            for client, reply in compared.items()
            if (model := self._buffers_of(client, reply)) is not None
        }
        return over_the_median(spread, factor, what=STATISTICS) | over_the_median(changes, factor)
