"""The federations, methods and measures of `second_order_images`: everything but the tables.

Federated averaging in this process, one client after the other; client 0 is the one to be forgotten, and Retrain
is the same training without it. Whatever has been computed lies in the work directory and is not computed again.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from unlearning.curvature import CurvatureKind, CurvatureProduct
from unlearning.methods import (
    METHODS,
    ClientSite,
    Method,
    Problem,
    UnlearningState,
    validated_parameters,
)
from unlearning.parameters import Vector, add_weighted
from unlearning.requests import Forget
from unlearning.solvers import lanczos_extremes
from unlearning.tasks import Examples, Task, TaskSettings, load_server_test, load_site, make_task
from unlearning.tasks.task import PerExample
from unlearning.training import TrainingSettings, evaluate, initial_parameters, predict, train
from unlearning.verification.backdoor import Trigger, attack_success_rate, poisoned, triggered_test
from unlearning.verification.equivalence import kl_divergence, logit_mse, parameter_gap, prediction_agreement
from unlearning.verification.membership_inference import confidence_attack

Row = dict[str, Any]
TARGET = "0"
TRIGGER_LABEL = 7
POISONED_SHARE = 0.5
ATTACK_SAMPLES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the comparison is; `sweep_seeds` of the seeds are used beside the main table.

    max_examples, test_examples: to train and test on; 0 for all.
    """

    max_examples: int
    test_examples: int
    rounds: int
    local_epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    seeds: int
    sweep_seeds: int
    backdoor_rounds: int
    momentum: float = 0.0
    clients: int = 10
    iterations: int = 10


@dataclass(frozen=True, slots=True)
class Setting:
    """One federation; Retrain does not depend on what the forgotten client had.

    rounds: instead of the size's own number; a backdoor takes longer to be learnt.
    """

    seed: int
    alpha: float
    is_poisoned: bool = False
    rounds: int = 0

    @property
    def name(self) -> str:
        """For the work directory."""
        rounds = f"-rounds-{self.rounds}" if self.rounds else ""
        return f"seed-{self.seed}-alpha-{self.alpha}{rounds}{'-poisoned' if self.is_poisoned else ''}"


@dataclass(frozen=True, slots=True)
class Way:
    """A method with its parameters, as a row of the tables."""

    title: str
    method: str
    parameters: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """For the work directory."""
        return "-".join([self.method, *(f"{key}-{value}" for key, value in self.parameters)])


class Federation:
    """One setting: its data, its models, its rows, kept in `directory`."""

    def __init__(
        self, size: Size, setting: Setting, data_dir: str, directory: Path, say: Callable[[str], None]
    ) -> None:
        self.size, self.setting, self._directory, self._say = size, setting, directory, say
        self._settings = TaskSettings(
            dataset="fashion-mnist",
            model="cnn",
            partition="dirichlet",
            alpha=setting.alpha,
            num_clients=size.clients,
            seed=setting.seed,
            data_dir=data_dir,
            max_examples=size.max_examples,
        )
        self.task: Task = make_task(self._settings)
        test = load_server_test(self._settings)
        assert test is not None
        count = min(size.test_examples or len(test), len(test))
        chosen = np.random.default_rng(setting.seed).permutation(len(test))[:count]
        self.test: Examples = test.select(np.sort(chosen))
        self._truth_outputs: Vector | None = None
        self.trigger = Trigger(label=TRIGGER_LABEL, value=float(test.inputs.max()))
        self.clients = {
            str(number): load_site(self._settings, number).train for number in range(size.clients)
        }
        if setting.is_poisoned:
            generator = np.random.default_rng([setting.seed, 1])
            self.clients[TARGET], _ = poisoned(self.clients[TARGET], self.trigger, POISONED_SHARE, generator)

    def original(self) -> Row:
        """The model of all clients."""
        return self._trained(self.setting.name, list(self.clients))

    def retrained(self) -> Row:
        """The model of the retained clients alone."""
        clean = replace(self.setting, is_poisoned=False)
        return self._trained(
            f"{clean.name}-retrained", [client for client in self.clients if client != TARGET]
        )

    def unlearned(self, way: Way) -> Row:
        """What a method makes of the original."""
        key = f"{self.setting.name}-{way.name}"
        start, method = self.model(self.original()), METHODS[way.method]

        def compute() -> tuple[Vector, Row]:
            begun = time.process_time()
            state = run_method(self._problem(method, dict(way.parameters)), method, start, self._sites())
            return state.parameters, {
                "seconds": time.process_time() - begun,
                "exchanges": state.exchanges,
                "change": state.findings["relative change of the model ‖Δθ‖/‖θ‖"],
                "findings": dict(state.findings),
            }

        return self._kept(key, compute)

    def spectrum(self) -> dict[str, tuple[float, float]]:
        """The ends of the spectrum of client 0's curvature at the original, by 20 Lanczos steps, for each kind."""
        path = self._directory / f"{self.setting.name}-spectrum.json"
        if not path.exists():
            theta, own = self.model(self.original()), self.clients[TARGET]
            self._say(path.stem)
            ends = {}
            for kind in (CurvatureKind.HESSIAN, CurvatureKind.GAUSS_NEWTON):
                product = CurvatureProduct(self.task, theta, own, kind=kind)
                generator = np.random.default_rng(self.setting.seed)
                ends[str(kind)] = lanczos_extremes(product, product.dimension, steps=20, generator=generator)
            _write_json(path, ends)
        found: dict[str, tuple[float, float]] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def model(self, row: Row) -> Vector:
        """The flat vector of a row."""
        vector: Vector = np.load(self._directory / f"{row['key']}.npy")
        return vector

    def measured(self, row: Row) -> Row:
        """The row with its measures beside those of Retrain."""
        path = self._directory / f"{row['key']}.of-{self.setting.name}.json"
        if path.exists():
            found: Row = json.loads(path.read_text(encoding="utf-8"))
            return found
        theta, truth = self.model(row), self.model(self.retrained())
        original = self.model(self.original())
        measures = {**row, **self._measures(theta, truth), **_moves(original, theta, truth)}
        _write_json(path, measures)
        return measures

    def _measures(self, theta: Vector, truth: Vector) -> Row:
        task, target = self.task, self.clients[TARGET]
        if self._truth_outputs is None:
            self._truth_outputs = predict(task, truth, self.test)
        outputs = (self._truth_outputs, predict(task, theta, self.test))
        columns = task.per_example(torch.from_numpy(outputs[1]), self.test.targets)
        test = PerExample(*(column.double().numpy() for column in columns))
        forgotten = evaluate(task, theta, target)
        retained = [evaluate(task, theta, own) for client, own in self.clients.items() if client != TARGET]
        confidence = np.concatenate([values.confidence for values in retained])
        generator = np.random.default_rng(self.setting.seed)
        attack = confidence_attack(
            generator.permutation(confidence)[:ATTACK_SAMPLES],
            generator.permutation(test.confidence)[:ATTACK_SAMPLES],
            forgotten.confidence,
            seed=self.setting.seed,
        )
        attacked = triggered_test(self.test, self.trigger)
        answers = predict(task, theta, attacked).argmax(axis=1)
        return {
            "test": float(test.score.mean()),
            "forget": float(forgotten.score.mean()),
            "forget_loss": float(forgotten.loss.mean()),
            "retain_loss": float(np.mean(np.concatenate([values.loss for values in retained]))),
            "mia": attack.score,
            "mia_power": attack.balanced_accuracy,
            "auc": float(
                roc_auc_score(
                    np.repeat([1, 0], [len(forgotten), len(test)]),
                    -np.concatenate([forgotten.loss, test.loss]),
                )
            ),
            "kl": kl_divergence(*outputs),
            "logit_mse": logit_mse(*outputs),
            "agreement": prediction_agreement(*outputs),
            "asr": attack_success_rate(answers, attacked.targets.numpy(), self.trigger.label),
        }

    def _trained(self, key: str, clients: list[str]) -> Row:
        def compute() -> tuple[Vector, Row]:
            begun = time.process_time()
            theta = initial_parameters(self.task, self.setting.seed)
            total = sum(len(self.clients[client]) for client in clients)
            for number in range(self.setting.rounds or self.size.rounds):
                terms = {}
                for client in clients:
                    seed = 1000 * (number + 1) + int(client)
                    own = self.clients[client]
                    local = train(self.task, theta, own, self._training(seed))
                    terms[client] = (len(own) / total, local.parameters)
                theta = add_weighted(np.zeros_like(theta), terms)
            return theta, {"seconds": time.process_time() - begun, "num_examples": total}

        return self._kept(key, compute)

    def _training(self, seed: int) -> TrainingSettings:
        return TrainingSettings(
            epochs=self.size.local_epochs,
            batch_size=self.size.batch_size,
            learning_rate=self.size.learning_rate,
            momentum=self.size.momentum,
            weight_decay=self.size.weight_decay,
            seed=seed,
        )

    def _problem(self, method: Method, parameters: Mapping[str, Any]) -> Problem:
        training = self._training(self.setting.seed)
        return Problem(
            task=self.task,
            targets={TARGET: Forget(everything=True)},
            retained=tuple(client for client in self.clients if client != TARGET),
            rounds_trained=self.setting.rounds or self.size.rounds,
            num_examples={client: len(own) for client, own in self.clients.items()},
            schedule=lambda _: training,
            training=training,
            parameters=validated_parameters(method, parameters),
        )

    def _sites(self) -> dict[str, ClientSite]:
        none = np.zeros(0, dtype=np.intp)
        return {
            client: ClientSite(task=self.task, forget=own, retain=own.select(none))
            if client == TARGET
            else ClientSite(task=self.task, forget=own.select(none), retain=own)
            for client, own in self.clients.items()
        }

    def _kept(self, key: str, compute: Callable[[], tuple[Vector, Row]]) -> Row:
        path = self._directory / f"{key}.json"
        if path.exists():
            found: Row = json.loads(path.read_text(encoding="utf-8"))
            return found
        self._say(key)
        theta, row = compute()
        row = {"key": key, **row}
        self._directory.mkdir(parents=True, exist_ok=True)
        np.save(self._directory / f"{key}.npy", theta)
        _write_json(path, row)  # last: where it is, the model is there too
        return row


def run_method(
    problem: Problem, method: Method, start: Vector, sites: Mapping[str, ClientSite]
) -> UnlearningState:
    """Run both halves to the end. A client's memo lasts, as it does in a session."""
    state = method.begin(problem, start)
    while not state.finished:
        instructions = method.configure(problem, state)
        replies = {
            client: method.client_step(instruction, sites[client])
            for client, instruction in instructions.items()
        }
        state = method.aggregate(problem, state, replies)
    return state


def _moves(original: Vector, theta: Vector, truth: Vector) -> Row:
    """The parameter gap, the distance left of the original's, and the cosine to the true move."""
    move, true = (model.astype(np.float64) - original for model in (theta, truth))
    size, start = float(np.linalg.norm(move)), float(np.linalg.norm(true))
    return {
        "gap": parameter_gap(truth, theta),
        "distance": float(np.linalg.norm(move - true)) / start,
        "cosine": float(move @ true) / (size * start) if size else None,
    }


def _write_json(path: Path, value: Row) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1), encoding="utf-8")
    part.replace(path)
