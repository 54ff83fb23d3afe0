"""How the answers of a round become one model: the mean, with bounds on what one client may do to it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from strategies.aggregation import Combined
from strategies.round_plan import RoundOutcome
from strategies.round_rules import RoundRules
from strategies.update_limits import FEWEST, Excess, Limits, agrees, excess, influences
from unlearning.buffers import Change
from unlearning.methods.method import Replies
from unlearning.parameters import Models, Vector

LOSS_SLACK = 0.01
"""The test loss of one more honest client may be higher by this share by chance."""
MOST_TRIED = 32
"""The most clients of a rejected round that are left out in turn, those with the most influence: each costs a test."""


class Judge(Protocol):
    """What the server's own test examples say of a round's model."""

    def loss(self, model: Vector) -> float | None:
        """Return the loss on the test examples; None where there are none."""

    def problem(self, model: Vector) -> str:
        """Say why the model may not be committed; empty if it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """How a round is averaged.

    combine: makes one model of the local ones. judge: what the server says of models, if it says anything.
    """

    combine: Callable[[Models], Combined]
    rules: RoundRules
    limits: Limits
    judge: Judge | None = None

    def outcome(self, entering: Replies, changes: Mapping[str, Change]) -> RoundOutcome:
        """Average answers that are sound each by itself; `changes` are what they change of the model.

        Where the server would not commit their model, the one client is left out without which it would.
        """
        if not entering:
            return RoundOutcome()
        models: Models = {client: (reply.num_examples, reply.vector) for client, reply in entering.items()}
        made = self.combine(models)
        held_back: dict[str, str] = {}
        refused: dict[str, str] = {}
        culprit = ""
        if self.rules.averages and (
            over := excess(influences(_counts(models), changes), self.limits.influence_factor)
        ):
            reason = self._why_held_back(over, models, changes, made)
            if reason:
                models = _reduced(models, over)
                made = self.combine(models)
                (held_back if over.client in models else refused)[over.client] = reason
        problem = self._problem(made)
        if problem and (found := self._without_one(models, changes)):
            culprit, made = found
            held_back.pop(culprit, None)
            refused[culprit] = f"The round is committed without it, not with it: {problem}."
            models, problem = _without(models, culprit), ""
        participants = {client: count for client, (count, _) in sorted(models.items())}
        losses = [
            count * entering[client].metrics.get("loss", math.nan) for client, (count, _) in models.items()
        ]
        keeps = self.rules.keeps_models
        return RoundOutcome(
            model=made.model,
            kept=made.kept,
            participants=participants,
            refused=refused,
            held_back=held_back,
            loss=sum(losses) / sum(participants.values()),
            models=models if keeps else {},
            arrays={client: entering[client].arrays for client in models} if keeps else {},
            problem=problem,
            culprit=culprit,
        )

    def _why_held_back(
        self, over: Excess, models: Models, changes: Mapping[str, Change], made: Combined
    ) -> str:
        """Say why a client with too much influence does not count in full; empty where it does."""
        why = ""
        # The model of all is measured last, for the test set remembers that one.
        others = None if self.judge is None else self.combine(_without(models, over.client))
        without = None if others is None else self._loss(others)
        loss = None if without is None else self._loss(made)
        if without is not None and loss is not None and math.isfinite(without):
            if not loss <= without + LOSS_SLACK * abs(without):
                why = f"the test loss is {loss:.4g} with it and {without:.4g} without it"
        elif over.client not in self.limits.counts.own and not agrees(over.client, _counts(models), changes):
            why = "its change does not point where those of the others point"
        return why and (
            f"Its influence is {over.influence / over.bound:.3g} times the bound of max-influence-factor, and {why}."
        )

    def _without_one(self, models: Models, changes: Mapping[str, Change]) -> tuple[str, Combined] | None:
        """Return the client without which the model may be committed, of several the best, and that model."""
        if len(models) < FEWEST:
            return None
        found = influences(_counts(models), {client: changes[client] for client in models})
        passing: list[tuple[float, str, Combined]] = []
        for client in sorted(found, key=lambda name: (-found[name], name))[:MOST_TRIED]:
            made = self.combine(_without(models, client))
            if not self._problem(made):
                loss = self._loss(made)
                passing.append((math.inf if loss is None else loss, client, made))
        return min(passing, key=lambda one: one[:2])[1:] if passing else None

    def _loss(self, made: Combined) -> float | None:
        return None if self.judge is None or made.model is None else self.judge.loss(made.model)

    def _problem(self, made: Combined) -> str:
        return made.problem or (
            "" if self.judge is None or made.model is None else self.judge.problem(made.model)
        )


def _counts(models: Models) -> dict[str, int]:
    return {client: count for client, (count, _) in models.items()}


def _without(models: Models, client: str) -> Models:
    return {other: one for other, one in models.items() if other != client}


def _reduced(models: Models, over: Excess) -> Models:
    """Return the models with a smaller weight for the client over its bound, or without it where none is left."""
    count, vector = models[over.client]
    kept = int(count * over.bound / over.influence)
    return {**models, over.client: (kept, vector)} if kept else _without(models, over.client)
