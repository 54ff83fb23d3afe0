"""Layers that each site trains for itself: they never travel, and a deletion forgets them where they are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch import nn
from typer.testing import CliRunner

from client import make_client_app
from client.cli import app as site
from client.context_memory import memory_of
from client.memory import DirectoryMemory, keep_values, newest_values
from server import make_server_app
from server.app import AppRun
from server.federation.checkpoints import CheckpointStore
from strategies.fedavg import FedAvg
from strategies.in_process_grid import InProcessGrid, run_apps
from strategies.messages import KNOWN
from strategies.settings.task_source import TaskSource
from strategies.unlearning_strategy import UnlearningStrategy
from tests.federation import DEFAULTS
from tests.raising import raises, refuses
from unlearning.errors import AppError, ConfigurationError, UnsupportedRequest
from unlearning.evaluation import predict
from unlearning.local import begin, learn
from unlearning.local_layers import at_site
from unlearning.methods.eligibility import FederationProfile, check_eligible
from unlearning.methods.registry import METHODS
from unlearning.parameters import is_held, layout
from unlearning.requests import NOTHING, Granularity, Target
from unlearning.tasks import Examples, Site, Task
from unlearning.tasks.task import numbered
from unlearning.training import TrainingSettings, structure

COUNT, HELD_OUT = 60, 20
GONE = ("3", "5", "8")


def network(norm: bool = False) -> nn.Module:
    """A body that all share, below a head."""
    layers = [nn.Linear(4, 6), *([nn.BatchNorm1d(6)] if norm else []), nn.Tanh()]
    return nn.Sequential(nn.Sequential(*layers), nn.Linear(6, 2))


def task(**changes: Any) -> Task:
    return Task.classifier(
        "own heads", **{"build_model": network, "num_classes": 2, "local_layers": "1.", **changes}
    )


def examples(site: int) -> Examples:
    """Two classes; site 2 names them the other way round, so that no one head fits sites 0 and 2."""
    random = np.random.default_rng(site)
    labels = torch.from_numpy(random.integers(0, 2, COUNT))
    inputs = torch.from_numpy(random.normal(size=(COUNT, 4)).astype(np.float32)) + 2 * labels[:, None]
    return Examples(inputs, 1 - labels if site == 2 else labels, numbered(COUNT))


class Federation:
    """Sites whose data is that of `sites`, in which samples may be missing from the start."""

    def __init__(self, learnt: Task, sites: Sequence[int] = (0, 1, 2), without: Sequence[str] = ()) -> None:
        self.task, self.sites, self.without = learnt, sites, without
        self.client_app = make_client_app(lambda _: learnt, self.load_site, table="own")

    def load_site(self, _settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
        own = examples(self.sites[int(node_config["partition-id"])])
        train = own.select(np.arange(COUNT - HELD_OUT))
        train = train.select(~np.isin(train.ids, self.without))
        return Site(train, own.select(np.arange(COUNT - HELD_OUT, COUNT)))

    def run(self, directory: Path, **changes: Any) -> InProcessGrid:
        given = {k: v for k, v in DEFAULTS.items() if k not in ("dataset", "model", "partition", "alpha")}
        own = {"rounds": 3, "num-clients": len(self.sites), "batch-size": 8, "local-epochs": 2}
        server_app = make_server_app(lambda _: self.task, table="own")
        settings = {**given, **own, "state-dir": str(directory), **changes}
        return run_apps(server_app, self.client_app, settings, num_clients=len(self.sites))

    def outputs(self, directory: Path, grid: InProcessGrid, client: int) -> tuple[np.ndarray, float]:
        """What a site's own model says of its held-out examples, and how often that is right."""
        model = CheckpointStore(directory / "checkpoints").newest().parameters
        values = newest_values(memory_of(list(grid.contexts.values())[client]))
        held_out = self.load_site({}, {"partition-id": client}).test
        named = predict(at_site(self.task, values), model, held_out).argmax(axis=1)
        return named, float((named == held_out.targets.numpy()).mean())


def test_a_client_is_forgotten_where_each_has_a_head_of_its_own(tmp_path):
    """Its values are erased; of all others no value travels; what each then predicts is as after retraining."""
    federation, seen = Federation(task()), []
    client_app = federation.client_app

    def watched(message: Message, context: Any) -> Message:
        reply = client_app(message, context)
        seen.extend([message.content, reply.content])
        return reply

    federation.client_app = watched
    grid = federation.run(tmp_path, requests="at=2 client=1 method=puf-special")
    stored = [newest_values(memory_of(one)) for one in grid.contexts.values()]
    assert [sorted(one) for one in stored] == [["1.bias", "1.weight"], [], ["1.bias", "1.weight"]]
    assert CheckpointStore(tmp_path / "checkpoints").newest().parameters.size == 4 * 6 + 6
    arrays = [
        array.numpy()
        for content in seen
        for record in content.array_records.values()
        for array in record.values()
    ]
    assert any(array.size == 4 * 6 + 6 for array in arrays)
    sent = np.concatenate([array.reshape(-1).astype(np.float64) for array in arrays])
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for value in (value for one in stored for name in one for value in one[name].reshape(-1)):
        assert not (sent == float(value)).any()
        assert value.tobytes() not in written
    retrained = Federation(task(), sites=(0, 2))
    other = retrained.run(tmp_path / "retrained")
    for client, there in ((0, 0), (2, 1)):
        ours, score = federation.outputs(tmp_path, grid, client)
        theirs, _ = retrained.outputs(tmp_path / "retrained", other, there)
        assert score >= 0.9  # one head for both would be right half of the time
        assert (ours == theirs).mean() >= 0.9


def test_a_sites_values_do_not_depend_on_samples_that_it_has_forgotten(tmp_path):
    """Bit for bit those of a site that never had them and got the same messages since; recovery trains them."""
    requests = f"at=3 client=1 samples={','.join(GONE)} method=natural"
    grid = Federation(task()).run(tmp_path, requests=requests)
    node = list(grid.contexts)[1]
    ours, config = grid.contexts[node], grid.contexts[node].run_config
    to_it = [message for message in grid.sent if message.metadata.dst_node_id == node]
    begun = next(n for n, message in enumerate(to_it) if message.metadata.message_type == KNOWN)
    fresh = Federation(task(), without=GONE)
    (theirs,) = InProcessGrid(fresh.client_app, [ours.node_config], config).contexts.values()
    for message in to_it[begun:]:
        fresh.client_app(message, theirs)
    found, expected = (newest_values(memory_of(one)) for one in (ours, theirs))
    assert found
    assert {name: one.tobytes() for name, one in found.items()} == {
        name: one.tobytes() for name, one in expected.items()
    }


def test_a_site_writes_its_own_layers(tmp_path):
    """For torch.load, over the shared model; without any the command fails."""
    arguments = ["layers", "--state-dir", str(tmp_path / "state"), "--output", str(tmp_path / "own.pt")]
    assert CliRunner().invoke(site, arguments).exit_code
    own = {"1.bias": np.array([1, 2], dtype=np.float32)}
    keep_values(DirectoryMemory(tmp_path / "state"), NOTHING, 1, own)
    assert not CliRunner().invoke(site, arguments).exit_code
    model = network()
    model.load_state_dict(torch.load(tmp_path / "own.pt"), strict=False)
    assert model[1].bias.tolist() == [1, 2]


@pytest.mark.parametrize(("value", "in_state"), [(-torch.inf, True), (0.0, False)])
def test_a_buffer_of_local_layers_that_does_not_travel_is_accepted(value, in_state):
    """A mask of infinity, and what is not in the state: neither is a running statistic."""

    def masked() -> nn.Module:
        model = network()
        model[1].register_buffer("mask", torch.tensor([value]), persistent=in_state)
        return model

    assert [slot.name for slot in layout(structure(task(build_model=masked)))] == ["0.0.weight", "0.0.bias"]


def test_running_statistics_of_the_shared_part_travel():
    """They are averaged as in a model without local layers."""
    model = structure(task(build_model=lambda: network(norm=True)))
    assert [slot.name for slot in layout(model) if slot.is_buffer] == ["0.1.running_mean", "0.1.running_var"]
    assert not is_held(model.get_submodule("0.1"))


def tied() -> nn.Module:
    first = nn.Linear(4, 4)
    return nn.Sequential(nn.Sequential(first), nn.Sequential(first, nn.Linear(4, 2)))


def half_frozen() -> nn.Module:
    model = network()
    model[0].requires_grad_(False)
    return model


UNFIT = {
    "no such parameter": {"local_layers": ("1.", "head.")},
    "everything": {"local_layers": ("0.", "1.")},
    "statistics": {"local_layers": "0.", "build_model": lambda: network(norm=True)},
    "tied": {"local_layers": "0.", "build_model": tied},
    "frozen": {"local_layers": "0.", "build_model": half_frozen},
}


@pytest.mark.parametrize("what", UNFIT)
def test_layers_that_cannot_be_local_are_refused(what):
    """Before anything is learnt."""
    with raises(AppError, "local-layers"):
        structure(task(**UNFIT[what]))


def test_a_server_that_would_test_untrained_layers_is_refused():
    """It has no values for them."""
    with raises(AppError, "local-layers"):
        AppRun.of({}, TaskSource.of(lambda _: task(), "own"), lambda _: examples(0))


def test_methods_whose_statement_would_be_about_another_model_are_refused():
    """At admission, in `prepare` and as strategies; the library has no sites."""
    profile, target, refused = FederationProfile.of(task()), Target(Granularity.CLIENT, "1"), set()
    for name, method in METHODS.items():
        try:
            check_eligible(method, target, profile, {})
        except UnsupportedRequest as exc:
            refused |= {name} if exc.code == "local-layers" else set()
    exact = {"retrain", "sisa", "exact-ridge", "hf-online", "noisy-fine-tuning"}
    assert refused >= {*exact, "hf-kcu", "hf-kcu-influence", "newton-cg"}
    assert refused.isdisjoint({"puf-special", "not", "natural", "federaser", "pga", "fedquit"})
    with refuses("prepare"):
        FedAvg(task(), prepare="sisa shards=2")
    with pytest.raises(ConfigurationError):
        UnlearningStrategy(METHODS["retrain"], [target], FedAvg(task()))
    with raises(AppError, "local-layers"):
        learn(task(), {"0": examples(0)}, begin(task(), TrainingSettings()))
