"""Several methods forget the same targets from the same model, each compared with a model retrained without them."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from unlearning.errors import DataError, MethodFailed, ModelRefused, TrainingFailed, UnsupportedRequest
from unlearning.evaluation import evaluate
from unlearning.local.checks import check_rounds, checked_targets
from unlearning.local.deletion import unlearn
from unlearning.local.learning import Learnt, Sites, begin, forget_sets, learn, retained, without
from unlearning.methods.method import Method
from unlearning.requests import Target
from unlearning.runtime.display import new_axes, table, with_progress
from unlearning.tasks.task import Examples, Task, forgotten_mask, join
from unlearning.verification.discrimination import auc

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEFORE, RETRAINED = "before", "retrained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One model of a comparison.

    forgotten_score, new_score: mean score, 0 to 1, on what is forgotten and on examples that no model has seen.
    attack_auc: of the attack that takes a low loss for a sign of membership (Yeom et al. 2018); 0.5 is chance.
    difference: mean absolute difference of the confidences from the retrained model's, on what is forgotten.
    seconds: of the deletion and its recovery.
    """

    method: str
    forgotten_score: float
    new_score: float
    attack_auc: float
    difference: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What `compare` has measured.

    rows: the model before, one model per method, the retrained model. refused: why a method has no row, by its name.
    """

    rows: tuple[Compared, ...]
    refused: Mapping[str, str] = field(default_factory=dict)

    def row(self, method: str) -> Compared:
        """Return the row of a method, of "before" or of "retrained".

        Raises:
            DataError: it has none.
        """
        for one in self.rows:
            if one.method == method:
                return one
        said = self.refused.get(method, "it was not compared.")
        raise DataError(f"There is no row of {method}: {said}", code="no-row")

    def _repr_html_(self) -> str:
        header = ("model", "score, forgotten", "score, new", "attack AUC", "difference", "seconds")
        cells = [
            (
                one.method,
                *(
                    f"{value:.3f}"
                    for value in (one.forgotten_score, one.new_score, one.attack_auc, one.difference)
                ),
                f"{one.seconds:.1f}",
            )
            for one in self.rows
        ]
        refused = "".join(f"<p>{escape(f'{name}: {reason}')}</p>" for name, reason in self.refused.items())
        return table("Comparison with retraining", header, cells) + refused

    def plot(self) -> "list[Axes]":
        """Draw the difference from retraining and the attack's AUC as bars; return both axes.

        Raises:
            ConfigurationError: matplotlib is not installed.
        """
        difference, attack = axes = new_axes(2)
        names = [one.method for one in self.rows]
        difference.barh(names, [one.difference for one in self.rows])
        difference.set_xlabel("difference from the retrained model")
        attack.barh(names, [one.attack_auc for one in self.rows])
        attack.axvline(0.5, color="black", linestyle=":")
        attack.set_xlabel("attack AUC (0.5 is chance)")
        attack.set_yticklabels([])
        for one in axes:
            one.invert_yaxis()
        return axes


def compare(
    methods: Iterable[str | Method],
    task: Task,
    learnt: Learnt,
    sites: Sites,
    targets: Iterable[Target],
    new_examples: Examples,
    *,
    recovery_rounds: int = 1,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
) -> Comparison:
    """Let each method forget `targets` from `learnt`, and recover; compare with retraining for as many rounds.

    Retraining starts as `begin` does, trains as `learnt.training` says and prepares for the same methods.

    new_examples: such as no model has seen. recovery_rounds: 0 or more. parameters: by a method's name.

    Raises:
        DataError: no round trained the model, so it cannot be retrained; new_examples is empty.
        The errors of `unlearn` about targets, sites and parameters; a method that cannot serve them is in `refused`.
    """
    wanted, methods = checked_targets(targets), list(methods)
    rounds = check_rounds(recovery_rounds) if recovery_rounds else 0
    if not learnt.rounds or not len(new_examples):
        raise DataError(
            "A comparison needs a model that `learn` has trained, and examples that it has not seen.",
            code="nothing-to-compare",
        )
    began = time.monotonic()
    there = without(sites, learnt.forgotten)
    rest = retained(there, wanted)
    retrained = learn(task, rest, begin(task, learnt.training, learnt.prepared), rounds=learnt.rounds)
    seconds = {RETRAINED: time.monotonic() - began, BEFORE: 0.0}
    models: dict[str, Learnt] = {BEFORE: learnt}
    refused: dict[str, str] = {}
    for method in with_progress(methods, "Method"):
        name, began = method if isinstance(method, str) else method.info.name, time.monotonic()
        try:
            after = unlearn(method, task, learnt, sites, wanted, **(parameters or {}).get(name, {})).learnt
            models[name] = learn(task, rest, after, rounds=rounds) if rounds else after
        except (UnsupportedRequest, MethodFailed, ModelRefused, TrainingFailed) as exc:
            refused[name] = str(exc)
        seconds[name] = time.monotonic() - began
    models[RETRAINED] = retrained
    forgets = forget_sets(wanted, there)
    gone = reduce(
        join, [there[one].select(forgotten_mask(there[one], what)) for one, what in forgets.items()]
    )
    measured = {
        name: [evaluate(one.learns(task), one.parameters, of) for of in (gone, new_examples)]
        for name, one in models.items()
    }
    goal, _ = measured[RETRAINED]
    rows = [
        Compared(
            method=name,
            forgotten_score=float(old.score.mean()),
            new_score=float(new.score.mean()),
            attack_auc=auc(-old.loss, -new.loss),
            difference=float(np.abs(old.confidence - goal.confidence).mean()),
            seconds=seconds[name],
        )
        for name, (old, new) in measured.items()
    ]
    return Comparison(rows=tuple(rows), refused=refused)
