"""HF-online's bound behind a frozen network: against exact retraining, and what keeps it from being proven."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.tasks import initial_model, tiny_classification
from unlearning.certified.linear_head import feature_norm
from unlearning.certified.noise_certificate import unmet_assumptions
from unlearning.certified.sensitivity import Sensitivity
from unlearning.errors import DataError
from unlearning.local.learning import Learnt, begin, learn
from unlearning.methods.hf_online_bound import KeptBound
from unlearning.methods.hf_online_kept import kept_vector
from unlearning.methods.hf_online_vectors import CarryVectors
from unlearning.methods.registry import METHODS
from unlearning.parameters import Vector, content_hash
from unlearning.tasks.task import Examples, Task
from unlearning.training import (
    TrainingSettings,
    frozen_part,
    initial_parameters,
)

METHOD = METHODS["hf-online"]
TRAINING = TrainingSettings(epochs=2, batch_size=4, learning_rate=0.2, weight_decay=0.1)
LEAVES = "b"


def backbone() -> nn.Sequential:
    """Five features with running statistics, none above 1."""
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh()).requires_grad_(False)


TASK = tiny_classification(lambda: nn.Sequential(nn.Flatten(), backbone(), nn.Linear(5, 2)))
HEAD = tiny_classification(lambda: (backbone(), nn.Linear(5, 2))[1])  # begins with the same weights


def data(scale: float = 1.0) -> dict[str, Examples]:
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, count in (("a", 9), ("b", 5), ("c", 12)):
        inputs = scale * torch.randn(count, 3, dtype=torch.float64, generator=generator)
        made[name] = Examples(inputs, (inputs.sum(dim=1) > 0).long(), np.array(list(map(str, range(count)))))
    return made


def features() -> dict[str, Examples]:
    """What the backbone makes of the data, by torch alone."""
    network = initial_model(TASK, seed=0)[1].eval()
    with torch.no_grad():
        return {name: Examples(network(one.inputs), one.targets, one.ids) for name, one in data().items()}


def trained_with(
    task: Task, examples: Mapping[str, Examples], *, rounds: int, options: CarryVectors
) -> Learnt:
    """FedAvg with HF-online's preparation."""
    start = begin(task, TRAINING, {"hf-online": options})
    return learn(task, examples, start, rounds=rounds)


def deleted(task: Task, examples: Mapping[str, Examples]) -> tuple[Sensitivity, Vector, Vector]:
    """What is proven of forgetting a client after four rounds, the unlearned model and the retrained one."""
    options = CarryVectors(feature_norm=2.5)
    learnt = trained_with(task, examples, rounds=4, options=options)
    model, store = learnt.parameters, learnt.stores["hf-online"]
    bound = KeptBound(options, store, lambda: initial_parameters(task, 0))
    found, unmet = bound(frozenset({LEAVES}), content_hash(model), (), declared=None, unmet=())
    assert unmet == ()
    assert found is not None
    vector = kept_vector(options, store, LEAVES)
    assert vector is not None
    others = {name: one for name, one in examples.items() if name != LEAVES}
    retrained = trained_with(task, others, rounds=4, options=options)
    return found, model + vector, retrained.parameters


def test_the_bound_behind_a_frozen_network_is_that_of_a_linear_model_on_its_features():
    """The same models, the same distance to exact retraining, the same \u0394, and the distance is below it."""
    found, unlearned, retrained = deleted(TASK, data())
    expected, *models = deleted(HEAD, features())
    np.testing.assert_allclose([unlearned, retrained], models, rtol=1e-9)
    assert found.is_bound
    assert found.value == pytest.approx(expected.value, rel=1e-6)
    assert 0 < np.linalg.norm(unlearned - retrained) < found.value
    assert found.constants is not None
    assert f"frozen network {frozen_part(TASK)[:16]}" in found.constants.source


def test_the_declared_norm_is_that_of_the_features():
    """Inputs may be as large as they like; the network is in training mode, with the weights that it brought along."""
    measured = feature_norm(TASK, data()["a"])
    assert measured == pytest.approx(feature_norm(HEAD, features()["a"]), rel=1e-12)
    assert measured < feature_norm(TASK, data(1e4)["a"]) <= np.sqrt(6)
    far = data(1e4)
    trained_with(TASK, far, rounds=1, options=CarryVectors(feature_norm=2.5))
    with pytest.raises(DataError):
        trained_with(TASK, far, rounds=1, options=CarryVectors(feature_norm=2.0))


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter that is trained, as LoRA's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 5).requires_grad_(False)
        self.down, self.up = nn.Linear(3, 1, bias=False), nn.Linear(1, 5, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) + self.up(self.down(inputs))


class Wrapped(nn.Module):
    """A head that could do anything with its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.head = backbone(), nn.Linear(5, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.below(inputs)).square()


def hooked() -> nn.Module:
    layer = nn.Linear(5, 2)
    layer.register_forward_hook(lambda _module, _given, output: output.square())
    return nn.Sequential(backbone(), layer)


def half_trained() -> nn.Module:
    layer = nn.Linear(5, 2)
    layer.bias.requires_grad_(False)
    return nn.Sequential(backbone(), layer)


REFUSED: Mapping[str, Callable[[], nn.Module]] = {
    "adapter": lambda: nn.Sequential(Adapted(), nn.Linear(5, 2)),
    "nothing frozen": lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)),
    "dropout": lambda: nn.Sequential(backbone(), nn.Dropout(0.1), nn.Linear(5, 2)),
    "attention": lambda: nn.Sequential(
        nn.TransformerEncoderLayer(4, 2, dropout=0.1).requires_grad_(False), nn.Linear(4, 2)
    ),
    "batch statistics": lambda: nn.Sequential(
        backbone(), nn.BatchNorm1d(5, affine=False, track_running_stats=False), nn.Linear(5, 2)
    ),
    "statistics that travel": lambda: nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2)),
    "another module": Wrapped,
    "a hook": hooked,
    "a part is frozen": half_trained,
    "after the layer": lambda: nn.Sequential(backbone(), nn.Linear(5, 2), nn.Tanh()),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_linear_layer_on_fixed_features_is_not_proven_and_says_why(kind):
    """One sentence."""
    (sentence,) = unmet_assumptions(tiny_classification(REFUSED[kind]), 0.1)
    assert sentence.startswith("The model of tiny is not one linear layer on fixed features (")


def test_a_deletion_behind_a_network_that_is_trained_too_is_not_certified():
    """The rounds are recorded and the vectors carried; what is said of \u0394 is what is missing."""
    task = tiny_classification(lambda: nn.Sequential(Adapted(), nn.Tanh(), nn.Linear(5, 2)))
    options = CarryVectors(feature_norm=50.0)
    learnt = trained_with(task, data(), rounds=2, options=options)
    bound = KeptBound(options, learnt.stores["hf-online"], lambda: initial_parameters(task, 0))
    found, unmet = bound(frozenset({LEAVES}), content_hash(learnt.parameters), (), declared=None, unmet=())
    assert found is None
    assert "below the last layer are trained" in " ".join(unmet)


class Computed(nn.Module):
    """A module of the user's own, that looks like nothing which draws or sees the batch."""

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, inputs: Tensor) -> Tensor:
        return self.compute(inputs)


@pytest.mark.parametrize(
    "compute",
    [
        lambda inputs: inputs + torch.randn_like(inputs),
        lambda inputs: inputs - inputs.mean(dim=0),
        lambda inputs: inputs[:, None, :].expand(-1, 3, -1),
    ],
    ids=["at-random", "of-the-batch", "three-vectors-an-example"],
)
def test_features_that_are_not_fixed_have_no_norm(compute):
    """It is tried on the first examples."""
    task = replace(TASK, build_model=lambda: nn.Sequential(backbone(), Computed(compute), nn.Linear(5, 2)))
    with pytest.raises(DataError):
        feature_norm(task, data()["a"])
