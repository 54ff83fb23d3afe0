"""An own app on real processes over sessions: own training, a frozen backbone, and data that stay in files."""

import json
import subprocess
from pathlib import Path

import pytest

from server.api.client import DeletionClient
from server.federation.checkpoints import CheckpointStore
from server.ledger import Ledger
from server.processes.flower_control import flower_environment, program
from tests.integration.deployments import FrugalDeployment
from unlearning.errors import UnsupportedRequest
from unlearning.requests import Granularity, Status, Target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WAIT_S = 400.0
TASK = '''
"""A head on a frozen random backbone, trained by a loop of one's own, on pictures in files."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from unlearning.tasks import Examples, Site, Task
from unlearning.tasks.losses import classification_measures, cross_entropy


def build_model():
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(16, 40), nn.BatchNorm1d(40), nn.ReLU())
    return nn.Sequential(backbone.requires_grad_(False), nn.Linear(40, 2))


def train(model, loader, settings):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.05)
    losses = []
    for _ in range(settings.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def make_task(settings):
    return Task(
        name="own pictures", num_classes=2, score_name="accuracy", build_model=build_model, loss=cross_entropy,
        per_example=classification_measures, train=train,
    )


def pictures(seed):
    labels = np.arange(60) % 2
    noise = np.random.default_rng(seed).integers(0, 60, (60, 4, 4))
    return (60 + 100 * labels[:, None, None] + noise).astype(np.uint8), labels


def load_site(settings, node_config):
    path = Path(str(node_config["state-dir"])) / "inputs.npy"
    inputs, labels = pictures(int(node_config["partition-id"]))
    if not path.exists():
        np.save(path, inputs)
    examples = Examples.from_arrays(np.load(path, mmap_mode="r"), labels)
    return Site(examples.select(np.arange(50)), examples.select(np.arange(50, 60)))


def load_test(settings):
    return Examples.from_arrays(*pictures(99))
'''


def test_samples_of_files_are_forgotten_from_a_head_trained_by_its_own_loop(tmp_path: Path):
    """82 numbers travel; a method that needs derivatives is refused when it is asked for; the deletion ends."""
    done = [program("flower-unlearn"), "new", "pictures", "--directory", str(tmp_path)]
    subprocess.run(done, env=flower_environment(), check=True, capture_output=True, timeout=120)
    app = tmp_path / "pictures"
    (app / "pictures" / "task.py").write_text(TASK, encoding="utf-8")
    settings = {"num-clients": 2, "rounds": 0, "round-interval-s": 0.5, "transport": "session"}
    settings |= {"recovery-max-rounds": 2}
    with FrugalDeployment(
        tmp_path / "federation",
        num_clients=2,
        app_dir=app,
        run_config=settings,
        with_deletion_service=True,
        with_sessions=True,
    ) as deployment:
        layout = deployment.layout
        deployment.submit_run()
        ledger = Ledger.open(layout.ledger_url)
        deployment.wait_until(lambda: len(list(ledger.all_rounds())) >= 3, WAIT_S, "three rounds are over")
        service = DeletionClient(layout.deletion_address)
        with pytest.raises(UnsupportedRequest, match=r"trains by its own function pictures\.task\.train"):
            service.submit(Target(Granularity.CLIENT, "0"), method="newton-cg", idempotency_key="")
        target = Target(Granularity.SAMPLE, "1", frozenset({"3", "17", "20"}))
        request = service.submit(target, method="puf-special", idempotency_key="")
        deployment.wait_until(lambda: not ledger.get(request.id).is_open, WAIT_S, "the deletion is over")
        assert ledger.get(request.id).status is Status.COMPLETED
        state = CheckpointStore(layout.state_dir / "checkpoints").newest()
        assert state is not None
        assert state.parameters.shape == (82,)
        (path,) = layout.state_dir.glob("reports/*/report.json")
        report = json.loads(path.read_text(encoding="utf-8"))
        assert report["measurements"][-1]["test"]["score"] > 0.9
