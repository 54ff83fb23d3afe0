"""Examples in memory, in memory-mapped files and behind a Dataset are the same examples, to the bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

from tests.raising import raises
from unlearning.curvature.gradients import fisher_diagonal, gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.errors import AppError, DataError, NumericalError
from unlearning.evaluation import evaluate
from unlearning.requests import Forget
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.checks import check_examples
from unlearning.tasks.sources import Loading
from unlearning.tasks.task import Examples, Site, forgotten_mask, join, numbered, unknown_ids
from unlearning.training import TrainingSettings, initial_parameters, train
from unlearning.verification.observations import observe_model

TASK = replace(
    make_task(TaskSettings(dataset="npz", num_classes=3, input_shape="2x3x3", model="logistic")),
    # dropout draws from torch's global random state, which reading data must leave alone
    build_model=lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(18, 3)),
)
COUNT = 23
PIXELS = np.random.default_rng(0).integers(0, 256, (COUNT, 2, 3, 3), dtype=np.uint8)
LABELS = np.arange(COUNT) % 3
IDS = np.asarray([f"e{number}" for number in range(COUNT)])
SETTINGS = TrainingSettings(epochs=2, batch_size=5, learning_rate=0.1, seed=3)


class Pictures(Dataset):
    """The pictures as a Dataset that decodes one at a time; `length` is what it says."""

    def __init__(self, length: int = COUNT) -> None:
        self.length, self.read = length, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.read += 1
        return torch.from_numpy(PIXELS[index].astype(np.float32) / np.float32(255)), int(LABELS[index])


def in_memory() -> Examples:
    return Examples(
        torch.from_numpy(PIXELS.astype(np.float32) / np.float32(255)), torch.from_numpy(LABELS), IDS
    )


@pytest.fixture(params=["mapped", "dataset", "workers"])
def elsewhere(request, tmp_path) -> Examples:
    if request.param == "mapped":
        np.save(tmp_path / "inputs.npy", PIXELS)
        return Examples.from_arrays(np.load(tmp_path / "inputs.npy", mmap_mode="r"), LABELS, IDS)
    loading = Loading(workers=2) if request.param == "workers" else None
    return Examples.from_dataset(Pictures(), IDS, loading=loading)


def with_labels(where: str, labels: np.ndarray) -> Examples:
    inputs, targets = torch.from_numpy(PIXELS), torch.from_numpy(labels)
    if where == "arrays":
        return Examples.from_arrays(PIXELS, labels, IDS)
    if where == "tensors":
        return Examples(inputs, targets, IDS)
    known = targets if where == "dataset with known targets" else None
    return Examples.from_dataset(TensorDataset(inputs, targets), IDS, targets=known)


@pytest.mark.parametrize("where", ["arrays", "tensors", "dataset", "dataset with known targets"])
@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32, np.int64, np.bool_])
def test_whole_targets_are_classes_whatever_their_type(where, kind):
    """Losses and indices take int64 only, and sums of bytes overflow; other targets stay numbers."""
    labels = (LABELS % 2 if kind is np.bool_ else LABELS).astype(kind)
    found = with_labels(where, labels)
    for targets in (found.targets, found.batch(slice(0, COUNT))[1]):
        assert targets.dtype == torch.int64
        assert targets.tolist() == labels.tolist()
    assert with_labels(where, LABELS.astype(np.float32)).targets.dtype == torch.float32


def test_training_has_the_same_bits_wherever_the_examples_lie(elsewhere):
    """The order of batches, and what else is drawn, follow from the seed alone."""
    start = initial_parameters(TASK, 0)
    for which in (slice(None), np.array([7, 1, 20, 3, 4, 15])):
        chosen = np.arange(COUNT)[which]
        expected = train(TASK, start, in_memory().select(chosen), SETTINGS)
        found = train(TASK, start, elsewhere.select(chosen), SETTINGS)
        assert np.array_equal(found.parameters, expected.parameters)
        assert found.loss == expected.loss


def test_measures_and_derivatives_have_the_same_bits_wherever_the_examples_lie(elsewhere):
    """Evaluation, what attacks are given, gradients, the Fisher diagonal and curvature products."""
    start = initial_parameters(TASK, 1)

    def all_of(examples: Examples) -> list[np.ndarray]:
        seen = observe_model(
            TASK, start, examples, max_samples=9, generator=np.random.default_rng(2), with_outputs=True
        )
        product = CurvatureProduct(
            TASK, start, examples, kind=CurvatureKind.GAUSS_NEWTON, micro_batch_size=4, memory_budget_bytes=1
        )
        return [
            evaluate(TASK, start, examples, batch_size=4).loss,
            *seen.to_arrays().values(),
            gradient(TASK, start, examples, micro_batch_size=4),
            fisher_diagonal(TASK, start, examples),
            product(start),
        ]

    for found, expected in zip(all_of(elsewhere), all_of(in_memory()), strict=True):
        assert np.array_equal(found, expected)


class Centring(nn.Module):
    """Changes its inputs in place, which does no harm to the batches of a DataLoader."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(18, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inputs -= 0.5
        return self.layer(inputs.flatten(1))


def test_a_model_that_works_in_place_does_not_change_the_examples():
    """Each evaluation measures the same; derivatives, which compute one batch several times, are refused."""
    task, examples = replace(TASK, build_model=Centring), in_memory()
    start = initial_parameters(task, 0)
    first = evaluate(task, start, examples, batch_size=4).loss
    trained = train(task, start, examples, SETTINGS).parameters
    assert np.array_equal(evaluate(task, start, examples, batch_size=4).loss, first)
    with raises(NumericalError, code="writes-on-inputs"):
        gradient(task, trained, examples)
    assert torch.equal(examples.inputs, in_memory().inputs)


def test_selecting_and_joining_copy_nothing(elsewhere):
    """What is kept are positions: the source stays one, and is not read."""
    even = elsewhere.select(np.arange(COUNT) % 2 == 0)
    both = join(even.select(np.array([3, 1])), elsewhere.select(np.array([0])))
    assert both.source is even.source is elsewhere.source
    assert both.positions.tolist() == [6, 2, 0]
    assert both.ids.tolist() == ["e6", "e2", "e0"]
    assert both.targets.tolist() == [0, 2, 0]
    assert torch.equal(both.inputs, in_memory().inputs[[6, 2, 0]])
    assert elsewhere.compacted() is elsewhere


def test_what_is_joined_of_two_sources_keeps_its_order(elsewhere):
    """Also where a batch takes from both."""
    other = in_memory().select(np.array([5, 6])).compacted()
    both = join(elsewhere.select(np.array([2, 9])), other).select(np.array([3, 0, 2, 1]))
    inputs, targets = both.batch(np.arange(4))
    assert torch.equal(inputs, in_memory().inputs[[6, 2, 5, 9]])
    assert targets.tolist() == [0, 2, 2, 0] == both.targets.tolist()


def test_what_is_forgotten_is_found_wherever_the_examples_lie(elsewhere):
    """By id without reading anything, by class from the targets."""
    some = elsewhere.select(np.arange(4, COUNT))
    assert np.flatnonzero(forgotten_mask(some, Forget(sample_ids=frozenset({"e5", "e0"})))).tolist() == [1]
    assert forgotten_mask(some, Forget(classes=frozenset({2}))).tolist() == (LABELS[4:] == 2).tolist()
    assert unknown_ids(some, ["e5", "e0", "nobody"]) == ["e0", "nobody"]


def test_known_targets_spare_reading_the_data_set():
    """A class is looked for in the targets that are given."""
    pictures = Pictures()
    examples = Examples.from_dataset(pictures, targets=torch.from_numpy(LABELS))
    assert forgotten_mask(examples, Forget(classes=frozenset({1}))).sum() == (LABELS == 1).sum()
    assert pictures.read == 0


def test_other_targets_leave_the_inputs_where_they_are(elsewhere):
    """As methods do that train on labels of their own."""
    relabelled = elsewhere.select(np.array([8, 2])).with_targets(torch.tensor([0, 1]))
    inputs, targets = relabelled.select(np.array([1])).batch(slice(None))
    assert torch.equal(inputs, in_memory().inputs[[2]])
    assert (targets.tolist(), relabelled.ids.tolist()) == ([1], ["e8", "e2"])


def test_a_part_of_what_is_in_memory_can_be_all_that_stays():
    """After a deletion nothing of the forgotten examples is to stay in memory."""
    part = in_memory().select(np.array([4, 2])).compacted()
    assert len(part.source) == 2
    assert torch.equal(part.inputs, in_memory().inputs[[4, 2]])
    a_range = in_memory().select(np.arange(2, COUNT)).compacted()
    assert a_range.inputs.untyped_storage().nbytes() == a_range.inputs.nbytes  # no view of the whole


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_set_whose_length_lies_is_refused_in_a_sentence(workers):
    """It names the data set, what it said, and the example that is not there."""
    examples = Examples.from_dataset(Pictures(length=COUNT + 2), loading=Loading(workers=workers))
    with pytest.raises(AppError) as caught:
        train(TASK, initial_parameters(TASK, 0), examples, SETTINGS)
    said = str(caught.value)
    assert "Pictures says that it holds 25 examples, and number 2" in said
    assert said.endswith(" is out of bounds for axis 0 with size 23.")
    assert "\n" not in said


def test_a_data_set_without_a_length_or_pairs_is_refused():
    """An iterable one, and one that gives inputs only."""

    class NoLength:
        def __getitem__(self, index):
            raise AssertionError

    class NoPairs(Pictures):
        def __getitem__(self, index):
            return torch.zeros(2)

    with pytest.raises(AppError):
        Examples.from_dataset(NoLength())
    with pytest.raises(AppError):
        Examples.from_dataset(NoPairs()).batch(slice(0, 1))


class Rows(Pictures):
    """The pictures as rows of a data set of Hugging Face are: mappings, with more in them than is learnt from."""

    def __getitem__(self, index: int) -> dict[str, object]:
        picture, label = super().__getitem__(index)
        return {"number": index, "img": picture, "left": picture[:, :, :1], "label": label}


def test_a_data_set_of_mappings_is_read_by_the_names_of_its_columns():
    """One input is a tensor, several are given to the model by name; the target comes last."""
    site = Site.of(Rows(), Rows(5), columns=("img", "label"))
    inputs, targets = site.train.batch(slice(0, COUNT))
    assert torch.equal(inputs, in_memory().inputs)
    assert targets.tolist() == LABELS.tolist()
    assert (len(site.test), forgotten_mask(site.train, Forget(classes=frozenset({1}))).sum()) == (5, 8)
    several, _ = Examples.from_dataset(Rows(), columns=("img", "left", "label")).batch(np.array([1, 2]))
    assert {name: one.shape for name, one in several.items()} == {"img": (2, 2, 3, 3), "left": (2, 2, 3, 1)}


@pytest.mark.parametrize("columns", [(), ("label",), "img", ("image", "label")])
def test_columns_that_do_not_name_inputs_and_target_are_refused(columns):
    with raises(AppError, "columns"):
        Examples.from_dataset(Rows(), columns=columns).batch(slice(0, 1))


class Flipped(Pictures):
    """A Dataset that changes its pictures at random, each time that one is read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture, label = super().__getitem__(index)
        return picture.flip(2) if torch.rand(()) < 0.5 else picture, label


def test_a_data_set_that_changes_its_examples_is_refused():
    """One of four is read differently the second time, but for one in sixteen; and not a number is a number."""
    torch.manual_seed(0)
    with raises(DataError, "changing-examples"):
        check_examples(Examples.from_dataset(Flipped()), "The site")
    check_examples(Examples.from_dataset(Pictures(), targets=torch.as_tensor(LABELS)), "The site")
    missing = np.array([np.nan, 1.0])
    check_examples(Examples.from_arrays(PIXELS[:2], missing), "The site")


def test_a_loader_that_reads_a_part_gives_that_part():
    """As sites do that share one Dataset: taking all of it would train on the others' data."""
    loader = DataLoader(Pictures(), batch_size=4, sampler=SubsetRandomSampler([7, 2, 11]))
    site = Site.of(loader, DataLoader(Pictures(5), shuffle=True))
    assert site.train.ids.tolist() == ["7", "2", "11"]
    assert torch.equal(site.train.inputs, in_memory().inputs[[7, 2, 11]])
    assert len(site.test) == 5


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("collate_fn", {"collate_fn": lambda items: items}),
        ("sampler", {"sampler": WeightedRandomSampler([1.0] * COUNT, COUNT)}),
        ("batch_sampler", {"batch_sampler": [[0, 1], [2]]}),
    ],
)
def test_a_loader_that_makes_batches_in_its_own_way_is_refused(code, options):
    """What it does would be left out without a word."""
    with raises(AppError, code):
        Site.of(DataLoader(Pictures(), **options))


def test_as_many_ids_as_examples():
    """The sentence has both numbers."""
    with pytest.raises(DataError):
        Examples.from_dataset(Pictures(), np.array(["a", "b"]))


@pytest.mark.parametrize(
    ("inputs", "code"),
    [(PIXELS, "no-tensor"), ([1.0] * COUNT, "no-tensor"), ({"a": torch.ones(COUNT - 1)}, "")],
)
def test_inputs_that_are_no_tensors_or_too_few_are_refused(inputs, code):
    """Before anything reads them."""
    with raises(DataError, code):
        Examples(inputs, torch.as_tensor(LABELS), numbered(COUNT))
