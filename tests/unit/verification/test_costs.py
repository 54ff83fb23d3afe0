"""The closed cost formulas, with the numbers written out."""

import numpy as np
import pytest
import torch
from torch import nn

from unlearning.errors import DataError
from unlearning.tasks.task import Examples, Task
from unlearning.verification.costs import (
    Cost,
    CostSymbols,
    puf_regular_cost,
    puf_special_cost,
    recovery_cost,
    training_flops,
)

# P = 100, B = 4, C_u = 2, C_r = 3, F = 7, N = 11, E = 5: 2PB = 800 bytes and FNE = 385 FLOPs a client
SYMBOLS = CostSymbols(
    num_parameters=100,
    bytes_per_parameter=4,
    num_targets=2,
    num_retained=3,
    flops_per_example=7.0,
    examples_per_client=11.0,
    epochs=5,
)


def test_puf_special_costs_one_round_of_the_targets():
    """800 · 2 bytes, 385 · 2 FLOPs."""
    assert puf_special_cost(SYMBOLS) == Cost(1600, 770.0)


def test_puf_regular_costs_one_round_of_everybody():
    """800 · 5 bytes, 385 · 5 FLOPs."""
    assert puf_regular_cost(SYMBOLS) == Cost(4000, 1925.0)


def test_recovery_costs_its_rounds_of_the_retained():
    """800 · 3 · 4 bytes, 385 · 3 · 4 FLOPs."""
    assert recovery_cost(SYMBOLS, rounds=4) == Cost(9600, 4620.0)


def linear_task() -> Task:
    return Task(
        name="linear",
        num_classes=3,
        score_name="accuracy",
        build_model=lambda: nn.Linear(6, 3),
        loss=nn.functional.cross_entropy,
        per_example=lambda outputs, targets: (outputs, targets, targets),  # not called here
    )


def zeros(count: int) -> Examples:
    return Examples(
        torch.zeros(count, 6), torch.zeros(count, dtype=torch.int64), np.arange(count).astype(str)
    )


@pytest.mark.parametrize("count", [1, 5])
def test_a_linear_layer_takes_two_products_an_example(count):
    """Forward 2·6·3, weight gradient 2·6·3, no gradient to the input: 72, whatever the batch."""
    assert training_flops(linear_task(), zeros(count)) == 72.0


def test_flops_of_nothing_are_refused():
    """An empty batch would divide by zero."""
    with pytest.raises(DataError):
        training_flops(linear_task(), zeros(0))
