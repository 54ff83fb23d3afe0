"""One federation of ten peers trained, asked to forget in every way, and measured beside retraining.

Seconds are processor seconds of all peers together, without a network.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from benchmarks.decentralised.federation import (
    NAMES,
    SEQUENCE_LENGTH,
    SEQUENCE_SHARE,
    Federation,
    Recording,
    Trained,
    draw_ids,
    forgets_of,
    retained_examples,
    targets,
)
from benchmarks.decentralised.in_process import InProcessNetwork
from benchmarks.decentralised.measures import measure_row, models, quick_accuracy
from benchmarks.decentralised.pdudt import influence_after, without_influence
from benchmarks.tables import Row
from benchmarks.timing import time_call
from unlearning.decentralised.corrections import CorrectionSettings
from unlearning.decentralised.graphs import Graph
from unlearning.decentralised.mixing import metropolis_weights
from unlearning.requests import Forget, Granularity, Target
from unlearning.tasks.task import Examples

DRAWN_ROUNDS = 5
"""Of fine-tuning after each of the requests in a sequence; the tables have the state after the first."""


def train_federation(federation: Federation) -> Trained:
    """Return the federation after its last round."""
    network = federation.network()
    influence = np.zeros((len(NAMES), network.peers["0"].model.vector.size), dtype=np.float32)
    weights, at = metropolis_weights(federation.graph), NAMES.index(federation.leaver)
    curve = []
    while network.train():
        learner = network.peers[federation.leaver].learner
        assert isinstance(learner, Recording)
        influence = influence_after(influence, weights, at, learner.moves[0]).astype(np.float32)
        curve.append(quick_accuracy(federation, network))
    return Trained(models=models(network, NAMES), influence=influence, curve=np.array(curve))


def rows_of(federation: Federation, before: Trained, level: Granularity) -> list[Row]:
    """Return the model before the deletion, RT, DU and (for clients) PDUDT."""
    forgets = forgets_of(targets(federation, level), level)
    is_client = level is Granularity.CLIENT
    experiment = federation.experiment
    network = federation.network(starts=before.starts(), begun=experiment.rounds)
    rows = [{"method": "before", "seconds": 0.0, **measure_row(federation, network, forgets)}]
    graph = federation.graph.without(federation.leaver) if is_client else federation.graph
    sites = retained_examples(federation, forgets)

    again = federation.network(sites=sites, graph=graph)
    seconds = time_work(lambda: until_trained(again))
    rows.append({"method": "RT", "seconds": seconds, **measure_row(federation, again, forgets)})
    corrections = experiment.client_corrections if is_client else experiment.corrections
    rows.append(corrected_row(federation, before, level, corrections))
    if is_client:
        rows.append(pdudt_row(federation, before, sites, graph, forgets))
    return rows


def corrected_row(
    federation: Federation, before: Trained, level: Granularity, corrections: CorrectionSettings
) -> Row:
    """Return DU: the corrections, and one round of fine-tuning."""
    asked = targets(federation, level)
    forgets = forgets_of(asked, level)
    network = federation.network(
        corrections=corrections, starts=before.starts(), begun=federation.experiment.rounds
    )
    network.settle()
    correcting = time_work(lambda: file_all(network, asked, "request"))
    corrected = quick_accuracy(federation, network, forgets)
    tuning = time_work(network.train)  # one round for all requests, though each of them opens one
    return {
        "method": "DU",
        "curvature": str(corrections.curvature),
        "damping": corrections.damping,
        "seconds": correcting + tuning,
        "correction_seconds": correcting,
        "corrected_accuracy": corrected,
        **measure_row(federation, network, forgets),
    }


def pdudt_row(
    federation: Federation,
    before: Trained,
    sites: Mapping[str, Examples],
    graph: Graph,
    forgets: Mapping[str, Forget],
) -> Row:
    """Return PDUDT: the leaver's influence subtracted, then half as many rounds as training had."""
    generator = np.random.default_rng(federation.settings.seed)
    rounds = federation.experiment.rounds // 2

    def repair() -> InProcessNetwork:
        unlearned = without_influence(before.models, before.influence, sigma=0.0, generator=generator)
        starts = dict(zip(NAMES, unlearned.astype(before.models.dtype), strict=True))
        network = federation.network(sites=sites, graph=graph, rounds=rounds, starts=starts)
        until_trained(network)
        return network

    seconds, network = time_call(repair, time.process_time)
    return {"method": "PDUDT", "seconds": seconds, **measure_row(federation, network, forgets)}


def sequence_rows(federation: Federation, before: Trained) -> list[Row]:
    """Return three requests of every peer, one after the other, with accuracies round by round; RT from
    scratch each time.
    """
    network = federation.network(starts=before.starts(), begun=federation.experiment.rounds)
    network.settle()
    gone = {name: Forget() for name in NAMES}
    drawn = draw_ids(federation, SEQUENCE_SHARE, SEQUENCE_LENGTH)
    rows: list[Row] = []
    for request in range(1, SEQUENCE_LENGTH + 1):
        asked = {name: Target(Granularity.SAMPLE, name, ids[request - 1]) for name, ids in drawn.items()}
        gone = {name: gone[name] | asked[name].forget for name in NAMES}

        again = federation.network(sites=retained_examples(federation, gone))
        seconds, curve = 0.0, []
        for _ in range(federation.experiment.rounds):
            seconds += time_work(again.train)
            curve.append(quick_accuracy(federation, again))
        row = {"method": "RT", "request": request, "seconds": seconds, "curve": curve}
        rows.append({**row, **measure_row(federation, again, gone)})

        seconds = time_work(partial(file_all, network, asked, f"request-{request}"))
        curve = [quick_accuracy(federation, network)]
        seconds += time_work(network.train)
        measures = measure_row(federation, network, gone)
        curve.append(quick_accuracy(federation, network))
        for _ in range(DRAWN_ROUNDS - 1):
            network.train()
            curve.append(quick_accuracy(federation, network))
        row = {"method": "DU", "request": request, "seconds": seconds, "curve": curve}
        rows.append({**row, **measures})
    return rows


def file_all(network: InProcessNetwork, asked: Mapping[str, Target], key: str) -> None:
    """File the requests, and let all peers do what these need."""
    for name, target in asked.items():
        network.peers[name].file(target, key)
    network.settle()


def until_trained(network: InProcessNetwork) -> None:
    """Train to the last round."""
    while network.train():
        pass


def time_work(work: Callable[[], object]) -> float:
    """Return processor seconds of `work`: other programs on the machine do not count."""
    return time_call(work, time.process_time)[0]
