"""Deletions among ten peers without a server, beside retraining: the rows of the decentralised paper's tables I to IV.

    python -m benchmarks.decentralised --data-dir DATA --output docs/results/decentralised

Peers run in one process, by turns, so seconds are the work of all ten, without a network. Accuracy and attack are
those of the peers' mean model (of those that stay). RT: retrained from scratch on what is retained, with the same
rounds. DU: the corrections and one round of fine-tuning. PDUDT (clients only): subtracted influence and half as many
rounds as training had. The sizes are small; the configuration stands in the table's head.
"""

import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import run as run_command
from typing import Annotated, Any

import numpy as np
import torch
import typer

from client.peer.in_process import InProcessNetwork
from client.peer.journal import MemoryJournal, PeerModel
from client.peer.learner import SiteLearner
from client.peer.node import Peer, PeerRules
from unlearning.decentralised import (
    CorrectionSettings,
    Graph,
    PeerCurvature,
    check_mixing,
    erdos_renyi,
    influence_after,
    metropolis_weights,
    ring,
    without_influence,
)
from unlearning.parameters import Vector
from unlearning.requests import Forget, Granularity, Target
from unlearning.tasks import TaskSettings, load_server_test, load_site, make_task
from unlearning.tasks.task import Examples, Task, forgotten_mask, joined
from unlearning.training import TrainingSettings, evaluate, initial_parameters
from unlearning.verification.membership_inference import confidence_attack

NAMES = [str(index) for index in range(10)]
SHARE = 0.1
LEAVER = "4"
CLASS = 0
CLIENT_DAMPING = 1.0
"""A diagonal misses that neighbouring pixels go together, and without this much damping the step is far too long."""


@dataclass(frozen=True)
class Recording(SiteLearner):
    """Keeps the peer's moves, as PDUDT needs them."""

    moves: list[Vector] = field(default_factory=list)

    def move(self, parameters: Vector, *, round_number: int, without: Forget, scale: float) -> Vector:
        """As the site's learner does, and remembered."""
        made = super().move(parameters, round_number=round_number, without=without, scale=scale)
        self.moves.append(made)
        return made


@dataclass(frozen=True, kw_only=True)
class Case:
    """One federation: task, data, graph, rounds, and how corrections are computed."""

    settings: TaskSettings
    task: Task
    sites: Mapping[str, Examples]
    test: Examples
    graph: Graph
    rounds: int
    training: TrainingSettings
    curvature: PeerCurvature
    damping: float

    def network(
        self,
        *,
        sites: Mapping[str, Examples] | None = None,
        graph: Graph | None = None,
        rounds: int = 0,
        curvature: PeerCurvature | None = None,
        starts: Mapping[str, Vector] | None = None,
    ) -> InProcessNetwork:
        """Peers before the first round, or with these models."""
        graph = graph or self.graph
        corrections = CorrectionSettings(
            curvature=curvature or self.curvature,
            l2=self.training.weight_decay,
            damping=self.damping if curvature is None else CLIENT_DAMPING,
            max_iterations=50,
            tolerance=1e-3,
        )
        start = initial_parameters(self.task, self.settings.seed)
        peers = []
        for name in graph.nodes:
            journal = MemoryJournal()
            if starts is not None:
                journal.put_model(PeerModel(round=0, vector=starts[name], has_trained=True))
            learner = Recording(
                peer=name,
                task=self.task,
                examples=(sites or self.sites)[name],
                training=self.training,
                corrections=corrections,
            )
            rules = PeerRules(rounds=rounds or self.rounds)
            peers.append(Peer(name, graph, learner, journal, rules, start))
        return InProcessNetwork(peers)


def trained(network: InProcessNetwork) -> InProcessNetwork:
    """The network after its last round."""
    while network.train():
        pass
    return network


def models(network: InProcessNetwork, names: tuple[str, ...]) -> np.ndarray:
    """These peers' models, shape (peers, d)."""
    return np.array([network.peers[name].model.vector for name in names])


def measured(case: Case, network: InProcessNetwork, forgets: Mapping[str, Forget]) -> dict[str, float]:
    """Of the mean model of those that stay; the attack is asked about what was forgotten."""
    stay = tuple(name for name in network.peers if not forgets.get(name, Forget()).everything)
    model = models(network, stay).mean(axis=0)
    masks = {
        name: forgotten_mask(examples, forgets.get(name, Forget())) for name, examples in case.sites.items()
    }
    gone = together([case.sites[name].select(mask) for name, mask in masks.items() if mask.any()])
    kept = together([case.sites[name].select(~mask) for name, mask in masks.items() if not mask.all()])
    confidences = [evaluate(case.task, model, examples) for examples in (kept, case.test, gone)]
    attack = confidence_attack(*(one.confidence[:1000] for one in confidences), seed=0)
    return {
        "test_accuracy": 100 * float(confidences[1].score.mean()),
        "forget_accuracy": 100 * float(confidences[2].score.mean()),
        "attack": 100 * attack.score,
    }


def together(parts: list[Examples]) -> Examples:
    """All examples of `parts`."""
    whole = parts[0]
    for part in parts[1:]:
        whole = joined(whole, part)
    return whole


def targets(case: Case, level: Granularity) -> dict[str, Target]:
    """What is asked for at which peer: a tenth of everybody's samples, one class, or one client."""
    if level is Granularity.CLASS:
        return {"0": Target(level, class_label=CLASS)}
    if level is Granularity.CLIENT:
        return {LEAVER: Target(level, LEAVER)}
    return {
        name: Target(level, name, frozenset(examples.ids[: max(1, int(SHARE * len(examples)))].tolist()))
        for name, examples in case.sites.items()
    }


def rows_of(case: Case, level: Granularity) -> list[dict[str, Any]]:
    """RT, DU and (for clients) PDUDT, and the model before the deletion."""
    asked = targets(case, level)
    forgets = {
        name: (next(iter(asked.values())).forget if level is Granularity.CLASS else asked[name].forget)
        for name in NAMES
        if level is Granularity.CLASS or name in asked
    }
    # a client that leaves has no curvature of its own to divide by, and others' whole matrices are too large
    curvature = PeerCurvature.FISHER_DIAGONAL if level is Granularity.CLIENT else None
    network = case.network(curvature=curvature)
    influence = np.zeros((len(NAMES), network.peers["0"].model.vector.size))
    weights, at = metropolis_weights(case.graph), NAMES.index(LEAVER)
    while network.train():
        learner = network.peers[LEAVER].learner
        assert isinstance(learner, Recording)
        if level is Granularity.CLIENT:
            influence = influence_after(influence, weights, at, learner.moves[-1])
    before = models(network, tuple(NAMES))
    rows = [{"method": "before", "seconds": 0.0, **measured(case, network, forgets)}]

    started = time.perf_counter()
    for name, target in asked.items():
        network.peers[name].file(target, "request")
    network.train()  # one round for all requests, though each of them opens one
    rows.append(
        {"method": "DU", "seconds": time.perf_counter() - started, **measured(case, network, forgets)}
    )

    sites = {
        name: examples.select(~forgotten_mask(examples, forgets.get(name, Forget())))
        for name, examples in case.sites.items()
    }
    graph = case.graph.without(LEAVER) if level is Granularity.CLIENT else case.graph
    started = time.perf_counter()
    again = trained(case.network(sites=sites, graph=graph))
    rows.insert(
        1, {"method": "RT", "seconds": time.perf_counter() - started, **measured(case, again, forgets)}
    )
    if level is Granularity.CLIENT:
        started = time.perf_counter()
        unlearned = without_influence(before, influence, sigma=0.0, generator=np.random.default_rng(0))
        starts = dict(zip(NAMES, unlearned.astype(before.dtype), strict=True))
        repaired = case.network(sites=sites, graph=graph, rounds=case.rounds // 2, starts=starts)
        trained(repaired)
        seconds = time.perf_counter() - started
        rows.append({"method": "PDUDT", "seconds": seconds, **measured(case, repaired, forgets)})
    return rows


def cases(data_dir: str, max_examples: int, rounds: Mapping[str, int]) -> list[tuple[dict[str, str], Case]]:
    """MNIST with logistic regression on a ring and on ER, FashionMNIST with a small CNN on a ring."""
    found = []
    graphs = {"ring": ring(NAMES), "ER": erdos_renyi(NAMES, 0.4, np.random.default_rng(0))}
    for dataset, model, curvature, damping in (
        ("mnist", "logistic", PeerCurvature.HESSIAN, 0.0),
        ("fashion-mnist", "small-cnn", PeerCurvature.FISHER_DIAGONAL, 1.0),
    ):
        for partition in ("iid", "dirichlet"):
            settings = TaskSettings(
                dataset=dataset,
                model=model,
                partition=partition,
                alpha=0.3,
                num_clients=len(NAMES),
                data_dir=data_dir,
                max_examples=max_examples,
            )
            test = load_server_test(settings)
            assert test is not None
            for topology, graph in graphs.items():
                if dataset == "fashion-mnist" and topology != "ring":
                    continue  # the CNN takes minutes a graph
                case = Case(
                    settings=settings,
                    task=make_task(settings),
                    sites={name: load_site(settings, index).train for index, name in enumerate(NAMES)},
                    test=test.select(np.arange(2000)),
                    graph=graph,
                    rounds=rounds[dataset],
                    training=TrainingSettings(batch_size=20, learning_rate=0.1, weight_decay=0.05),
                    curvature=curvature,
                    damping=damping,
                )
                if dataset == "fashion-mnist":
                    case = replace(case, training=replace(case.training, weight_decay=0.001))
                label = {"dataset": dataset, "model": model, "partition": partition, "topology": topology}
                found.append((label, case))
    return found


def main(
    data_dir: Annotated[str, typer.Option(help="Where the data sets' files are.")],
    output: Annotated[Path, typer.Option(help="Where the tables go, without an ending.")],
    max_examples: int = 2000,
    rounds: int = 50,
    cnn_rounds: int = 8,
) -> None:
    """Run every case and write the tables."""
    rows: list[dict[str, Any]] = []
    for label, case in cases(data_dir, max_examples, {"mnist": rounds, "fashion-mnist": cnn_rounds}):
        rho = check_mixing(metropolis_weights(case.graph)).rho
        for level in (Granularity.SAMPLE, Granularity.CLASS, Granularity.CLIENT):
            for row in rows_of(case, level):
                rows.append({**label, "rho": rho, "level": str(level), **row})
                typer.echo(json.dumps(rows[-1]))
            write(output, rows, max_examples, rounds, cnn_rounds)


def write(output: Path, rows: list[dict[str, Any]], max_examples: int, rounds: int, cnn_rounds: int) -> None:
    """The tables as Markdown and all figures as JSON."""
    commit = run_command(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    lines = [
        "# Decentralised deletions beside retraining",
        "",
        f"Ten peers, {max_examples} training examples in all, one epoch a round, learning rate 0.1, batches of 20. "
        f"MNIST: logistic regression, {rounds} rounds, L2 0.05, Hessian. FashionMNIST: small CNN, {cnn_rounds} rounds, "
        "L2 0.001, Fisher diagonal damped by 1. Clients are taken out with that throughout. Example weights, no noise, "
        f"one seed. {platform.machine()}, CPU, {torch.get_num_threads()} thread(s), torch {torch.__version__}, "
        f"commit {commit}.",
        "",
        "RT: retrained; DU: correction and one round of fine-tuning; PDUDT: with half the rounds. Attack: share of the "
        "forgotten examples that a confidence attack calls members (compare with RT). Seconds: the work of all ten "
        "peers, on a machine that did other work meanwhile. Deleted: a tenth of "
        f"everybody's samples; class {CLASS}; client {LEAVER}.",
    ]
    for level in dict.fromkeys(row["level"] for row in rows):
        lines += [
            "",
            f"## {level}",
            "",
            "| data | partition | graph (ρ) | method | test acc. % | forgotten acc. % | attack % | seconds |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['dataset']} | {row['partition']} | {row['topology']} ({row['rho']:.2f}) | {row['method']} | "
            f"{row['test_accuracy']:.1f} | {row['forget_accuracy']:.1f} | {row['attack']:.1f} | {row['seconds']:.2f} |"
            for row in rows
            if row["level"] == level
        ]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    output.with_suffix(".json").write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
