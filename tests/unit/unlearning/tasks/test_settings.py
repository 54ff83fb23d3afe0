"""Which settings are refused, and with which words."""

from typing import Any

import pytest

from unlearning.errors import ConfigurationError
from unlearning.tasks import TaskSettings, load_site, make_task, problems

NPZ = {"dataset": "npz", "num_classes": 3, "input_shape": "4"}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"model": "cnn", "partition": "dirichlet", "alpha": 0.1},
        {"dataset": "cifar100", "model": "resnet18", "dtype": "float64"},
        {"dataset": "heart-disease", "partition": "natural", "num_clients": 4},
        {"dataset": "nuclei", "model": "res-unet", "partition": "natural", "num_clients": 6},
        {**NPZ, "model": "mlp"},
        {**NPZ, "input_shape": "1x28x28", "model": "cnn"},
        {"model": "unlearning.tasks.models:logistic"},
        {"num_classes": 10, "input_shape": "1x8x8"},
    ],
)
def test_right_settings_have_no_problem(values: dict[str, Any]) -> None:
    assert problems(TaskSettings(**values)) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dataset": "imagenet"}, "unknown dataset 'imagenet'. The datasets are: digits, mnist"),
        ({"model": "resnet99"}, "Unknown model 'resnet99'. The models are: logistic, mlp"),
        ({"model": "no_such_package:model"}, "cannot be imported"),
        ({"partition": "pathological"}, "The partitions are: iid, dirichlet, natural"),
        ({"alpha": 0.0}, "alpha must be above 0, got 0.0"),
        ({"alpha": float("nan")}, "alpha must be above 0, got nan"),
        ({"num_clients": 0}, "num-clients must be 1 or more, got 0"),
        ({"seed": -1}, "seed must be 0 to 2147483647, got -1"),
        ({"dtype": "bfloat16"}, "The dtypes are: float32, float64"),
        ({"num_classes": 3}, "num-classes of digits is 10, got 3"),
        ({"input_shape": "1x28x28"}, "input-shape of digits is 1x8x8, got '1x28x28'"),
        ({"partition": "natural"}, "that has some: nuclei, heart-disease"),
        (
            {"dataset": "heart-disease", "partition": "natural", "num_clients": 5},
            "num-clients must be 1 to 4 with the partition natural, got 5",
        ),
        ({"dataset": "nuclei"}, "logistic a classification model; models for it are: res-unet"),
        ({"model": "res-unet"}, "digits is a classification data set"),
        (
            {"dataset": "nuclei", "model": "res-unet", "partition": "dirichlet"},
            "use iid or natural",
        ),
        ({"model": "lenet"}, "lenet takes images of at least 12 pixels a side, not 1x8x8"),
        ({"dataset": "heart-disease", "model": "cnn"}, "not inputs of shape 22"),
        ({**NPZ, "input_shape": "1x30x30", "model": "vit-lite"}, "in multiples of 4, not 1x30x30"),
        ({**NPZ, "num_classes": 1}, "num-classes must be 2 or more with the data set npz, got 1"),
        ({**NPZ, "input_shape": "28*28"}, "such as 1x28x28 or 22, with the data set npz, got '28*28'"),
        ({**NPZ, "input_shape": ""}, "input-shape must be"),
        ({**NPZ, "input_shape": "0x3"}, "input-shape must be"),
        ({**NPZ, "partition": "natural"}, "give each client its own data directory"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(values: dict[str, Any], words: str) -> None:
    """One sentence, and nothing else is complained about."""
    wrong = problems(TaskSettings(**values))
    assert len(wrong) == 1
    assert words in wrong[0]


def test_all_wrong_settings_are_told_at_once() -> None:
    settings = TaskSettings(
        dataset="x", model="y", partition="z", alpha=-1, num_clients=0, seed=-1, dtype="w"
    )
    with pytest.raises(ConfigurationError) as caught:
        make_task(settings)
    assert len(caught.value.problems) == 7


def test_the_largest_allowed_seed_is_one_that_partitions_take() -> None:
    """The limit of the setting is not above that of the random generator."""
    settings = TaskSettings(seed=2**31 - 1)
    assert problems(settings) == []
    assert len(load_site(settings, 0).train) > 0
