"""MiT-B0 from the optional package: its size, its numbers, its checkpoints, and what refuses it."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cases import LONG
from tests.tasks import initial_model
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.errors import DataError
from unlearning.methods.classifier_head import head_slots, size_of
from unlearning.parameters import layout
from unlearning.tasks import TaskSettings, make_task, problems
from unlearning.tasks.ensemble import shard_task
from unlearning.tasks.models import MODELS
from unlearning.tasks.task import Examples, Task
from unlearning.training import initial_parameters, structure

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="The extra is not installed: pip install 'flower-unlearning[transformers]'.",
)
SIDE = 64
"""The smallest at which every stage has more than one key to attend to."""
DIGITS = TaskSettings(model="mit-b0", image_side=SIDE)
CIFAR = TaskSettings(dataset="cifar10", model="mit-b0", image_side=SIDE)
COLOUR = TaskSettings(
    dataset="npz", model="mit-b0", num_classes=3, input_shape="3x8x8", image_side=SIDE, dtype="float64"
)


def two_pictures() -> Examples:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=generator)
    return Examples(inputs, torch.tensor([0, 2]), np.asarray(["a", "b"]))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in the library's own format, of a model with 1,000 classes."""
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(5)
    config = transformers.SegformerConfig(num_labels=1000)
    transformers.utils.logging.disable_progress_bar()
    transformers.SegformerForImageClassification(config).save_pretrained(directory)
    return directory


@pytest.mark.slow
@pytest.mark.long
def test_it_has_about_the_papers_number_of_parameters():
    """3.6 million with ImageNet's 1,000 classes, as PUF counts; fewer with fewer classes."""
    factory = MODELS["mit-b0"].factory
    counts = [
        sum(parameter.numel() for parameter in factory((3, 32, 32), classes).parameters())
        for classes in (100, 1000)
    ]
    assert counts == [3_345_092, 3_576_392]


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 20), (3, SIDE, SIDE)])
def test_pictures_of_any_size_give_logits(shape: tuple[int, ...]):
    """The model resizes them to squares."""
    model = MODELS["mit-b0"].factory(shape, 7, image_side=SIDE)
    assert model(torch.zeros(2, *shape)).shape == (2, 7)


def test_pictures_are_resized_to_224_unless_asked_otherwise():
    """A picture of that size goes in as it is, so that resizing it beforehand changes nothing."""
    torch.manual_seed(0)
    model = MODELS["mit-b0"].factory((3, 32, 32), 3)
    picture = torch.randn(1, 3, 32, 32)
    resized = torch.nn.functional.interpolate(picture, (224, 224), mode="bilinear", antialias=True)
    with torch.no_grad():
        assert torch.equal(model(picture), model(resized))


def test_attention_is_the_librarys_own():
    """Written out for its second derivative, it gives the logits of the fused kernel."""
    from transformers import SegformerConfig, SegformerForImageClassification

    torch.manual_seed(0)
    ours = MODELS["mit-b0"].factory((3, SIDE, SIDE), 3, image_side=SIDE)
    config = SegformerConfig(num_labels=3, attn_implementation="sdpa")
    theirs = SegformerForImageClassification(config).eval()
    theirs.load_state_dict(ours.network.state_dict())
    picture = torch.randn(2, 3, SIDE, SIDE)
    with torch.no_grad():
        torch.testing.assert_close(ours(picture), theirs(picture).logits, rtol=1e-4, atol=1e-5)


def test_an_example_has_the_same_loss_in_training():
    """Nothing is dropped at random, and no example depends on the rest of its batch."""
    task = make_task(COLOUR)
    examples = two_pictures()
    model = initial_model(task, seed=0).train()
    with torch.no_grad():
        together, alone = model(examples.inputs), model(examples.inputs[:1])
    torch.testing.assert_close(together[:1], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind is CurvatureKind.GAUSS_NEWTON else LONG) for kind in CurvatureKind],
)
@pytest.mark.slow
def test_curvature_works_on_it(kind: CurvatureKind):
    """u·Cv = v·Cu and not 0, for each kind of curvature."""
    task = make_task(COLOUR)
    product = CurvatureProduct(task, initial_parameters(task, 0), two_pictures(), kind=kind)
    u, v = np.random.default_rng(0).standard_normal((2, initial_parameters(task, 0).size))
    u_c_v, v_c_u = float(u @ product(v)), float(v @ product(u))
    assert abs(u_c_v) > 1e-6
    assert u_c_v == pytest.approx(v_c_u, rel=1e-8)


def test_its_head_is_its_last_linear_layer():
    """FedAU finds weight and bias of 256 features and 10 classes."""
    assert size_of(head_slots(make_task(DIGITS))) == 257 * 10


def from_checkpoint(directory: Path) -> Task:
    return make_task(replace(CIFAR, pretrained=str(directory)))


def difference(one: Task, other: Task) -> dict[str, float]:
    """How far the initial weights of two tasks are apart, of encoder and head."""
    slots = layout(initial_model(one, 0))
    gap = np.abs(initial_parameters(one, 0) - initial_parameters(other, 0))
    parts = {"encoder": 0.0, "head": 0.0}
    for slot in slots:
        part = "head" if slot.name.startswith("network.classifier") else "encoder"
        parts[part] = max(parts[part], float(gap[slot.start : slot.stop].max()))
    return parts


def test_a_checkpoint_gives_the_encoder_and_leaves_the_head(checkpoint: Path):
    """The head of 1,000 classes is not looked at; ours is the one of the seed."""
    task = from_checkpoint(checkpoint)
    apart = difference(make_task(CIFAR), task)
    assert apart["encoder"] > 1e-2
    assert apart["head"] == 0
    from transformers import SegformerModel

    theirs = SegformerModel.from_pretrained(checkpoint).state_dict()["stages.3.layer_norm.weight"]
    (slot,) = [
        slot
        for slot in layout(initial_model(task, 0))
        if slot.name.endswith("segformer.stages.3.layer_norm.weight")
    ]
    assert np.array_equal(initial_parameters(task, 0)[slot.start : slot.stop], theirs.numpy().ravel())


def test_every_shard_of_an_ensemble_starts_from_the_checkpoint(checkpoint: Path):
    """Encoders are equal, heads are not."""
    task = shard_task(from_checkpoint(checkpoint), 2)
    vector = initial_parameters(task, 0)
    values = {slot.name: vector[slot.start : slot.stop] for slot in layout(initial_model(task, 0))}
    encoder, head = "network.segformer.stages.0.patch_embeddings.proj.weight", "network.classifier.weight"
    assert np.array_equal(values[f"shards.0.{encoder}"], values[f"shards.1.{encoder}"])
    assert not np.array_equal(values[f"shards.0.{head}"], values[f"shards.1.{head}"])


def test_a_checkpoint_that_is_not_there_is_refused_where_training_starts(tmp_path: Path):
    """The message names it and says what to give. A client needs none: it takes the weights from the server."""
    task = from_checkpoint(tmp_path / "none")
    assert len(layout(structure(task))) > 100
    with pytest.raises(DataError):
        initial_parameters(task, 0)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path):
    """MiT-B1 is wider."""
    from transformers import SegformerConfig, SegformerModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    SegformerModel(SegformerConfig(hidden_sizes=[64, 128, 320, 512])).save_pretrained(tmp_path)
    with pytest.raises(DataError):
        initial_parameters(from_checkpoint(tmp_path), 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "cnn", "image_side": 64},
        {"model": "mit-b0", "image_side": 31},
        {"model": "cnn", "pretrained": "x"},
        {"model": "mit-b0", "pretrained": "x"},
        {"model": "mit-b0", "dataset": "heart-disease"},
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, str]):
    """One sentence each, with what to do."""
    assert len(problems(TaskSettings(**settings))) == 1
