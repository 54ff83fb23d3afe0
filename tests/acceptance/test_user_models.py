"""Models as users bring them to Flower, each in a whole federation: it learns, forgets a client and reports."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from client import make_client_app
from client.context_memory import memory_of
from server import make_server_app
from server.federation.checkpoints import CheckpointStore
from strategies.fedavg import FedAvg
from strategies.in_process_grid import run_apps
from tests.cases import LONG
from tests.federation import DEFAULTS
from tests.raising import raises
from unlearning.errors import AppError
from unlearning.evaluation import predict
from unlearning.local import begin
from unlearning.optimizers import OPTIMIZER
from unlearning.parameters import content_hash
from unlearning.tasks import Examples, Site, Task
from unlearning.tasks.losses import classification_measures, cross_entropy
from unlearning.tasks.set_metrics import balanced_accuracy, roc_auc
from unlearning.tasks.task import numbered
from unlearning.training import TrainingSettings

NUM_CLIENTS = 3
COUNT = 16
DROPPED = ("dataset", "model", "partition", "alpha")


class ViewingNet(nn.Module):
    """Two convolutions whose features are viewed as rows, as in PyTorch's own tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1, self.fc2 = nn.Linear(16 * 5 * 5, 32), nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        return self.fc2(functional.relu(self.fc1(x)))


def logistic_regression() -> nn.Module:
    """scikit-learn's starts from zero."""
    layer = nn.Linear(6, 2)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def normalised_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


def text_classifier() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="the extra `transformers` is not installed")
    config = transformers.DistilBertConfig(
        vocab_size=20, dim=8, n_layers=1, n_heads=2, hidden_dim=16, max_position_embeddings=8, num_labels=2
    )
    return transformers.AutoModelForSequenceClassification.from_config(config)


def adapted_text_classifier() -> nn.Module:
    peft = pytest.importorskip("peft", reason="the extra `finetune` is not installed")
    adapters = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_lin", "v_lin"])
    return peft.get_peft_model(text_classifier(), adapters)


def labels_of(random: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(random.integers(0, 2, COUNT))


def pictures(random: np.random.Generator) -> tuple[Any, torch.Tensor]:
    labels = labels_of(random)
    noise = torch.from_numpy(random.normal(size=(COUNT, 3, 32, 32)).astype(np.float32))
    return noise / 4 + labels[:, None, None, None], labels


def rows(random: np.random.Generator) -> tuple[Any, torch.Tensor]:
    labels = labels_of(random)
    return torch.from_numpy(random.normal(size=(COUNT, 6)).astype(np.float32)) + labels[:, None], labels


def sentences(random: np.random.Generator) -> tuple[Any, torch.Tensor]:
    """Token ids with their mask, which hides what stands for nothing."""
    labels = labels_of(random)
    words = torch.from_numpy(random.integers(1, 10, (COUNT, 8))) + 10 * labels[:, None]
    mask = (torch.arange(8) < torch.from_numpy(random.integers(3, 9, COUNT))[:, None]).long()
    return {"input_ids": words * mask, "attention_mask": mask}, labels


Draw = Callable[[np.random.Generator], tuple[Any, torch.Tensor]]


class Federation:
    """Three sites with `draw`'s data, and `build`'s model."""

    def __init__(self, directory: Path, build: Callable[[], nn.Module], draw: Draw, **task: Any) -> None:
        self.directory, self.draw = directory, draw
        self.task = Task(
            **{
                "name": "a user's",
                "num_classes": 2,
                "score_name": "accuracy",
                "build_model": build,
                "loss": cross_entropy,
                "per_example": classification_measures,
                **task,
            }
        )

    def examples(self, site: int) -> Examples:
        inputs, targets = self.draw(np.random.default_rng(site))
        return Examples(inputs, targets, numbered(COUNT))

    def load_site(self, _settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
        own = self.examples(int(node_config["partition-id"]))
        return Site(own.select(np.arange(COUNT - 4)), own.select(np.arange(COUNT - 4, COUNT)))

    def run(self, method: str, **changes: Any) -> dict[str, Any]:
        """The report of the deletion of client 1."""
        given = {name: value for name, value in DEFAULTS.items() if name not in DROPPED}
        own = {
            "rounds": 3,
            "num-clients": NUM_CLIENTS,
            "learning-rate": 0.05,
            "batch-size": 8,
            "recovery-max-rounds": 1,
            "evaluate-every": 0,
            "requests": f"at=2 client=1 method={method}",
            "state-dir": str(self.directory),
        }
        self.grid = run_apps(
            make_server_app(lambda _: self.task, lambda _: self.examples(99), table="own"),
            make_client_app(lambda _: self.task, self.load_site, table="own"),
            {**given, **own, **changes},
            num_clients=NUM_CLIENTS,
        )
        (path,) = self.directory.glob("reports/*/report.json")
        return json.loads(path.read_text(encoding="utf-8"))


USERS = {
    "quickstart-pytorch": (ViewingNet, pictures, "puf-special"),
    "logistic regression": (logistic_regression, rows, "hf-kcu-influence"),
    "tabular with BatchNorm": (normalised_mlp, rows, "puf-special"),
    "text classifier": (text_classifier, sentences, "hf-kcu-influence"),
    "text classifier with LoRA": (adapted_text_classifier, sentences, "retrain"),
}
TEXT = [pytest.param(name, marks=LONG) for name in USERS if name.startswith("text")]


# transformers announces the end of a name that peft still uses
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", [*(name for name in USERS if not name.startswith("text")), *TEXT])
def test_a_users_model_learns_forgets_and_reports(tmp_path, name):
    """With a method that differentiates where the model allows it."""
    build, draw, method = USERS[name]
    build()  # skips, with its reason, where the package is not installed
    report = Federation(tmp_path, build, draw).run(method)
    assert report["request"]["client_id"] == "1"
    assert report["federation"]["clients_retained"] == ["0", "2"]
    after = report["measurements"][-1]
    assert after["test"]["num_examples"] == COUNT
    assert {"yeom", "confidence"} <= set(after["figures"])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_model_that_is_built_without_values_is_refused_before_a_round(tmp_path, value):
    """As by torch.empty; in the library and in Flower's own loop too."""

    class Shifted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 2)
            self.shift = nn.Parameter(torch.tensor([0.0, value]))

    federation = Federation(tmp_path, Shifted, rows)
    for start in (
        lambda: federation.run("natural"),
        lambda: begin(federation.task, TrainingSettings()),
        lambda: FedAvg(federation.task).initial_arrays(),
    ):
        with raises(AppError, "unusable-start", parameter="shift"):
            start()


class Bag(nn.Module):
    """The largest of embeddings, which PyTorch differentiates once."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(20, 8, mode="max"), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x.abs().long()))


def test_a_model_without_second_derivatives_is_not_prepared_for_hf_online(tmp_path):
    """Each round from the second on failed at each client."""
    with raises(AppError, "once-differentiable"):
        Federation(tmp_path, Bag, rows).run("natural", prepare="hf-online")


def test_metrics_of_whole_sets_are_in_the_report(tmp_path):
    """The server's over its test examples, the sites' as the mean of each one's own."""
    metrics = (balanced_accuracy, roc_auc)
    federation = Federation(tmp_path, logistic_regression, rows, set_metrics=metrics)
    report = federation.run("natural", **{"rounds": 2, "recovery-max-rounds": 0, "evaluate-every": 1})
    measured = report["measurements"][-1]
    model = CheckpointStore(tmp_path / "checkpoints").newest().parameters  # nothing has moved it since
    outputs = predict(federation.task, model, federation.examples(99))
    labels = federation.examples(99).targets.numpy()
    assert measured["test"]["metrics"] == {
        "balanced_accuracy": pytest.approx(balanced_accuracy(outputs, labels)),
        "roc_auc": pytest.approx(roc_auc(outputs, labels)),
    }
    each = [federation.load_site({}, {"partition-id": site}).train for site in (0, 2)]
    own = [balanced_accuracy(predict(federation.task, model, one), one.targets.numpy()) for one in each]
    assert measured["retained"]["metrics"]["balanced_accuracy"] == pytest.approx(np.mean(own))
    page = next(tmp_path.glob("reports/*/report.html")).read_text(encoding="utf-8")
    assert "Roc auc, test data" in page


class Sampling(nn.Module):
    """Draws random numbers in eval mode as well, as a variational autoencoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = self.inner(x)
        return self.head(middle + torch.randn_like(middle))


@pytest.mark.parametrize("method", ["natural", "newton-cg"])
def test_a_model_that_draws_random_numbers_gives_the_same_federation_each_time(tmp_path, method):
    """With other draws at each measurement, clients count otherwise, recovery stops elsewhere and figures differ."""
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        directory = tmp_path / str(seed)
        report = Federation(directory, Sampling, rows).run(method, **{"evaluate-every": 1})
        model = CheckpointStore(directory / "checkpoints").newest().parameters
        found.append((content_hash(model), report["measurements"][-1]["test"], report["attacks"]))
    assert found[0] == found[1]


def test_an_optimisers_state_is_kept_at_a_site_until_that_is_forgotten(tmp_path):
    """Of the last two rounds; nothing of it travels."""
    federation = Federation(tmp_path, logistic_regression, rows)
    federation.run("natural", **{"momentum": 0.9, "keep-optimizer": True, "recovery-max-rounds": 0})
    state = CheckpointStore(tmp_path / "checkpoints").newest()
    stores = [memory_of(one).store(OPTIMIZER) for one in federation.grid.contexts.values()]
    assert [store.rounds("sgd")[-1:] for store in stores] == [[state.round], [], [state.round]]
