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
    "values",
    [
        {"dataset": "imagenet"},
        {"model": "resnet99"},
        {"model": "no_such_package:model"},
        {"partition": "pathological"},
        {"alpha": 0.0},
        {"alpha": float("nan")},
        {"num_clients": 0},
        {"seed": -1},
        {"dtype": "bfloat16"},
        {"num_classes": 3},
        {"input_shape": "1x28x28"},
        {"partition": "natural"},
        {"dataset": "heart-disease", "partition": "natural", "num_clients": 5},
        {"dataset": "nuclei"},
        {"model": "res-unet"},
        {"dataset": "nuclei", "model": "res-unet", "partition": "dirichlet"},
        {"model": "lenet"},
        {"dataset": "heart-disease", "model": "cnn"},
        {**NPZ, "input_shape": "1x30x30", "model": "vit-lite"},
        {**NPZ, "num_classes": 1},
        {**NPZ, "input_shape": "28*28"},
        {**NPZ, "input_shape": ""},
        {**NPZ, "input_shape": "0x3"},
        {**NPZ, "partition": "natural"},
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(values: dict[str, Any]) -> None:
    """One sentence, and nothing else is complained about."""
    assert len(problems(TaskSettings(**values))) == 1


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
