"""Our strategies run under Flower's stock `start()`, and Flower's own FedAvg can drive our clients."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg as StockFedAvg

from strategies.fedavg import FedAvg
from strategies.messages import model_record, vector_of
from strategies.unlearning_strategy import UnlearningStrategy
from unlearning.requests import Granularity, Target
from unlearning.tasks import make_task
from unlearning.training import initial_parameters


@pytest.fixture
def ready(federation):
    """A federation, its strategy and its initial model."""
    one = federation(num_clients=3)
    start = initial_parameters(make_task(one.settings.task()), 0)
    return one, FedAvg(one.task, one.settings), start


def test_fedavg_gives_the_same_model_under_stock_start_and_the_live_loop(ready):
    """Two drivers, one strategy, equal bits."""
    one, strategy, start = ready
    stock = strategy.start(one.grid, model_record(start), num_rounds=2)
    live = one.run()
    np.testing.assert_array_equal(vector_of(stock.arrays), live.parameters)


def test_flowers_own_fedavg_drives_our_clients(ready):
    """Same clients, same model, Flower's aggregation: equal up to float rounding."""
    one, _, start = ready
    stock = StockFedAvg(fraction_evaluate=0.0, min_available_nodes=3).start(
        one.grid, model_record(start), num_rounds=2
    )
    live = one.run()
    np.testing.assert_allclose(vector_of(stock.arrays), live.parameters, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["puf-special", "puf-regular"])
def test_an_unlearning_strategy_runs_under_stock_start(ready, method):
    """Round 1 unlearns, rounds 2 and 3 recover without the target."""
    one, strategy, start = ready
    trained = strategy.start(one.grid, model_record(start), num_rounds=2).arrays
    sent = len(one.grid.sent)
    unlearning = UnlearningStrategy.by_name(method, [Target(Granularity.CLIENT, "1")], strategy)
    unlearning.start(one.grid, trained, num_rounds=3)
    assert unlearning.is_finished
    later = [
        message.metadata.dst_node_id
        for message in one.grid.sent[sent:]
        if message.metadata.message_type == "train"
    ]
    assert sorted(later) == [one.node("0"), one.node("0"), one.node("2"), one.node("2")]
