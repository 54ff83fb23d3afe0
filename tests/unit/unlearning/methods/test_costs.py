"""The closed cost formulas, with the numbers written out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from unlearning.errors import DataError
from unlearning.methods.costs import (
    FORMULAS,
    Cost,
    CostSymbols,
    compare,
    formula_cost,
    puf_regular_cost,
    puf_special_cost,
    recovery_cost,
    training_flops,
    with_parameters,
)
from unlearning.methods.registry import METHODS, method_named, validated_parameters
from unlearning.tasks.task import Examples, Task

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
    assert puf_special_cost(SYMBOLS) == Cost(1600, 770.0, 400)


def test_puf_regular_costs_one_round_of_everybody():
    """800 · 5 bytes, 385 · 5 FLOPs."""
    assert puf_regular_cost(SYMBOLS) == Cost(4000, 1925.0, 400)


def test_recovery_costs_its_rounds_of_the_retained():
    """800 · 3 · 4 bytes, 385 · 3 · 4 FLOPs."""
    assert recovery_cost(SYMBOLS, rounds=4) == Cost(9600, 4620.0)


# P_c = 10, R_ret = 6, E_cal = 2, E_asc = 3, R_d = 2, R_m = 4, k = 8, c = 2; FN = 77 FLOPs an epoch
MORE = replace(
    SYMBOLS,
    num_head_parameters=10,
    repeated_rounds=6,
    calibration_epochs=2,
    ascent_epochs=3,
    degradation_rounds=2,
    guidance_rounds=4,
    num_products=8,
    num_shards=2,
    num_slices=3,
    num_vectors=4,
)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("puf-special", Cost(1600, 770.0, 400)),
        ("puf-regular", Cost(4000, 1925.0, 400)),
        ("not", Cost(0, 0.0, 400)),
        ("fedau", Cost(80, 0.0, 400)),  # 2 · 10 · 4
        ("fedau-learning", Cost(80, 0.0, 200)),  # five clients' heads
        ("sisa", Cost(14400, 3465.0, 1200)),  # as retrain, but of one of two models; three slices
        ("hf-online", Cost(0, 0.0, 1600)),  # four vectors
        ("pga", Cost(800, 462.0, 2000)),  # 77 · 3 · 2; five clients' models
        ("federaser", Cost(14400, 2772.0, 12000)),  # 800 · 3 · 6; 77 · 2 · 3 · 6; 5 · 6 · 400
        ("mode", Cost(20800, 10010.0, 800)),  # 26 trips (3 · 2 + 5 · 4) of 800 and 385
        ("gradient-ascent", Cost(1600, 462.0, 400)),
        ("hf-kcu", Cost(1600, 2618.0, 400)),  # 77 · 17 · 2
        ("hf-kcu-influence", Cost(1600, 2618.0, 400)),
        ("newton-cg", Cost(21600, 3927.0, 400)),  # 800 · 3 · 9; 77 · 17 · 3
        ("retrain", Cost(14400, 6930.0, 400)),  # 800 · 3 · 6; 385 · 3 · 6
        ("natural", Cost(0, 0.0, 400)),
    ],
)
def test_each_formula_by_hand(method, expected):
    """The table's row with the numbers put in."""
    assert formula_cost(method, MORE) == expected


def test_every_formula_is_of_a_registered_method():
    """A method that changes its name does not lose its formula unseen."""
    assert set(FORMULAS) <= set(METHODS)


def test_a_method_without_a_formula_is_refused():
    """No figure is made up; the message lists what there is."""
    with pytest.raises(DataError, match="puf-special"):
        formula_cost("guessing", SYMBOLS)


@pytest.mark.parametrize(
    ("method", "parameters", "expected"),
    [
        ("hf-kcu", {"iterations": 12}, {"num_products": 12}),
        ("newton-cg", {"iterations": 7}, {"num_products": 7}),
        ("gradient-ascent", {"epochs": 4}, {"ascent_epochs": 4}),
        ("retrain", {"rounds": 9}, {"repeated_rounds": 9}),
        ("retrain", {"rounds": 0}, {}),
        ("mode", {"guidance_rounds": 3, "epochs": 2}, {"guidance_rounds": 3, "epochs": 2}),
        ("federaser", {"calibration_ratio": 0.5}, {"calibration_epochs": 2.5}),
        ("puf-special", {"unlearning_rate": 2.0}, {}),
    ],
)
def test_a_methods_own_parameters_set_the_symbols(method, parameters, expected):
    """The names are those that the method validates, so a renamed parameter is noticed."""
    method_parameters = validated_parameters(method_named(method), parameters).model_dump()
    defaults = with_parameters(method, method_parameters, SYMBOLS)
    for name, value in expected.items():
        assert getattr(defaults, name) == value
    assert with_parameters(method, parameters, SYMBOLS) == replace(SYMBOLS, **expected)


@pytest.mark.parametrize(
    ("formula", "measured", "ratio", "words"),
    [
        (1000, 1009, 1.009, ""),
        (1000, 1400, 1.4, "100 bytes for each message"),
        (1000, 600, 0.6, "400 bytes fewer"),
        (0, 40, None, "10 bytes for each message"),
        (0, 0, None, ""),
        (1000, None, None, "not measured"),
    ],
)
def test_a_difference_over_one_percent_is_explained(formula, measured, ratio, words):
    """With the bytes a message that the formula leaves out; four messages here."""
    result = compare(formula, measured, num_messages=4)
    assert result.ratio == (None if ratio is None else pytest.approx(ratio))
    assert result.explanation.startswith(words)
    assert bool(result.explanation) == bool(words)


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
