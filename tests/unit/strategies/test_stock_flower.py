"""Our strategies run under Flower's stock `start()`, and Flower's own FedAvg can drive our clients."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg as StockFedAvg

from strategies.fedavg import FedAvg
from strategies.messages import model_record, vector_of
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
