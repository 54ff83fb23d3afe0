"""What the page measures: a model is trained, each method forgets something of it, and training goes on without that.

In one process, with the bits and by the rule of a live federation (`unlearning.local`, `unlearning.verification`).
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, reduce
from pathlib import Path

import numpy as np

from benchmarks.data import prepare_for, sites_and_test
from benchmarks.persistence.relearning import relearn_time
from benchmarks.tables import Row
from unlearning.errors import FlowerUnlearningError
from unlearning.evaluation import evaluate
from unlearning.local import Learnt, begin, learn, retained, unlearn
from unlearning.parameters import Vector
from unlearning.requests import Forget, Granularity, Target
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Examples, Task, forgotten_mask, join
from unlearning.training import TrainingSettings
from unlearning.verification.discrimination import share
from unlearning.verification.figures import AttackFigure, Measurement
from unlearning.verification.measurement import measure
from unlearning.verification.observations import observe_model
from unlearning.verification.persistence import compare, levels

ROUNDS, RECOVERY, FURTHER, MOST = 20, 2, 100, 20
"""Training rounds before the deletion, in its recovery and after it; the most rounds of relearning."""
CHECKS = (5, 20, 100)
SETTINGS = TaskSettings(
    dataset="digits", model="mlp", num_clients=4, partition="dirichlet", alpha=0.3, max_examples=600
)
TRAINING = TrainingSettings(learning_rate=0.1, epochs=2, seed=0)
CLIENT, CLASS = Target(Granularity.CLIENT, "0"), Target(Granularity.CLASS, class_label=3)
CASES: Mapping[str, Target] = {"a client": CLIENT, "a class": CLASS, "a client with copies": CLIENT}
"""In the last one every second record of the client is at another client too, under another id."""
Sites = Mapping[str, Examples]


def row_path(work: Path, case: str, method: str) -> Path:
    """Return where a finished row is."""
    return work / f"{case}-{method}.json".replace(" ", "-")


def measured(work: Path, case: str, method: str) -> Row:
    """Return a method's row, measured unless it was before.

    curve: the levels after each number of further rounds, `0` at the completion; before: those of the original model.
    """
    path = row_path(work, case, method)
    if not path.exists():
        path.write_text(
            json.dumps({"case": case, "method": method, **_measure(case, method)}), encoding="utf-8"
        )
    found: Row = json.loads(path.read_text(encoding="utf-8"))
    return found


def _measure(case: str, method: str) -> Row:
    task, target, sites = _task(method), CASES[case], _sites(case)
    rest = retained(sites, [target])
    try:
        original = _original(case, prepare_for(method))
        learnt = unlearn(method, task, original, sites, [target]).learnt
    except FlowerUnlearningError as exc:
        return {"failed": " ".join(str(exc).split())}
    learnt = learn(task, rest, learnt, rounds=RECOVERY)
    learns = original.learns(task)
    before, then = (_look(case, learns, model.parameters) for model in (original, learnt))
    relearnt = relearn_time(
        learns,
        learnt.parameters,
        original=original.parameters,
        forgotten=_forgotten(case),
        training=TRAINING,
        most_rounds=MOST,
    )
    row: Row = {
        "relearn_loss": relearnt.loss,
        "relearn_score": relearnt.score,
        "before": levels(before),
        "curve": {0: levels(then)},
        "reopened_after": None,
    }
    done = 0
    for number in CHECKS:
        learnt, done = learn(task, rest, learnt, rounds=number - done), number
        now = _look(case, learns, learnt.parameters)
        found = compare(before, then, now)
        row["curve"][number] = levels(now)
        row |= {"then": found.then, "now": found.now}
        if found.has_come_back and row["reopened_after"] is None:
            row["reopened_after"] = number
    return row


@cache
def _original(case: str, prepare: str) -> Learnt:
    task = _task(prepare)
    return learn(task, _sites(case), begin(task, TRAINING, prepare), rounds=ROUNDS)


@cache
def _task(method: str) -> Task:
    """Return the task of the page, for exact ridge with the one linear layer that it solves for."""
    return make_task(replace(SETTINGS, model="logistic") if method == "exact-ridge" else SETTINGS)


@cache
def _sites(case: str) -> Sites:
    sites, _ = sites_and_test(SETTINGS)
    if "copies" not in case:
        return sites
    copies = sites["0"].select(np.arange(0, len(sites["0"]), 2))
    inputs, targets = copies.batch(slice(None))
    renamed = Examples(inputs, targets, np.char.add("copy-", copies.ids))
    return {**sites, "1": join(sites["1"], renamed)}


@cache
def _forgotten(case: str) -> Examples:
    sites, target = _sites(case), CASES[case]
    if target.client_id is not None:
        return sites[target.client_id]
    return reduce(join, (one.select(forgotten_mask(one, target.forget)) for one in sites.values()))


@cache
def _test() -> Examples:
    return sites_and_test(SETTINGS)[1]


def _look(case: str, task: Task, model: Vector) -> Measurement:
    """Measure a model as a federation does, with the test records of the class where one is forgotten."""
    target = CASES[case]
    sets = {
        "test": _test(),
        "retained": reduce(join, retained(_sites(case), [target]).values()),
        "forgotten": _forgotten(case),
    }
    observed = {
        name: observe_model(task, model, one, max_samples=300, generator=np.random.default_rng(0))
        for name, one in sets.items()
    }
    found = measure(
        stage="recovery",
        round=0,
        seed=0,
        test=observed["test"],
        retained=observed["retained"],
        forgotten=observed["forgotten"],
    )
    if target.class_label is None:
        return found
    of_class = _test().select(forgotten_mask(_test(), Forget(classes=target.forget.classes)))
    correct = evaluate(task, model, of_class).score > 0
    return replace(found, class_test=AttackFigure(called=share(correct), num_forgotten=len(of_class)))
