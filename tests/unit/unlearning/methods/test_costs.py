"""The closed cost formulas, with the numbers written out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from server.deletion.formula_costs import explain
from tests.tasks import tiny_classification
from unlearning.errors import DataError
from unlearning.methods.costs import Cost, CostSymbols, WorkDone, recovery_cost, training_flops
from unlearning.methods.preparation import Preparation
from unlearning.methods.registry import METHODS, validated_parameters
from unlearning.methods.sisa_sharding import Sharding
from unlearning.tasks.task import Examples

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


def cost_of(
    name: str,
    given: CostSymbols,
    parameters: dict[str, object] | None = None,
    options: Preparation | None = None,
) -> Cost | None:
    """The formula's value for parameters as a request would give them."""
    method = METHODS[name]
    return method.cost(given, validated_parameters(method, parameters or {}), options)


def test_recovery_costs_its_rounds_of_the_retained_and_of_targets_that_keep_a_part():
    """800 · 3 · 4 bytes, 385 · 3 · 4 FLOPs; with one of the two targets 800 · 4 · 4 and 385 · 4 · 4."""
    assert recovery_cost(SYMBOLS, rounds=4) == Cost(9600, 4620.0)
    assert recovery_cost(replace(SYMBOLS, num_partial=1), rounds=4) == Cost(12800, 6160.0)


# P_c = 10, R_ret = 6, k = 8, V = 4; FN = 77 FLOPs an epoch
MORE = replace(
    SYMBOLS,
    num_head_parameters=10,
    num_classes=10,
    training_rounds=9,
    work=WorkDone(rounds=6, products=8, vectors=4),
)


@pytest.mark.parametrize(
    ("method", "parameters", "expected"),
    [
        ("puf-special", {}, Cost(1600, 770.0, 400)),
        ("puf-regular", {}, Cost(4000, 1925.0, 400)),
        ("not", {}, Cost(0, 0.0, 400)),
        ("fedau", {}, Cost(80, 0.0, 400)),  # 2 · 10 · 4
        ("fedau-learning", {}, Cost(80, 0.0, 200)),  # five clients' heads
        ("hf-online", {}, Cost(0, 0.0, 1600)),  # four vectors
        ("pga", {"epochs": 3}, Cost(800, 462.0, 2000)),  # 77 · 3 · 2; five clients' models
        ("federaser", {"calibration_ratio": 0.4}, Cost(14400, 2772.0, 12000)),  # 77 · 2 · 3 · 6; 5 · 6 · 400
        (  # 26 trips (3 · 2 + 5 · 4) of 800 and 385
            "mode",
            {"degradation_rounds": 2, "guidance_rounds": 4, "epochs": 5},
            Cost(20800, 10010.0, 800),
        ),
        ("gradient-ascent", {"epochs": 3}, Cost(1600, 462.0, 400)),
        ("neggrad-plus", {"rounds": 4}, Cost(16000, 1540.0, 800)),  # 800 · 5 · 4; 77 · 5 · 4
        (  # 800 · (5 · 4 + 3 · 6); 77 · 2 · 38
            "fedosd",
            {"unlearning_rounds": 4, "post_training_rounds": 6, "epochs": 2},
            Cost(30400, 5852.0, 800),
        ),
        ("fedquit", {"epochs": 2}, Cost(1600, 77 * 7 / 3 * 2, 400)),
        ("fedmemprune", {}, Cost(2400, 1155.0, 400)),  # one round of three
        ("hf-kcu", {"iterations": 8}, Cost(1600, 2618.0, 400)),  # 77 · 17 · 2
        ("hf-kcu-influence", {"iterations": 8}, Cost(1600, 2618.0, 400)),
        ("newton-cg", {}, Cost(21600, 3927.0, 400)),  # 800 · 3 · 9; 77 · 17 · 3
        ("newton-cg", {"iterations": 3}, Cost(21600, 3927.0, 400)),  # the products that it took, not the most
        ("retrain", {"rounds": 6}, Cost(14400, 6930.0, 400)),  # 800 · 3 · 6; 385 · 3 · 6
        ("retrain", {}, Cost(21600, 10395.0, 400)),  # as many rounds as there have been
        ("natural", {}, Cost(0, 0.0, 400)),
        ("exact-ridge", {}, Cost(0, 0.0, 12400)),  # D = 10: 8 · (55 + 100) bytes, two of five clients each
    ],
)
def test_each_formula_by_hand(method, parameters, expected):
    """The formula with the numbers put in."""
    cost = cost_of(method, MORE, parameters)
    assert cost is not None
    assert cost.computation_flops == pytest.approx(expected.computation_flops)
    assert replace(cost, computation_flops=expected.computation_flops) == expected


def test_every_method_has_a_formula():
    """A new one may have none; of those here each is counted."""
    assert [name for name in METHODS if cost_of(name, MORE) is None] == []


PLANNED, PARTIAL = replace(MORE, work=None), replace(MORE, num_partial=2)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (MORE, Cost(14400, 3465.0, 1200)),  # as retrain, but of one of two models; three slices
        # planned: of five clients two or three are of the shard, none stays beside the two targets; one is counted
        (PLANNED, Cost(7200, 1732.5, 1200)),
        # planned, and the targets keep a part: 2 + 2 − 2 clients, nine rounds
        (replace(PLANNED, num_partial=2), Cost(14400, 3465.0, 1200)),
        # planned, a class: every client is a target that keeps a part, and every shard is touched
        (replace(PLANNED, num_targets=5, num_partial=5, num_retained=0), Cost(36000, 8662.5, 1200)),
    ],
)
def test_sisa_trains_the_touched_shards_again(given, expected):
    """All of the shards' models travel, and each client trains one of them."""
    assert cost_of("sisa", given, options=Sharding(shards=2, slices=3)) == expected


@pytest.mark.parametrize(
    ("method", "parameters", "expected"),
    [
        # 2 · 5 vectors of 400 bytes and one more of each of the two; no further work
        ("puf-regular", {}, Cost(4800, 1925.0, 400)),
        ("puf-special", {}, Cost(1600, 770.0, 400)),
        # sums: 2 · 1240 bytes one way, 2 · 11 · 10 · (10 + 10) FLOPs each
        ("exact-ridge", {}, Cost(2480, 8800.0, 12400)),
        # five clients in place of three
        ("fedmemprune", {}, Cost(4000, 1925.0, 400)),
        ("newton-cg", {}, Cost(36000, 6545.0, 400)),
        ("retrain", {}, Cost(36000, 17325.0, 400)),
        # 2 · 400 bytes more a round of unlearning; FedOSD's post-training then has five clients
        ("neggrad-plus", {"rounds": 4}, Cost(16000 + 3200, 1540.0, 800)),
        (
            "fedosd",
            {"unlearning_rounds": 4, "post_training_rounds": 6, "epochs": 1},
            Cost(800 * (5 * 4 + 5 * 6) + 3200, 77.0 * 50, 800),
        ),
    ],
)
def test_targets_that_keep_a_part_send_what_belongs_to_it(method, parameters, expected):
    """Two of them."""
    assert cost_of(method, PARTIAL, parameters) == expected


def test_a_plan_takes_the_most_products_of_a_solver():
    """Nothing is known yet of how many it will take: 800 · 3 · 8 bytes with 7 steps."""
    cost = cost_of("newton-cg", SYMBOLS, {"iterations": 7})
    assert cost is not None
    assert cost.communication_bytes == 19200


@pytest.mark.parametrize(
    ("formula", "measured", "words"),
    [
        (1000, 1009, ""),
        (1000, 1400, "100 bytes for each message"),
        (1000, 600, "400 bytes fewer"),
        (0, 40, "10 bytes for each message"),
        (0, 0, ""),
    ],
)
def test_a_difference_over_one_percent_is_explained(formula, measured, words):
    """With the bytes a message that the formula leaves out; four messages here."""
    explanation = explain(formula, measured, num_messages=4)
    assert explanation.startswith(words)
    assert bool(explanation) == bool(words)


@pytest.mark.parametrize("measured", [600, 1400])
def test_a_known_reason_stands_in_the_place_of_the_usual_one(measured):
    """Of more bytes as of fewer."""
    said, usual = (
        explain(1000, measured, num_messages=4, why=why).split(": ", 1)[1] for why in ("a sum has more", "")
    )
    assert said == "a sum has more"
    assert usual not in ("", said)


TASK = tiny_classification(lambda: nn.Linear(6, 3), num_classes=3)


def zeros(count: int) -> Examples:
    return Examples(
        torch.zeros(count, 6), torch.zeros(count, dtype=torch.int64), np.arange(count).astype(str)
    )


@pytest.mark.parametrize("count", [1, 5])
def test_a_linear_layer_takes_two_products_an_example(count):
    """Forward 2·6·3, weight gradient 2·6·3, no gradient to the input: 72, whatever the batch."""
    assert training_flops(TASK, zeros(count)) == 72.0


def test_flops_of_nothing_are_refused():
    """An empty batch would divide by zero."""
    with pytest.raises(DataError):
        training_flops(TASK, zeros(0))
